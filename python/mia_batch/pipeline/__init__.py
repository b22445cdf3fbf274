"""Whole audits: the stages in order, a run folder that can be gone on with, and scoring anew."""

from mia_batch.pipeline.audits import audit, rescore, run_audit
from mia_batch.pipeline.dry_run import plan
from mia_batch.pipeline.results import compare
from mia_batch.pipeline.run import Run

__all__ = ["Run", "audit", "compare", "plan", "rescore", "run_audit"]
