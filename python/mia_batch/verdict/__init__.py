"""What scores are worth: metrics of labelled runs, with intervals."""

from mia_batch.verdict.labelled import (
    FPR_BUDGETS,
    Difference,
    Interval,
    OperatingPoint,
    RocCurve,
    auc_difference,
    auc_interval,
    evaluate,
    roc_auc,
    roc_curve,
)

__all__ = [
    "FPR_BUDGETS",
    "Difference",
    "Interval",
    "OperatingPoint",
    "RocCurve",
    "auc_difference",
    "auc_interval",
    "evaluate",
    "roc_auc",
    "roc_curve",
]
