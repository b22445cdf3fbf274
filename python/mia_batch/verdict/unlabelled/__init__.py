"""Runs whose truth is not known: p-values among non-members, estimates, canaries."""

from mia_batch.verdict.unlabelled.foresight import foresee_power, length_difference
from mia_batch.verdict.unlabelled.languages import language_difference
from mia_batch.verdict.unlabelled.plan import VerdictPlan
from mia_batch.verdict.unlabelled.second_draw import flip_rate, score_errors
from mia_batch.verdict.unlabelled.verdicts import verdicts

__all__ = [
    "VerdictPlan",
    "flip_rate",
    "foresee_power",
    "language_difference",
    "length_difference",
    "score_errors",
    "verdicts",
]
