"""Shows a run while it works: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from mia_batch.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType

    from mia_batch.observer import WorkerState

__all__ = ["ConsoleObserver"]

_SECONDS_BETWEEN_LINES = 5.0
_WIDTH_OF_ALL = 80


class ConsoleObserver(Observer):
    """Tells each stage and how long it took, and the progress of engines.

    A terminal gets a live bar, anything else a line every few seconds.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage_began: float | None = None
        self._progress: _Bar | _Lines | None = None

    def stage(self, sentence: str) -> None:
        """Say that the stage before ended, and what comes."""
        self.ended()
        self._console.print(sentence, highlight=False, markup=False)
        self._stage_began = time.monotonic()

    def ended(self) -> None:
        """Say how long the latest stage took."""
        if self._stage_began is not None:
            seconds = time.monotonic() - self._stage_began
            if seconds >= 0.1:
                self._console.print(f"  took {seconds:.1f} s", style="dim", highlight=False)
            self._stage_began = None

    def working(self, what: str, *, done: int, total: int) -> None:
        """Begin to show progress."""
        self.ended()
        self._stage_began = time.monotonic()
        shown = _Bar if self._console.is_terminal else _Lines
        self._progress = shown(self._console, what, done, total)

    def worked(self, texts: int, tokens: int) -> None:
        """Show progress."""
        if self._progress is not None:
            self._progress.advance(texts, tokens)

    def at_work(self, workers: Sequence[WorkerState]) -> None:
        """Show on a terminal what each of several workers does."""
        if isinstance(self._progress, _Bar):
            self._progress.show(workers)

    def work_ended(self) -> None:
        """End the progress."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None


class _WithWorkers(Progress):
    """A progress bar, and below it a table of workers."""

    workers: Sequence[WorkerState] = ()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if len(self.workers) > 1:
            table = Table("worker", "does", box=None)
            for name in ("blocks done", "tokens/s"):
                table.add_column(name, justify="right")
            for each in self.workers:
                table.add_row(each.name, each.state, f"{each.blocks:,}", f"{each.speed:,.0f}")
            yield table


class _Bar:
    """A live progress bar."""

    def __init__(self, console: Console, what: str, done: int, total: int) -> None:
        self._began = time.monotonic()
        self._tokens = 0
        columns = [
            MofNCompleteColumn(),
            TextColumn("texts,"),
            TimeRemainingColumn(),
            TextColumn("left"),
        ]
        if console.width >= _WIDTH_OF_ALL:
            speed = TextColumn("{task.fields[speed]:,.0f} tokens/s,")
            columns = [TextColumn(what), BarColumn(), *columns[:2], speed, *columns[2:]]
        self._bar = _WithWorkers(*columns, console=console)
        self._task = self._bar.add_task(what, total=total, completed=done, speed=0.0)
        self._bar.start()

    def advance(self, texts: int, tokens: int) -> None:
        self._tokens += tokens
        speed = self._tokens / max(time.monotonic() - self._began, 1e-9)
        self._bar.update(self._task, advance=texts, speed=speed)

    def show(self, workers: Sequence[WorkerState]) -> None:
        self._bar.workers = workers

    def close(self) -> None:
        self._bar.stop()


class _Lines:
    """A plain line every few seconds, and one at the end."""

    def __init__(self, console: Console, what: str, done: int, total: int) -> None:
        self._console = console
        self._what = what
        self._began = self._told = time.monotonic()
        self._before = self._done = done
        self._total = total
        self._tokens = 0

    def advance(self, texts: int, tokens: int) -> None:
        self._done += texts
        self._tokens += tokens
        if time.monotonic() - self._told >= _SECONDS_BETWEEN_LINES:
            self._tell()

    def close(self) -> None:
        self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        seconds = self._told - self._began
        new = self._done - self._before
        left = (
            f"{timedelta(seconds=round(seconds * (self._total - self._done) / new))}"
            if new
            else "?"
        )
        self._console.print(
            f"{self._what}: {self._done:,} of {self._total:,} prompts, "
            f"{self._tokens / max(seconds, 1e-9):,.0f} tokens/s, {left} left",
            highlight=False,
            soft_wrap=True,
        )
