"""Parts of the targets that are measured by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["ALL", "LENGTH_SLICES", "find_slices"]

ALL = "all"

LENGTH_SLICES = {f"about {length} words": length for length in (32, 64, 128, 256)}
"""Nominal words of the length buckets, those of the SaMIA paper. A bucket reaches from its length
over the square root of 2 to its length times that: 23 to 45, 46 to 90, 91 to 181, 182 to 362."""

_MOST_VALUES = 50


def find_slices(
    labelled: pl.LazyFrame, slice_by: Sequence[str]
) -> dict[str, NDArray[np.intp] | slice]:
    """Find the rows of each slice.

    Parameters
    ----------
    labelled
        The labelled targets: ``member``, the columns to slice by, and ``n_words`` if known.
    slice_by
        Columns; each value is a slice of its own, called ``column=value``, nulls ``column=null``.

    Returns
    -------
    dict
        Rows by slice, ``all`` first. Length buckets that hold members and non-members follow at
        the end, where there are at least two of them; a single one would repeat ``all``.

    Raises
    ------
    RequestError
        If a column is missing or has more than 50 values.
    """
    names = labelled.collect_schema().names()
    found: dict[str, NDArray[np.intp] | slice] = {ALL: slice(None)}
    for column in slice_by:
        if column not in names:
            msg = f"there is no column {column!r} to slice by; there are {', '.join(names)}"
            raise RequestError(msg)
        values = labelled.select(pl.col(column).cast(pl.String).fill_null("null"))
        found |= _by_value(column, values.collect(engine="streaming")[column])
    if "n_words" in names:
        found |= _by_length(labelled.select("member", "n_words").collect(engine="streaming"))
    return found


def _by_value(column: str, values: pl.Series) -> Iterator[tuple[str, NDArray[np.intp]]]:
    distinct = values.unique().sort()
    if len(distinct) > _MOST_VALUES:
        msg = (
            f"column {column!r} has {len(distinct):,} values, of which each would be a slice; "
            f"slice by a column of at most {_MOST_VALUES}"
        )
        raise RequestError(msg)
    for value in distinct:
        yield f"{column}={value}", np.flatnonzero(values == value)


def _by_length(targets: pl.DataFrame) -> dict[str, NDArray[np.intp]]:
    words, member = targets["n_words"], targets["member"].to_numpy()
    buckets = {}
    for name, length in LENGTH_SLICES.items():
        within = words.is_between(length / 2**0.5, length * 2**0.5).fill_null(value=False)
        rows = np.flatnonzero(within)
        if member[rows].any() and not member[rows].all():
            buckets[name] = rows
    return buckets if len(buckets) > 1 else {}
