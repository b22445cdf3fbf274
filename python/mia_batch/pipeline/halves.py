"""The halves of targets by name, read as they are needed."""

from __future__ import annotations

from functools import lru_cache
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
    """

    def __init__(self, targets: Path) -> None:
        self._table = tables.scan(targets, Targets).select(
            "target_id", "prefix", "reference", "n_words"
        )
        self._index = RowIndex(self._table.select("target_id"))
        self._piece: Callable[[int], pl.DataFrame] = lru_cache(_PIECES_HELD)(self._read)

    def of(self, names: pl.Series) -> pl.DataFrame:
        """Find targets; several threads may ask.

        Parameters
        ----------
        names
            Names of targets, each as often as you like.

        Returns
        -------
        DataFrame
            ``target_id``, ``prefix``, ``reference`` and ``n_words``, a row for each target.
        """
        _, rows = self._index.find(names.unique())
        pieces, places = np.divmod(np.unique(rows), _ROWS_AT_ONCE)
        found = [
            self._piece(int(piece))[pl.Series(places[pieces == piece])]
            for piece in np.unique(pieces)
        ]
        return pl.concat(found or [self._piece(0).clear()])

    def _read(self, piece: int) -> pl.DataFrame:
        return self._table.slice(piece * _ROWS_AT_ONCE, _ROWS_AT_ONCE).collect()
