"""Attacks that are learned: their scores are made from those of other attacks."""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.attack import Attack

__all__ = ["COMBINATION", "LEARNED_ATTACKS"]

COMBINATION = "combination_v1"

LEARNED_ATTACKS = (
    Attack(
        name=COMBINATION,
        expr=pl.lit(None, pl.Float64),  # no expression over rows of one target can be learned
        evidence="scores",
        reads=(),
        formula=(
            "mean of the log-odds that a logistic regression and gradient-boosted trees give to "
            "all other scores of the text; learned from texts of other groups alone"
        ),
        source=(
            "learned in each run from texts of known membership, cross-fitted by group; that "
            "p-values stay valid: Marandon et al. 2024 (arXiv:2208.06685)"
        ),
        undefined=(
            "no other attack has a score of the text, or there are texts of fewer than 10 groups "
            "of each class to learn from"
        ),
    ),
)
"""``combination_v1``, in nats."""
