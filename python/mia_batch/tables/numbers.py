"""Columns of large tables as arrays, without a second copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl

from mia_batch.tables import mapped_zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["read_finite", "read_numbers"]

_Number = TypeVar("_Number", bound=np.generic)

_ROWS_AT_ONCE = 32_768


def read_numbers(
    table: pl.LazyFrame, column: pl.Expr, size: int, dtype: type[_Number]
) -> NDArray[_Number]:
    """Read one column of numbers, batch by batch.

    Parameters
    ----------
    table
        The table.
    column
        What to read of it.
    size
        Its rows.
    dtype
        Type of the numbers; with float64, null is NaN.

    Returns
    -------
    ndarray
        The column, in the table's order; the system has its memory back once it is freed.
    """
    numbers, end = mapped_zeros(size, dtype), 0
    batches = table.select(column).collect_batches(chunk_size=_ROWS_AT_ONCE, maintain_order=True)
    for batch in batches:
        start, end = end, end + batch.height
        numbers[start:end] = batch.to_series().to_numpy()
    return numbers


def read_finite(table: pl.LazyFrame, name: str, size: int) -> NDArray[np.float64]:
    """Read a column of ``size`` scores as `read_numbers` does; NaN where none is finite."""
    found = read_numbers(table, pl.col(name).cast(pl.Float64), size, np.float64)
    found[~np.isfinite(found)] = np.nan
    return found
