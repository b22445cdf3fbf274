"""Rows of evidence, batch by batch, with all of a target in the same batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.tables import mapped_zeros

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

__all__ = ["count_rows", "whole_targets"]


def count_rows(batches: Iterable[pl.DataFrame], n_targets: int) -> NDArray[np.uint32]:
    """Count the rows of each target, whose index from 0 is in column ``row``."""
    counts = mapped_zeros(n_targets, np.uint32)
    for batch in batches:
        _add(counts, batch, 1)
    return counts


def whole_targets(
    batches: Iterable[pl.DataFrame], to_come: NDArray[np.uint32], number: tuple[str, ...]
) -> Iterator[pl.DataFrame]:
    """Regroup batches of rows so that none splits a target, sorted by ``row`` and ``number``.

    Rows of a target that is not complete yet wait in memory. ``to_come`` has the rows of each
    target, as `count_rows` gives them, and is counted down to 0; the columns ``number`` tell a
    target's rows apart.
    """
    waiting: list[pl.DataFrame] = []
    for batch in batches:
        _add(to_come, batch, -1)
        arrived = pl.concat([*waiting, batch])
        whole = pl.Series(to_come[arrived["row"].to_numpy()] == 0, dtype=pl.Boolean)
        yield arrived.filter(whole).sort("row", *number)
        waiting = [arrived.filter(~whole)]


def _add(counts: NDArray[np.uint32], batch: pl.DataFrame, sign: int) -> None:
    rows, numbers = np.unique(batch["row"].to_numpy(), return_counts=True)
    counts[rows] += (sign * numbers).astype(np.uint32)  # -1 wraps around, and back
