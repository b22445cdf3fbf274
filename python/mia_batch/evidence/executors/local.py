"""The executor of one process: a single source, an engine's process or an endpoint."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mia_batch.errors import EngineError
from mia_batch.evidence.collect import Collector
from mia_batch.evidence.executors.pieces import Pieces, Refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import polars as pl

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.collect import Task, Told
    from mia_batch.evidence.request import Source

__all__ = ["LocalExecutor"]

Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Asks one source about all blocks.

    With ``restart`` an engine that ends in the middle is started again, and ``say`` is told; texts
    that end it are found, and their rows have the reason.
    """

    source: Source
    restart: Callable[[], None] | None = None
    say: Callable[[str], None] = lambda _: None

    def collect(
        self,
        task: Task,
        blocks: Iterable[Block | None],
        told: Told,
        keep: Callable[[Block, pl.DataFrame], Kept],
    ) -> Iterator[tuple[Block, Kept]]:
        """Yield blocks as they are complete; see `Executor`. None among them is none for now."""
        pieces = Pieces(blocks)
        while pieces.left:
            progress = _Progress(told)
            try:
                asked = Collector(self.source, task, progress.told).collect(pieces.hand_out())
                yield from _kept(progress.complete(asked), pieces, keep)
            except EngineError as error:
                if self.restart is None:
                    raise
                progress.take_back()
                refused = pieces.failed(error)
                self.restart()
                self.say(f"the engine has been started again, because it ended: {error}")
                yield from _kept(Collector(Refusals(), task, told).collect(refused), pieces, keep)


def _kept(
    found: Iterable[tuple[Block, pl.DataFrame]],
    pieces: Pieces,
    keep: Callable[[Block, pl.DataFrame], Kept],
) -> Iterator[tuple[Block, Kept]]:
    """Keep the rows of whole blocks."""
    for block, rows in found:
        for whole, whole_rows in pieces.done(block, rows):
            yield whole, keep(whole, whole_rows)


class _Progress:
    """What was told of blocks that are not complete, to be taken back where they are lost."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._units: Counter[str] = Counter()

    def told(self, label: str, units: int, tokens: int, passes: int) -> None:
        self._units[label] += units
        self._told(label, units, tokens, passes)

    def complete(
        self, found: Iterable[tuple[Block, pl.DataFrame]]
    ) -> Iterator[tuple[Block, pl.DataFrame]]:
        for block, rows in found:
            self._units[block.label] -= block.units.height
            yield block, rows

    def take_back(self) -> None:
        for label, units in self._units.items():
            self._told(label, -units, 0, 0)
