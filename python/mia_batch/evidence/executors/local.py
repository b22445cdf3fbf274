"""The executor of one process: a single source, an engine's process or an endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mia_batch.evidence.collect import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import polars as pl

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.collect import Task, Told
    from mia_batch.evidence.request import Source

__all__ = ["LocalExecutor"]


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Asks one source about all blocks."""

    source: Source

    def collect(
        self, task: Task, blocks: Iterable[Block], told: Told
    ) -> Iterator[tuple[Block, pl.DataFrame]]:
        """Yield blocks as they are complete; see `Collector.collect`."""
        return Collector(self.source, task, told).collect(blocks)
