"""What a run tells while it works; who listens decides how it is shown."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


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

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        """Learn that an engine begins to work: ``done`` of ``total`` units, as texts, are there."""

    def worked(self, units: int, tokens: int) -> None:
        """Learn of units completed, and tokens decoded or scored, since the last call."""

    def answered(self, _label: str, units: int, tokens: int, _passes: int) -> None:
        """Learn what an executor tells of a task."""
        self.worked(units, tokens)

    def at_work(self, workers: Sequence[WorkerState]) -> None:
        """Learn what each of several workers does, about once a second."""

    def work_ended(self) -> None:
        """Learn that the engine's work ended, for whatever cause."""

    @contextmanager
    def progress(
        self, what: str, *, done: int, left: int, unit: str = "prompt"
    ) -> Iterator[None]:
        """Tell of the beginning and the end of an engine's work."""
        self.working(what, done=done, total=done + left, unit=unit)
        try:
            yield
        finally:
            self.work_ended()


class Clock(Observer):
    """Adds up how long engines worked, without their start, and at how many tokens."""

    seconds, tokens = 0.0, 0

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        del what, done, total, unit
        self.seconds -= time.monotonic()

    def worked(self, units: int, tokens: int) -> None:
        del units
        self.tokens += tokens

    def work_ended(self) -> None:
        self.seconds += time.monotonic()


_SECONDS_BETWEEN_UPDATES = 0.5


class NotebookObserver(Observer):
    """Shows in a notebook what a run does, on one line that changes and stays one line."""

    def __init__(self, display: Any) -> None:
        self._line: Any = display({"text/plain": ""}, raw=True, display_id=True)
        self._began = self._shown = time.monotonic()
        self._what, self._unit, self._total, self._done, self._new = "", "", 0, 0, 0
        self._tokens = 0

    def stage(self, sentence: str) -> None:
        self._show(sentence)

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        self._began = time.monotonic()
        self._what, self._total, self._done, self._new = what, total, done, 0
        self._tokens = 0
        self._unit = unit if total == 1 else f"{unit}s"
        self._show(self._progress())

    def worked(self, units: int, tokens: int) -> None:
        self._done += units
        self._new += units
        self._tokens += tokens
        if time.monotonic() - self._shown >= _SECONDS_BETWEEN_UPDATES:
            self._show(self._progress())

    def work_ended(self) -> None:
        self._show(self._progress())

    def _progress(self) -> str:
        text = f"{self._what}: {self._done:,} of {self._total:,} {self._unit}"
        if self._done == self._total:
            return text
        text += f", {self._tokens:,} tokens" if self._tokens else ""
        if not self._new:
            return text
        each = (time.monotonic() - self._began) / self._new
        return f"{text}, about {each * (self._total - self._done):,.0f} s left"

    def _show(self, line: str) -> None:
        """Show a line whose letters a notebook's frontend takes for nothing but text."""
        self._shown = time.monotonic()
        plain = "".join(each if each.isprintable() else "\ufffd" for each in line)
        self._line.update({"text/plain": plain}, raw=True)


def usual_observer() -> Observer:
    """Return who listens where the caller names nobody: in a notebook one line, else silence."""
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return Observer()
    return NotebookObserver(ipython.display.display)
