"""Membership as users write it: booleans, 0 and 1, or their names."""

from __future__ import annotations

import polars as pl

__all__ = ["truth"]

_WORDS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def truth(name: str, dtype: pl.DataType) -> pl.Expr:
    """Read a column as true or false.

    Parameters
    ----------
    name
        Column of booleans, numbers or strings.
    dtype
        Its type.

    Returns
    -------
    Expr
        Boolean; null for null and for whatever is neither 0 nor 1, true nor false.
    """
    column = pl.col(name)
    if dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Boolean)
    if dtype.is_numeric():
        return pl.when((column == 0) | (column == 1)).then(column == 1)
    words = column.cast(pl.String).str.to_lowercase()
    return words.replace_strict(_WORDS, default=None, return_dtype=pl.Boolean)
