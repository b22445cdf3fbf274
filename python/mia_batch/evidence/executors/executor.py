"""What every executor promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import polars as pl

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.collect import Task, Told

__all__ = ["Executor"]


class Executor(Protocol):
    """Works on blocks; nothing outside it knows where."""

    def collect(
        self, task: Task, blocks: Iterable[Block], told: Told
    ) -> Iterator[tuple[Block, pl.DataFrame]]:
        """Yield blocks as they are complete, with their rows; ``told`` is as in `Collector`."""
