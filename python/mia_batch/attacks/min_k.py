"""The least likely tokens of a text: Min-K% and Min-K%++."""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.terms import mean
from mia_batch.attacks.tokens import logprobs, lowest, of_texts, tokens

__all__ = ["MIN_K_ATTACKS"]

_PERCENTS = (5, 10, 20, 30, 40, 50, 60)


def _standardised() -> pl.Expr:
    """Log-probability less its mean over the vocabulary, by its standard deviation there."""
    logprob, expected, variance = tokens("logprob", "vocabulary_mean", "vocabulary_variance")
    return (logprob - expected) / pl.when(variance > 0).then(variance.sqrt())


MIN_K_ATTACKS = (
    *(
        of_texts(
            f"min_k_{k}",
            mean(lowest(logprobs(), k)),
            formula=f"mean of the lowest {k} % of logprob",
            source=(
                f"Shi et al. 2024 (arXiv:2310.16789), equation 1, k = {k}; at least one token, "
                "where the authors' code gives NaN"
            ),
        )
        for k in _PERCENTS
    ),
    *(
        of_texts(
            f"min_k_plus_plus_{k}",
            mean(lowest(_standardised(), k)),
            formula=(
                f"mean of the lowest {k} % of "
                "(logprob - vocabulary_mean) / sqrt(vocabulary_variance)"
            ),
            source=(
                f"Zhang et al. 2025 (arXiv:2404.02936), the Min-K%++ score, k = {k}; at least "
                "one token; a token that the model holds for the only one possible is left out"
            ),
            undefined=(
                "no token of the text has a log-probability with variance over the vocabulary"
            ),
        )
        for k in _PERCENTS
    ),
)
"""``min_k_5_v1`` to ``min_k_60_v1``, in nats, then ``min_k_plus_plus_5_v1`` to ``_60_v1``."""
