"""Pairs in, batch by batch, with every pair of a target in the same batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["whole_targets"]

_PAIRS_AT_ONCE = 250_000


def whole_targets(pairs: pl.LazyFrame, n_targets: int) -> Iterator[pl.DataFrame]:
    """Read a table of pairs in batches that never split a target.

    The table is read twice: to count, and to hand over. Pairs of a target that is not complete
    yet wait in memory, so memory stays flat where targets come roughly in order.

    Parameters
    ----------
    pairs
        Numbers of candidate-reference pairs in any order, with ``row`` (UInt32: position of the
        target, from 0) and ``sample_index``.
    n_targets
        Number of targets.

    Yields
    ------
    DataFrame
        All pairs of some targets, sorted by ``row`` and ``sample_index``.
    """
    to_come = np.zeros(n_targets, dtype=np.int64)
    for batch in pairs.select("row").collect_batches(chunk_size=_PAIRS_AT_ONCE):
        to_come += _pairs_per_target(batch, n_targets)
    waiting = pairs.clear().collect()
    for batch in pairs.collect_batches(chunk_size=_PAIRS_AT_ONCE):
        to_come -= _pairs_per_target(batch, n_targets)
        arrived = pl.concat([waiting, batch])
        whole = pl.Series(to_come[arrived["row"].to_numpy()] == 0)
        yield arrived.filter(whole).sort("row", "sample_index")
        waiting = arrived.filter(~whole)


def _pairs_per_target(batch: pl.DataFrame, n_targets: int) -> NDArray[np.int64]:
    return np.bincount(batch["row"].to_numpy(), minlength=n_targets)
