"""The scores of several attacks side by side, some rows of the table at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["read_rows", "score_batches"]

_ROWS_AT_ONCE = 32_768


def score_batches(
    scores: pl.LazyFrame, attacks: Sequence[str]
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield the index of a first row, and the scores from there on, a column per attack.

    A score that is not finite is NaN.
    """
    value, start = pl.col(attacks).cast(pl.Float64), 0
    finite = scores.select(pl.when(value.is_finite()).then(value))
    for batch in finite.collect_batches(chunk_size=_ROWS_AT_ONCE, maintain_order=True):
        yield start, batch.to_numpy().astype(np.float64)
        start += batch.height


def read_rows(
    scores: pl.LazyFrame, attacks: Sequence[str], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Read the scores of these rows of the table, in their order."""
    order = rows.argsort()
    ascending = rows[order]
    found = np.empty((rows.size, len(attacks)))
    for start, part in score_batches(scores, attacks):
        first, last = ascending.searchsorted([start, start + len(part)])
        found[order[first:last]] = part[ascending[first:last] - start]
    return found
