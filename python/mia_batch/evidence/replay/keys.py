"""Which targets the rows of a recording name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.evidence.units import FreshUnits
from mia_batch.schemas import Targets
from mia_batch.tables import RowIndex, generate, scan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from mia_batch.evidence.replay.columns import Key
    from mia_batch.evidence.replay.partition import Partition
    from mia_batch.prompts.view import View

__all__ = ["TargetKeys"]


class TargetKeys:
    """The rows of the targets table that a key names.

    A ``prefix`` names what precedes a prompt of ``view``. Where a target has several prompts, what
    precedes them is stored in ``partition`` meanwhile.
    """

    def __init__(self, targets: Path, key: Key, view: View, partition: Partition) -> None:
        self.table = scan(targets, Targets).select(key)
        self._targets: NDArray[np.uint32] | None = None  # of each row of the table
        if key == "prefix" and "prefix" not in view.columns:
            self._store_contexts(targets, view, partition)
        self.index = RowIndex(self.table)

    def find(self, keys: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Find every target of each key, as `RowIndex.find` does."""
        which, rows = self.index.find(keys)
        return which, rows if self._targets is None else self._targets[rows]

    @property
    def n_targets(self) -> int:
        """Count the targets that have a key."""
        return self.index.n_keys if self._targets is None else np.unique(self._targets).size

    def _store_contexts(self, targets: Path, view: View, partition: Partition) -> None:
        of_rows = [np.zeros(0, np.uint32)]

        def contexts(_names: list[str] | None) -> Iterator[pl.DataFrame]:
            for prompts in FreshUnits(scan(targets, Targets), view).slices():
                of_rows.append(prompts["target_row"].to_numpy())
                yield prompts.select(prefix="context")

        self.table = partition.sink(generate(pl.Schema({"prefix": pl.String()}), contexts))
        self._targets = np.concatenate(of_rows)
