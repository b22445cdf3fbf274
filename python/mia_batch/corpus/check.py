"""The check of a corpus: every row is read once, and errors are reported before work starts."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mia_batch.corpus.columns import Columns

__all__ = ["Fault", "check_rows", "faulty_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What makes a row wrong."""

    wrong: pl.Expr  # true in rows that are refused
    name: str  # the column whose value the message shows
    rest: str  # what the message says after the value


def check_rows(
    frames: Callable[[list[str]], Iterator[pl.DataFrame]],
    columns: Columns,
    *,
    place_of: Callable[[int], str],
    wrong: Callable[[int, str], None],
) -> int:
    """Read all rows once, and return how many there are.

    ``frames`` yields some of the user's columns, all rows in order; ``place_of`` says where a row
    is, counted from 0; ``wrong`` takes a wrong row and what to do about it, and may raise. Memory
    grows by a few bytes a row, and only where there is a ``document_id``.
    """
    faults = _faults(columns)
    identifier = columns.expression("document_id")
    hashes: list[np.ndarray] = []
    n_rows = 0
    for frame in frames(columns.raw.names()):
        for row, what in faulty_rows(frame, faults):
            wrong(n_rows + row, what)
        n_rows += frame.height
        if "document_id" in columns.parts:
            hashes.append(frame.select(identifier.hash()).to_series().to_numpy())
    repeated = _repeated(hashes)
    if not repeated.is_empty():
        names = frames(columns.needed(["document_id"]))
        for row, before, name in _duplicates((each.select(identifier) for each in names), repeated):
            what = f"document_id {name!r} is also in {place_of(before)}; identifiers must be unique"
            wrong(row, what)
    return n_rows


def _faults(columns: Columns) -> list[Fault]:
    parts, faults = columns.parts, list[Fault]()

    def add(part: str, wrong: pl.Expr, rest: str) -> None:
        faults.append(Fault(wrong=wrong, name=parts[part], rest=rest))

    answers = {part: columns.membership(part) for part in ("member", "label") if part in parts}
    for part, answer in answers.items():
        wrong = pl.col(parts[part]).is_not_null() & answer.is_null()
        add(part, wrong, ", neither 0 nor 1; use 0, 1 or null")
    if len(answers) == 2:
        differ = answers["member"].ne(answers["label"]).fill_null(value=False)
        add("member", differ, f" but {parts['label']!r} says the opposite; make them agree")
    if "document_id" in parts:
        missing = pl.col(parts["document_id"]).is_null()
        add("document_id", missing, "; give every document an identifier or none")
    if "prefix" in parts:
        for part, other in (("reference", "prefix"), ("prefix", "reference")):
            alone = pl.col(parts[other]).is_not_null() & pl.col(parts[part]).is_null()
            add(part, alone, f" but {parts[other]!r} is not; give both or neither")
    return faults


def faulty_rows(frame: pl.DataFrame, faults: list[Fault]) -> Iterator[tuple[int, str]]:
    """Yield each wrong row of a frame, with what is wrong and what to do."""
    for fault in faults:
        for row in frame.select(fault.wrong.arg_true()).to_series():
            value = frame[fault.name][row]
            shown = "null" if value is None else reprlib.repr(value)
            yield row, f"column {fault.name!r} is {shown}{fault.rest}"


def _repeated(hashes: list[np.ndarray]) -> pl.Series:
    """Return the hashes that occur more than once."""
    ordered = np.sort(np.concatenate(hashes or [np.empty(0, np.uint64)]))
    return pl.Series(np.unique(ordered[1:][ordered[1:] == ordered[:-1]]))


def _duplicates(
    frames: Iterator[pl.DataFrame], repeated: pl.Series
) -> Iterator[tuple[int, int, str]]:
    """Compare the identifiers of equal hash in full; different ones may share a hash."""
    first: dict[str, int] = {}
    start = 0
    for frame in frames:
        names = frame.to_series()
        for row in names.hash().is_in(repeated.implode()).arg_true():
            before = first.setdefault(names[row], start + row)
            if before != start + row:
                yield start + row, before, names[row]
        start += frame.height
