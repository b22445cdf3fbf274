"""What a run tells while it works; who listens decides how it is shown."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Observer", "SilentObserver"]


class Observer(Protocol):
    """Listens to a run."""

    def stage(self, sentence: str) -> None:
        """Learn that a stage begins or what it found, in one sentence."""

    def working(self, what: str, *, done: int, total: int) -> None:
        """Learn that an engine begins to work: ``done`` of ``total`` texts are complete."""

    def worked(self, texts: int, tokens: int) -> None:
        """Learn of texts completed, and tokens decoded or scored, since the last call."""

    def work_ended(self) -> None:
        """Learn that the engine's work ended, for whatever cause."""


class SilentObserver:
    """Says nothing."""

    def stage(self, sentence: str) -> None:
        """Ignore it."""

    def working(self, what: str, *, done: int, total: int) -> None:
        """Ignore it."""

    def worked(self, texts: int, tokens: int) -> None:
        """Ignore it."""

    def work_ended(self) -> None:
        """Ignore it."""
