"""The halves of targets by name, read as they are needed."""

from __future__ import annotations

from functools import cached_property, lru_cache
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch import tables
from mia_batch.schemas import Targets
from mia_batch.targets import RowIndex

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Halves"]

_ROWS_AT_ONCE = 8192
_PIECES_HELD = 2


class Halves:
    """Looks targets up by name; those of parts that follow each other are read once.

    Parameters
    ----------
    targets
        The targets table, of which the names are read, 12 bytes a target.
    columns
        What to look up.
    """

    def __init__(self, targets: Path, columns: list[str]) -> None:
        self._targets = tables.scan(targets, Targets)
        self._columns = columns
        self._piece: Callable[[int], pl.DataFrame] = lru_cache(_PIECES_HELD)(self._read)
        self._reading = Lock()  # threads that follow each other need the same

    def of(self, names: pl.Series) -> pl.DataFrame:
        """Find targets; several threads may ask.

        Parameters
        ----------
        names
            Names of targets, each as often as you like.

        Returns
        -------
        DataFrame
            The columns; each target that is known, and some that stand between them.
        """
        with self._reading:
            index = self._index
        rows = np.sort(index.find(names.rle().struct.field("value"))[1])
        ends = np.flatnonzero(np.diff(rows // _ROWS_AT_ONCE)) + 1
        found = [self._between(part[0], part[-1]) for part in np.split(rows, ends) if part.size]
        # In one chunk: of several, a join would copy every text.
        return pl.concat(found or [self._held(0).clear()], rechunk=True)

    def _between(self, first: np.uint32, last: np.uint32) -> pl.DataFrame:
        piece, start = divmod(int(first), _ROWS_AT_ONCE)
        return self._held(piece).slice(start, int(last - first) + 1)

    def _held(self, piece: int) -> pl.DataFrame:
        with self._reading:
            return self._piece(piece)

    @cached_property
    def _index(self) -> RowIndex:
        return RowIndex(self._targets.select("target_id"))

    def _read(self, piece: int) -> pl.DataFrame:
        rows = self._targets.slice(piece * _ROWS_AT_ONCE, _ROWS_AT_ONCE)
        return rows.select(self._columns).collect()
