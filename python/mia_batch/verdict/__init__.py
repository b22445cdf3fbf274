"""What scores are worth: metrics of labelled runs, with intervals."""

from mia_batch.verdict.evaluate import FPR_BUDGETS, evaluate
from mia_batch.verdict.intervals import Interval, auc_interval
from mia_batch.verdict.roc import OperatingPoint, RocCurve, roc_auc, roc_curve

__all__ = [
    "FPR_BUDGETS",
    "Interval",
    "OperatingPoint",
    "RocCurve",
    "auc_interval",
    "evaluate",
    "roc_auc",
    "roc_curve",
]
