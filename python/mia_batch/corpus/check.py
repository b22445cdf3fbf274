"""The checking pass: every row is read once, and what is wrong is said before work starts."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mia_batch.corpus.columns import Columns

__all__ = ["Fault", "check_rows", "refuse_first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What makes a row wrong.

    Attributes
    ----------
    wrong
        True in rows that are refused.
    name
        The column whose value the message shows.
    rest
        What the message says after the value.
    """

    wrong: pl.Expr
    name: str
    rest: str


def check_rows(
    frames: Callable[[list[str]], Iterator[pl.DataFrame]],
    columns: Columns,
    *,
    locate: Callable[[int], str],
) -> int:
    """Read all rows once and refuse the first wrong one.

    Memory grows by a few bytes a row, and only where there is a ``document_id``.

    Parameters
    ----------
    frames
        Yields some of the user's columns, all rows in order.
    columns
        The columns and their parts.
    locate
        Says where a row is, counted from 0.

    Returns
    -------
    int
        Number of rows.

    Raises
    ------
    CorpusError
        If a membership is neither 0 nor 1 or contradicts itself, an identifier is null or not
        unique, or a row has only one half of its text.
    """
    faults = _faults(columns)
    identifier = columns.expression("document_id")
    hashes: list[np.ndarray] = []
    n_rows = 0
    for frame in frames(columns.raw.names()):
        refuse_first(frame, faults, locate, start=n_rows)
        n_rows += frame.height
        if "document_id" in columns.parts:
            hashes.append(frame.select(identifier.hash()).to_series().to_numpy())
    repeated = _repeated(hashes)
    if not repeated.is_empty():
        names = frames(columns.needed(["document_id"]))
        _refuse_duplicate((frame.select(identifier) for frame in names), repeated, locate)
    return n_rows


def _faults(columns: Columns) -> list[Fault]:
    parts = columns.parts
    faults = [_neither_0_nor_1(columns, part) for part in ("member", "label") if part in parts]
    if "member" in parts and "label" in parts:
        faults.append(_contradiction(columns))
    if "document_id" in parts:
        faults.append(_null(parts["document_id"]))
    if "prefix" in parts:
        faults.append(_half(parts["prefix"], parts["reference"]))
        faults.append(_half(parts["reference"], parts["prefix"]))
    return faults


def _neither_0_nor_1(columns: Columns, part: str) -> Fault:
    name = columns.parts[part]
    wrong = pl.col(name).is_not_null() & columns.truth(part).is_null()
    return Fault(wrong=wrong, name=name, rest=", neither 0 nor 1; use 0, 1 or null")


def _contradiction(columns: Columns) -> Fault:
    wrong = (columns.truth("member") != columns.truth("label")).fill_null(value=False)
    rest = f" but {columns.parts['label']!r} says the opposite; make them agree"
    return Fault(wrong=wrong, name=columns.parts["member"], rest=rest)


def _null(name: str) -> Fault:
    rest = "; give every document an identifier or none"
    return Fault(wrong=pl.col(name).is_null(), name=name, rest=rest)


def _half(there: str, lacking: str) -> Fault:
    wrong = pl.col(there).is_not_null() & pl.col(lacking).is_null()
    return Fault(wrong=wrong, name=lacking, rest=f" but {there!r} is not; give both or neither")


def refuse_first(
    frame: pl.DataFrame, faults: list[Fault], locate: Callable[[int], str], *, start: int
) -> None:
    """Refuse a frame that has a wrong row.

    Parameters
    ----------
    frame
        Some rows of a table.
    faults
        What would be wrong.
    locate
        Says where a row of the table is, counted from 0.
    start
        Rows of the table before the frame.

    Raises
    ------
    CorpusError
        Of the first fault that a row has; the message names place, column and value.
    """
    for fault in faults:
        row = frame.select(fault.wrong.arg_true().first()).item()
        if row is not None:
            value = frame[fault.name][row]
            shown = "null" if value is None else reprlib.repr(value)
            msg = f"{locate(start + row)}: column {fault.name!r} is {shown}{fault.rest}"
            raise CorpusError(msg)


def _repeated(hashes: list[np.ndarray]) -> pl.Series:
    """Return the hashes that occur more than once."""
    ordered = np.sort(np.concatenate(hashes or [np.empty(0, np.uint64)]))
    return pl.Series(np.unique(ordered[1:][ordered[1:] == ordered[:-1]]))


def _refuse_duplicate(
    frames: Iterator[pl.DataFrame], repeated: pl.Series, locate: Callable[[int], str]
) -> None:
    """Compare the identifiers of equal hash in full; different ones may share a hash."""
    first: dict[str, int] = {}
    start = 0
    for frame in frames:
        names = frame.to_series()
        for row in names.hash().is_in(repeated.implode()).arg_true():
            before = first.setdefault(names[row], start + row)
            if before != start + row:
                places = f"{locate(before)} and in {locate(start + row)}"
                msg = f"document_id {names[row]!r} is in {places}; identifiers must be unique"
                raise CorpusError(msg)
        start += frame.height
