"""Which rows the parts of a table hold, target by target."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.evidence.units import TARGETS_AT_ONCE
from mia_batch.tables import RowIndex

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mia_batch.evidence.parts import Parts

__all__ = ["Held"]


class Held:
    """The rows of the parts that exist by now, read for some targets at a time.

    Held in memory is where each target's rows lie, 16 bytes a target: in the parts that were made
    of one slice of targets. A target that a grown corpus has moved, or that was asked for again,
    may lie in several.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._slices = [
            list(paths) for _, paths in groupby(parts.paths(), key=lambda path: _slice(parts, path))
        ]
        there = [self._targets(paths) for paths in self._slices]
        heights = [targets.len() for targets in there]
        targets = pl.concat([pl.Series("target", dtype=pl.UInt64), *there])
        self._slice_of = np.repeat(np.arange(len(there), dtype=np.uint32), heights)
        self._index = RowIndex(targets.to_frame().lazy())

    def done(self, targets: pl.Series) -> pl.DataFrame:
        """Count the rows of each unit of these targets: ``key`` (UInt64), ``done`` (UInt32)."""
        counted = self._rows(targets).group_by("key").agg(done=pl.col("index").max() + 1)
        return counted.collect(engine="streaming")  # a part holds whole ranges

    def failed(self, targets: pl.Series) -> pl.DataFrame:
        """Find rows with a reason in every part that has them: ``key``, ``index``."""
        rows = self._rows(targets)
        failed = rows.filter(pl.col("reason").is_not_null()).drop("reason").unique()
        had = rows.filter(pl.col("reason").is_null())
        return failed.join(had, on=["key", "index"], how="anti").collect(engine="streaming")

    def _rows(self, targets: pl.Series) -> pl.LazyFrame:
        """Open the rows of targets, which are given by their key."""
        numbers = np.unique(self._slice_of[self._index.find(targets)[1]])
        paths = [path for number in numbers for path in self._slices[number]]
        own = pl.col("target").is_in(targets.unique().implode())
        return self._parts.scan(paths).filter(own).drop("target")

    def _targets(self, paths: Sequence[Path]) -> pl.Series:
        found = self._parts.scan(paths).select(pl.col("target").unique())
        return found.collect(engine="streaming").to_series()


def _slice(parts: Parts, path: Path) -> int:
    return parts.targets_of(path).start // TARGETS_AT_ONCE
