"""What a run reports while it works; who listens decides how it is shown."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


class WorkerState(NamedTuple):
    """What one of several workers does."""

    name: str
    state: str
    blocks: int  # finished
    speed: float  # tokens a second since it was ready


class Observer:
    """Listens to a run; this one shows nothing, and subclasses override what they show."""

    def stage(self, sentence: str) -> None:
        """Learn that a stage begins or what it found, in one sentence."""

    def step(self, doing: str) -> None:
        """Learn what is done from now on, as in "cutting the texts"; seldom shown."""

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        """Learn that an engine begins: ``done`` of ``total`` units, as texts, exist."""

    def expects(self, tokens: int) -> None:
        """Learn how many tokens the work that has begun takes about, where that is known."""

    def worked(self, units: int, tokens: int) -> None:
        """Learn of units completed, and tokens decoded or scored, since the last call."""

    def answered(self, _label: str, units: int, tokens: int, _passes: int) -> None:
        """Learn what an executor reports of a task."""
        self.worked(units, tokens)

    def at_work(self, workers: Sequence[WorkerState]) -> None:
        """Learn what each of several workers does, about once a second."""

    def work_ended(self) -> None:
        """Learn that the engine's work ended, for whatever cause."""

    @contextmanager
    def progress(
        self, what: str, *, done: int, left: int, unit: str = "prompt", tokens: int = 0
    ) -> Iterator[None]:
        """Report the beginning and the end of an engine's work."""
        self.working(what, done=done, total=done + left, unit=unit)
        if tokens:
            self.expects(tokens)
        try:
            yield
        finally:
            self.work_ended()


class Pace:
    """How far work has come since it began, and how long the rest takes."""

    def __init__(self, n_left: int) -> None:
        self.n_expected_tokens = 0  # of all that is left; 0: unknown
        self.n_tokens = 0
        self.n_units = 0
        self._n_left = n_left
        self._n_tokens_at_unit = 0  # when the last unit was complete

    def add(self, units: int, tokens: int) -> None:
        self.n_units += units
        self.n_tokens += tokens
        if units:
            self._n_tokens_at_unit = self.n_tokens

    def compute_seconds_left(self, seconds: float) -> float | None:
        """Compute it from the seconds so far; None while nothing tells it."""
        # Many prompts are answered side by side: while none is complete their tokens
        # tell how far they are. Complete ones tell how many tokens one takes.
        share = self.n_units / self._n_left if self._n_left else 0.0
        n_expected = float(self.n_expected_tokens)
        if n_expected and share:
            n_expected = self._n_tokens_at_unit / share
        if share < 1 and self.n_tokens < n_expected:
            share = max(share, self.n_tokens / n_expected)
        return seconds * (1 - share) / share if share > 0 else None


class Clock(Observer):
    """Adds up the time that engines worked, without their start, and their tokens."""

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
    """Shows in a notebook what a run does, on one line that changes."""

    def __init__(self, display: Any) -> None:
        self._line: Any = display({"text/plain": ""}, raw=True, display_id=True)
        self._began = time.monotonic()
        self._last_update = self._began
        self._task = ""
        self._unit = ""
        self._n_total = 0
        self._n_done = 0
        self._pace = Pace(0)

    def stage(self, sentence: str) -> None:
        self._show(sentence)

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        self._began = time.monotonic()
        self._task = what
        self._unit = unit if total == 1 else f"{unit}s"
        self._n_total = total
        self._n_done = done
        self._pace = Pace(total - done)
        self._show(self._progress())

    def expects(self, tokens: int) -> None:
        self._pace.n_expected_tokens = tokens

    def worked(self, units: int, tokens: int) -> None:
        self._n_done += units
        self._pace.add(units, tokens)
        if time.monotonic() - self._last_update >= _SECONDS_BETWEEN_UPDATES:
            self._show(self._progress())

    def work_ended(self) -> None:
        self._show(self._progress())

    def _progress(self) -> str:
        text = f"{self._task}: {self._n_done:,} of {self._n_total:,} {self._unit}"
        if self._n_done == self._n_total:
            return text
        if self._pace.n_tokens:
            text += f", {self._pace.n_tokens:,} tokens"
        seconds = self._pace.compute_seconds_left(time.monotonic() - self._began)
        return text if seconds is None else f"{text}, about {seconds:,.0f} s left"

    def _show(self, line: str) -> None:
        """Show a line as plain text, which the notebook does not interpret."""
        self._last_update = time.monotonic()
        plain = "".join(char if char.isprintable() else "\ufffd" for char in line)
        self._line.update({"text/plain": plain}, raw=True)


def usual_observer() -> Observer:
    """Return who listens by default: in a notebook one line, elsewhere nobody."""
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return Observer()
    return NotebookObserver(ipython.display.display)
