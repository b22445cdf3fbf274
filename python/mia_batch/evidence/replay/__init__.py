"""Replay: continuations that were recorded anywhere, in place of an engine."""

from __future__ import annotations

from mia_batch.evidence.replay.columns import Key
from mia_batch.evidence.replay.recording import Counts, Recording

__all__ = ["Counts", "Key", "Recording"]
