"""Targets by name, read as they are needed."""

from __future__ import annotations

from functools import cached_property, lru_cache
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.schemas import Targets
from mia_batch.tables import RowIndex, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

__all__ = ["TargetLookup"]

_ROWS_AT_ONCE = 8192
_PIECES_HELD = 2


class TargetLookup:
    """Looks targets up by name; those of parts that follow each other are read once.

    Only where a target is not where it is looked for, the names of all are read, 12 bytes a target.
    """

    def __init__(self, targets: Path, columns: list[str]) -> None:
        self._targets = scan(targets, Targets)
        self._columns = columns
        self._piece: Callable[[int], pl.DataFrame] = lru_cache(_PIECES_HELD)(self._read)
        self._reading = Lock()  # threads that follow each other need the same

    def of(self, names: pl.Series, places: Iterable[range]) -> pl.DataFrame:
        """Find targets, looking first at some rows of the table; several threads may ask.

        Each target that is known comes, and others may come, too.
        """
        named = names.rle().struct.field("value")
        found = self._rows(places)
        if named.is_in(found["target_id"].implode()).all():
            return found
        with self._reading:
            index = self._index
        rows = np.sort(index.find(named)[1])
        ends = np.flatnonzero(np.diff(rows // _ROWS_AT_ONCE)) + 1
        near = (part for part in np.split(rows, ends) if part.size)
        return self._rows(range(int(part[0]), int(part[-1]) + 1) for part in near)

    def _rows(self, places: Iterable[range]) -> pl.DataFrame:
        found = [rows for place in places for rows in self._pieces(place)]
        # In one chunk: of several, a join would copy every text.
        return pl.concat(found or [self._held(0).clear()], rechunk=True)

    def _pieces(self, place: range) -> Iterator[pl.DataFrame]:
        start = place.start
        while start < place.stop:
            piece, first = divmod(start, _ROWS_AT_ONCE)
            yield self._held(piece).slice(first, place.stop - start)
            start = (piece + 1) * _ROWS_AT_ONCE

    def _held(self, piece: int) -> pl.DataFrame:
        with self._reading:
            return self._piece(piece)

    @cached_property
    def _index(self) -> RowIndex:
        return RowIndex(self._targets.select("target_id"))

    def _read(self, piece: int) -> pl.DataFrame:
        rows = self._targets.slice(piece * _ROWS_AT_ONCE, _ROWS_AT_ONCE)
        return rows.select(self._columns).collect()
