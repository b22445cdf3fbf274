"""The losses of a text's tokens as a series: how many are low, and whether they fall."""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.terms import mean, total
from mia_batch.attacks.tokens import UNSCORED, logprobs, of_texts

__all__ = ["SERIES_ATTACKS"]

_CHANG = "Chang et al. 2024 (arXiv:2409.13745), CAMIA's signals"
_LIMITS = (1, 2, 3)  # nats, the authors' thresholds


def _share(low: pl.Expr) -> pl.Expr:
    return mean(low.cast(int))


def _losses() -> pl.Expr:
    return -logprobs().drop_nulls()


def _before() -> pl.Expr:
    """Mean of all losses before each one; null for the first."""
    losses = _losses()
    return (losses.cum_sum() / losses.cum_count()).shift()


def _slope() -> pl.Expr:
    """Slope of the least-squares line of the losses over 1, 2, 3, ..., in nats a token."""
    losses = _losses()
    n = losses.count()
    middle = losses.cum_count().cast(float) - (n + 1) / 2
    return pl.when(n > 1).then(total(middle * losses) / total(middle * middle))


SERIES_ATTACKS = (
    *(
        of_texts(
            f"losses_below_{limit}",
            _share(_losses() <= limit),
            formula=f"share of tokens with -logprob <= {limit}",
            source=f"{_CHANG}: counts below a threshold",
        )
        for limit in _LIMITS
    ),
    of_texts(
        "losses_below_mean",
        _share(_losses() <= mean(_losses())),
        formula="share of tokens with -logprob <= its mean over the text",
        source=f"{_CHANG}: counts below the mean",
    ),
    of_texts(
        "losses_below_previous",
        _share(_losses() <= _before()),
        formula="share of tokens with -logprob <= its mean over the tokens before",
        source=f"{_CHANG}: counts below the mean of what came before; the first token, which has "
        "nothing before it, does not count",
        undefined="no two tokens of the text have a log-probability",
    ),
    of_texts(
        "loss_slope",
        -_slope(),
        formula="minus the least-squares slope of -logprob over the position, in nats a token",
        source=f"{_CHANG}: the slope, negated, for losses of members fall faster; over all tokens, "
        "where the authors also take the first 600, 800 and 1,000",
        undefined=f"{UNSCORED}, or only one has",
    ),
)
"""``losses_below_1_v1`` .. ``_3_v1``, ``_mean_v1``, ``_previous_v1``, in [0, 1]; ``loss_slope_v1``.

Of CAMIA's signals approximate entropy and Lempel-Ziv complexity are left out: they compare pieces
of the series with each other, and no expression does.
"""
