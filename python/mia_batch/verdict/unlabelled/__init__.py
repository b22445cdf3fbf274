"""Runs whose truth is not known: p-values among non-members, estimates, canaries."""

from mia_batch.verdict.unlabelled.exchangeability import Difference, difference, odds_factor
from mia_batch.verdict.unlabelled.foresight import foresee_power, length_difference
from mia_batch.verdict.unlabelled.plan import VerdictPlan
from mia_batch.verdict.unlabelled.power import Power
from mia_batch.verdict.unlabelled.second_draw import flip_rate, score_errors
from mia_batch.verdict.unlabelled.verdicts import verdicts

__all__ = [
    "Difference",
    "Power",
    "VerdictPlan",
    "difference",
    "flip_rate",
    "foresee_power",
    "length_difference",
    "odds_factor",
    "score_errors",
    "verdicts",
]
