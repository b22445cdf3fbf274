"""What scores are worth: with labels, without them, and what can be told without the model."""

from mia_batch.verdict.blind import BlindBaseline, blind_baseline
from mia_batch.verdict.clusters import cluster_name
from mia_batch.verdict.conclusions import conclude_labelled, conclude_unlabelled
from mia_batch.verdict.copies import Copies, find_copies
from mia_batch.verdict.duplicates import NearDuplicates, near_duplicates
from mia_batch.verdict.labelled import FPR_BUDGETS, evaluate, find_slices, roc_auc, roc_curve
from mia_batch.verdict.measure import Measured, measure
from mia_batch.verdict.unlabelled import (
    VerdictPlan,
    flip_rate,
    foresee_power,
    language_difference,
    length_difference,
    score_errors,
    verdicts,
)
from mia_batch.verdict.unscored import UnevenScores, find_uneven_scores

__all__ = [
    "FPR_BUDGETS",
    "BlindBaseline",
    "Copies",
    "Measured",
    "NearDuplicates",
    "UnevenScores",
    "VerdictPlan",
    "blind_baseline",
    "cluster_name",
    "conclude_labelled",
    "conclude_unlabelled",
    "evaluate",
    "find_copies",
    "find_slices",
    "find_uneven_scores",
    "flip_rate",
    "foresee_power",
    "language_difference",
    "length_difference",
    "measure",
    "near_duplicates",
    "roc_auc",
    "roc_curve",
    "score_errors",
    "verdicts",
]
