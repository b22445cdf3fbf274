"""The stages composed in order."""

from __future__ import annotations

from mia_batch.pipeline.auditing import audit, run_audit
from mia_batch.pipeline.observer import Observer, SilentObserver
from mia_batch.pipeline.planning import Plan, plan
from mia_batch.pipeline.run import Run

__all__ = ["Observer", "Plan", "Run", "SilentObserver", "audit", "plan", "run_audit"]
