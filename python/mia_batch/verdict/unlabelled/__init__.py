"""Runs whose truth is not known: p-values among non-members, estimates, canaries."""

from mia_batch.verdict.unlabelled.canary_file import (
    CanarySet,
    canary_documents,
    commitment,
    draw,
    read_canaries,
)
from mia_batch.verdict.unlabelled.exchangeability import Difference, difference, odds_factor
from mia_batch.verdict.unlabelled.foresight import foresee_power, length_difference
from mia_batch.verdict.unlabelled.monte_carlo import flips, simulated_flips, standard_errors
from mia_batch.verdict.unlabelled.plan import VerdictPlan
from mia_batch.verdict.unlabelled.power import Power
from mia_batch.verdict.unlabelled.verdicts import verdicts

__all__ = [
    "CanarySet",
    "Difference",
    "Power",
    "VerdictPlan",
    "canary_documents",
    "commitment",
    "difference",
    "draw",
    "flips",
    "foresee_power",
    "length_difference",
    "odds_factor",
    "read_canaries",
    "simulated_flips",
    "standard_errors",
    "verdicts",
]
