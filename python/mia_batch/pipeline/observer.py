"""What a run tells while it works; who listens decides how it is shown."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Observer", "SilentObserver"]


class Observer(Protocol):
    """Listens to a run."""

    def stage(self, sentence: str) -> None:
        """Learn that a stage begins or what it found, in one sentence."""

    def sampling(self, *, done: int, total: int) -> None:
        """Learn that sampling begins: ``done`` of ``total`` targets have all their samples."""

    def sampled(self, targets: int, tokens: int) -> None:
        """Learn of targets completed and tokens decoded since the last call."""

    def sampling_ended(self) -> None:
        """Learn that sampling ended, for whatever cause."""


class SilentObserver:
    """Says nothing."""

    def stage(self, sentence: str) -> None:
        """Ignore it."""

    def sampling(self, *, done: int, total: int) -> None:
        """Ignore it."""

    def sampled(self, targets: int, tokens: int) -> None:
        """Ignore it."""

    def sampling_ended(self) -> None:
        """Ignore it."""
