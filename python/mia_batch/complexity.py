"""How complex a series of numbers is: Lempel-Ziv complexity and approximate entropy."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING

import polars as pl

import mia_batch._native as _native  # noqa: PLR0402 - from would import the package's own page
from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.kernel_arguments import as_column, check_count
from mia_batch.kernels import apply_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["approximate_entropy", "lempel_ziv_complexity"]


def lempel_ziv_complexity(logprobs: pl.Expr | str, *, bins: int) -> pl.Expr:
    """How many words a text's log-probabilities are cut into by the parse of Lempel and Ziv.

    The distance from the lowest value to 0 is cut into 99 equal parts: a value's level is 0 where
    it is the lowest, else the number of the part that it lies in, counted from 1, or at whose upper
    end. Then 0 to the highest level is cut into ``bins`` equal parts: a value's symbol is that of
    the part in which, or at whose upper end, its level is. From the left, each word is the shortest
    run of symbols that was no word before; one that the end of the series cuts short does not
    count.

    Parameters
    ----------
    logprobs
        Column of lists of numbers, 0 or less; a number above 0 counts as 0. Nulls in lists are left
        out.
    bins
        How many symbols there are, at least 1; else a ``SettingsError``.

    Returns
    -------
    Expr
        Float64, words over values, above 0 and at most 1; null where the list is null or empty, or
        a value is not finite. Where all values are equal it is that of so many equal symbols, the
        least there can be.

    References
    ----------
    Parse: Ziv and Lempel (1978). Levels, symbols and words over values: the code of Chang et al.
    (2024), arXiv:2409.13745, which takes the first 200 log-probabilities and 3, 4 and 5 bins.

    Examples
    --------
    >>> series = pl.lit([0.0, -9.0, -9.0, 0.0, 0.0, 0.0], pl.List(pl.Float64))
    >>> pl.select(lempel_ziv_complexity(series, bins=2)).item()  # 1, 0, 01 and 11
    0.6666666666666666
    """
    check_count("bins", bins)
    return _of_lists(logprobs, partial(_native.lempel_ziv_complexity, bins=bins))


def approximate_entropy(values: pl.Expr | str, *, m: int, r: float) -> pl.Expr:
    """How often pieces of a series that were alike go on differently.

    ``|phi(m) - phi(m + 1)|``: ``phi(m)`` is the mean, over all runs of ``m`` values, of the log of
    the share of such runs that are like it, itself among them. Runs are alike where no two of their
    values differ by more than ``r`` times the standard deviation of all values.

    Parameters
    ----------
    values
        Column of lists of numbers. Nulls in lists are left out. Time grows with the square of their
        length: give it as many as are needed.
    m
        Values of the shorter runs, at least 1; else a ``SettingsError``.
    r
        How many standard deviations are alike, finite and at least 0; else a ``SettingsError``. The
        deviation is that of a population, with 1 / n.

    Returns
    -------
    Expr
        Float64, in nats, 0 or more; null where the list is null or has no more than ``m + 1``
        values, or one is not finite. 0 where all are equal.

    References
    ----------
    Pincus (1991), "Approximate entropy as a measure of system complexity", whose difference can be
    below 0 for a short series; Chang et al. (2024), arXiv:2409.13745, take it without its sign,
    with m = 8 and r = 0.8, of the first 200 log-probabilities. Their code gives 0 for a series too
    short.

    Examples
    --------
    >>> series = pl.lit([0.0, 1.0] * 8, pl.List(pl.Float64))
    >>> pl.select(approximate_entropy(series, m=2, r=0.5)).item() < 0.01
    True
    """
    check_count("m", m)
    if not 0 <= r < inf:
        msg = f"r is {r!r}; use a finite number, 0 or more"
        raise SettingsError(msg)
    return _of_lists(values, partial(_native.approximate_entropy, m=m, r=r))


def _of_lists(values: pl.Expr | str, kernel: Callable[..., _native.ArrowArray]) -> pl.Expr:
    return as_column("values", values).map_batches(
        lambda column: apply_kernel(kernel, _as_lists(column)),
        return_dtype=pl.Float64(),
        is_elementwise=True,
    )


def _as_lists(column: pl.Series) -> pl.Series:
    """Make lists of float64 of lists of numbers, and of nothing but nulls."""
    dtype = column.dtype
    is_numbers = isinstance(dtype, pl.List) and (dtype.inner == pl.Null or dtype.inner.is_numeric())
    if not is_numbers and dtype != pl.Null:
        msg = f"values must be a column of lists of numbers, not {dtype}; cast it"
        raise SchemaMismatchError(msg)
    return column.cast(pl.List(pl.Float64))
