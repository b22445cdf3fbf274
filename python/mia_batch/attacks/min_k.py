"""The least likely tokens of a text: Min-K% and Min-K%++."""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import mean
from mia_batch.attacks.tokens import TEXT, UNSCORED, logprobs, lowest, tokens

__all__ = ["MIN_K_ATTACKS"]

_PERCENTS = (5, 10, 20, 30, 40, 50, 60)


def _min_k(percent: int) -> Attack:
    """Mean of the lowest log-probabilities, in nats; 0 or less."""
    return Attack(
        name=f"min_k_{percent}_v1",
        expr=mean(lowest(logprobs(), percent)),
        source=(
            f"Shi et al. 2024 (arXiv:2310.16789), equation 1, k = {percent}; at least one token, "
            "where the authors' code gives NaN"
        ),
        undefined=UNSCORED,
        evidence="logprobs",
        reads=(TEXT,),
    )


def _standardised() -> pl.Expr:
    """Log-probability less its mean over the vocabulary, by its standard deviation there."""
    logprob, expected, variance = tokens("logprob", "vocabulary_mean", "vocabulary_variance")
    return (logprob - expected) / pl.when(variance > 0).then(variance.sqrt())


def _min_k_plus_plus(percent: int) -> Attack:
    """Mean of the lowest standardised log-probabilities, in standard deviations."""
    return Attack(
        name=f"min_k_plus_plus_{percent}_v1",
        expr=mean(lowest(_standardised(), percent)),
        source=(
            f"Zhang et al. 2025 (arXiv:2404.02936), the Min-K%++ score, k = {percent}; at least "
            "one token; a token that the model holds for the only one possible is left out"
        ),
        undefined="no token of the text has a log-probability with variance over the vocabulary",
        evidence="logprobs",
        reads=(TEXT,),
    )


MIN_K_ATTACKS: tuple[Attack, ...] = (
    *map(_min_k, _PERCENTS),
    *map(_min_k_plus_plus, _PERCENTS),
)
"""``min_k_5_v1`` to ``min_k_60_v1``, then ``min_k_plus_plus_5_v1`` to ``_60_v1``."""
