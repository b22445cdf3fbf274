"""What a run tells while it works; who listens decides how it is shown."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class WorkerState(NamedTuple):
    """What one of several workers does: blocks done, and tokens a second since it was ready."""

    name: str
    state: str
    blocks: int
    speed: float


class Observer:
    """Listens to a run; this one says nothing, and others override what they show."""

    def stage(self, sentence: str) -> None:
        """Learn that a stage begins or what it found, in one sentence."""

    def step(self, doing: str) -> None:
        """Learn what is done from now on, as in "cutting the texts"; mostly nothing is shown."""

    def working(self, what: str, *, done: int, total: int) -> None:
        """Learn that an engine begins to work: ``done`` of ``total`` texts are complete."""

    def worked(self, texts: int, tokens: int) -> None:
        """Learn of texts completed, and tokens decoded or scored, since the last call."""

    def answered(self, _label: str, texts: int, tokens: int, _passes: int) -> None:
        """Learn what an executor tells of a task."""
        self.worked(texts, tokens)

    def at_work(self, workers: Sequence[WorkerState]) -> None:
        """Learn what each of several workers does, about once a second."""

    def work_ended(self) -> None:
        """Learn that the engine's work ended, for whatever cause."""

    @contextmanager
    def progress(self, what: str, *, done: int, left: int) -> Iterator[None]:
        """Tell of the beginning and the end of an engine's work."""
        self.working(what, done=done, total=done + left)
        try:
            yield
        finally:
            self.work_ended()
