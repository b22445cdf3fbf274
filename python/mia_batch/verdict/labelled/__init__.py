"""Runs whose truth is known for some texts: metrics of attacks, with intervals."""

from mia_batch.verdict.labelled.clusters import find_clusters
from mia_batch.verdict.labelled.difference import auc_difference
from mia_batch.verdict.labelled.evaluate import evaluate
from mia_batch.verdict.labelled.facts import FPR_BUDGETS
from mia_batch.verdict.labelled.intervals import Interval, auc_interval
from mia_batch.verdict.labelled.roc import roc_auc, roc_curve
from mia_batch.verdict.labelled.slices import find_slices

__all__ = [
    "FPR_BUDGETS",
    "Interval",
    "auc_difference",
    "auc_interval",
    "evaluate",
    "find_clusters",
    "find_slices",
    "roc_auc",
    "roc_curve",
]
