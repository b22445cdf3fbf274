"""What every executor promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import polars as pl

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.collect import Task, Told

__all__ = ["Executor"]

Kept = TypeVar("Kept")


class Executor(Protocol):
    """Works on blocks; nothing outside it knows where."""

    def collect(
        self,
        task: Task,
        blocks: Iterable[Block],
        told: Told,
        keep: Callable[[Block, pl.DataFrame], Kept],
    ) -> Iterator[tuple[Block, Kept]]:
        """Yield blocks as they are complete, with what ``keep`` returned for block and rows.

        ``keep`` may be called in another process or on another machine; it and ``task`` can be
        pickled. ``told`` is as in `Collector`.
        """
