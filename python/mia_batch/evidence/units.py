"""What rows are wanted of: targets, or prompts about them, a slice of targets at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import polars as pl

from mia_batch.evidence.parts import TARGET_KEY
from mia_batch.schemas import Prompts, Targets
from mia_batch.tables import RowIndex, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from mia_batch.evidence.parts import Parts
    from mia_batch.prompts.view import View

__all__ = ["TARGETS_AT_ONCE", "FreshUnits", "PromptUnits", "TargetUnits", "Units"]

TARGETS_AT_ONCE = 4096
"""Targets of a slice; whole blocks of every size, and one block of prompts."""

_KEYS_AT_ONCE = 65536
_KEY = pl.col("target") + pl.col("index")
_PARTS_HELD = 2
_HAS_TEXT = pl.col("target").is_not_null()
_NAMES = ("target_id", "document_id", "n_words")


class Units(Protocol):
    """Targets or prompts that rows are wanted of."""

    def keys(self) -> Iterator[pl.DataFrame]:
        """Yield the ``key``, the ``target``'s key and its ``target_row`` of each, in any order."""

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield them in the targets' order: ``unit_key``, ``target_row``, and what is asked."""


@dataclass(frozen=True, slots=True)
class TargetUnits:
    """Targets that have a text; ``columns`` of the corpus are read beside those of the table."""

    targets: pl.LazyFrame
    columns: tuple[str, ...] = ()

    def keys(self) -> Iterator[pl.DataFrame]:
        """Yield the ``key``, the ``target``'s key and its ``target_row`` of each."""
        there = _numbered(self.targets).filter(_HAS_TEXT)
        rows = there.select("target_row", target=TARGET_KEY, key=TARGET_KEY)
        yield from rows.collect_batches(chunk_size=_KEYS_AT_ONCE)

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield rows of the targets table."""
        table = self.targets.select(*Targets.column_names(), *self.columns)
        height = table.select(pl.len()).collect().item()
        for start in range(0, height, TARGETS_AT_ONCE):
            rows = table.slice(start, TARGETS_AT_ONCE).collect()
            numbered = rows.with_columns(unit_key=TARGET_KEY, target_row=_rows_from(start))
            yield numbered.filter(_HAS_TEXT)


@dataclass(frozen=True, slots=True)
class FreshUnits:
    """Prompts of one view as they would be made of a table of targets; nothing is stored.

    ``columns`` of the corpus are read beside those of the table.
    """

    targets: pl.LazyFrame
    view: View
    columns: tuple[str, ...] = ()
    among: pl.Series | None = None  # ``target_id`` of those that may be asked; None = all

    def keys(self) -> Iterator[pl.DataFrame]:
        """Yield the keys and ``target_row`` of each, those that cannot be asked included."""
        index = pl.lit(list(range(self.view.n)), dtype=pl.List(pl.UInt32))
        there = _numbered(self.targets).filter(_HAS_TEXT, _is_among(self.among))
        each = there.select("target_row", target=TARGET_KEY, index=index).explode("index")
        rows = each.select("target_row", "target", key=_KEY)
        yield from rows.collect_batches(chunk_size=_KEYS_AT_ONCE)

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield prompts that can be asked, with ``context`` and ``text``."""
        start = 0
        columns = self.targets.select(*Targets.column_names(), *self.columns)
        for batch in columns.collect_batches(chunk_size=TARGETS_AT_ONCE, maintain_order=True):
            numbered = batch.with_columns(target_row=_rows_from(start))
            numbered = numbered.filter(_HAS_TEXT, _is_among(self.among))
            start += batch.height
            if self.view.make is None:
                continue
            prompts = self.view.rows(self.view.make(numbered)).filter(pl.col("reason").is_null())
            own = numbered.select(*_NAMES, *self.view.columns, "target_row")
            rows = self.view.resolve(prompts, own)
            yield rows.with_columns(unit_key=TARGET_KEY + pl.col("view_index"))


@dataclass(frozen=True)
class PromptUnits:
    """Prompts of one view; those that cannot be asked are left out with ``askable``."""

    targets: Path
    parts: Parts  # of the prompts table
    view: View
    askable: bool = False
    among: pl.Series | None = None  # ``target_id`` of those that may be asked; None = all

    def keys(self) -> Iterator[pl.DataFrame]:
        """Yield the keys and ``target_row`` of each prompt of a target that the run still has."""
        there = RowIndex(scan(self.targets, Targets).select(TARGET_KEY))
        rows = scan(self.parts.paths(), Prompts).filter(self._wanted)
        keys = rows.select(target=TARGET_KEY, index="view_index").select("target", key=_KEY)
        for batch in keys.collect_batches(chunk_size=_KEYS_AT_ONCE, maintain_order=True):
            which, found = there.find(batch["target"])
            yield batch[which].with_columns(target_row=pl.Series(found, dtype=pl.UInt32))

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield prompts with ``target_id``, ``document_id``, ``context`` and ``text``."""
        table = scan(self.targets, Targets).select(*_NAMES, *self.view.columns)
        height = table.select(pl.len()).collect().item()
        for start in range(0, height, TARGETS_AT_ONCE):
            targets = table.slice(start, TARGETS_AT_ONCE).collect()
            numbered = targets.with_columns(target_row=_rows_from(start))
            rows = self.of(numbered, [range(start, start + TARGETS_AT_ONCE)])
            yield rows.with_columns(unit_key=TARGET_KEY + pl.col("view_index"))

    def of(
        self,
        targets: pl.DataFrame,
        places: Iterable[range],
        whole: Collection[str] = ("context", "text"),
    ) -> pl.DataFrame:
        """Find the prompts of some targets, which stood in these rows of the targets table."""
        prompts = self._of(targets["target_id"], places)
        return self.view.resolve(prompts.filter(self._wanted), targets, whole)

    @property
    def _wanted(self) -> pl.Expr:
        return _is_among(self.among) & (pl.col("reason").is_null() | (not self.askable))

    def _of(self, names: pl.Series, places: Iterable[range]) -> pl.DataFrame:
        """Find all prompts of some targets; first where they are unless the corpus has grown."""
        own = pl.col("target_id").is_in(names.implode())
        wanted = pl.col("view_index") < self.view.n
        size = self.parts.block_targets
        blocks = sorted({row // size for place in places for row in (place[0], place[-1])})
        paths = [path for block in blocks for path in self._by_block.get(block, ())]
        near = scan(paths, Prompts).filter(own, wanted).collect()
        whole = near.filter(pl.col("view_index") == self.view.n - 1).height == names.len()
        if whole or len(paths) == len(self._paths):
            return near
        rows = self._index.find(names)[1]
        numbers = np.unique(np.searchsorted(self._starts, rows, side="right") - 1)
        found = [near.clear(), *(self._part(int(number)) for number in numbers)]
        return pl.concat(found).filter(own, wanted)

    @cached_property
    def _by_block(self) -> dict[int, list[Path]]:
        found: dict[int, list[Path]] = {}
        for path in self._paths:
            first = self.parts.targets_of(path).start
            found.setdefault(first // self.parts.block_targets, []).append(path)
        return found

    @cached_property
    def _paths(self) -> list[Path]:
        return self.parts.paths()

    @cached_property
    def _index(self) -> RowIndex:
        return RowIndex(scan(self._paths, Prompts).select("target_id"))

    @cached_property
    def _starts(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        sizes = [_height(path) for path in self._paths]
        return np.cumsum([0, *sizes[:-1]])

    @cached_property
    def _part(self) -> Callable[[int], pl.DataFrame]:
        return lru_cache(_PARTS_HELD)(lambda n: scan(self._paths[n], Prompts).collect())


def _is_among(names: pl.Series | None) -> pl.Expr:
    return pl.lit(value=True) if names is None else pl.col("target_id").is_in(names.implode())


def _numbered(targets: pl.LazyFrame) -> pl.LazyFrame:
    return targets.with_row_index("target_row")


def _rows_from(start: int) -> pl.Expr:
    return pl.int_range(start, start + pl.len(), dtype=pl.UInt32)


def _height(path: Path) -> int:
    return int(scan(path, Prompts).select(pl.len()).collect().item())
