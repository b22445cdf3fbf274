"""Probabilities of tokens beside how frequent the tokens are anyway."""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.terms import mean
from mia_batch.attacks.tokens import of_texts, tokens

__all__ = ["FREQUENCY_ATTACKS"]

_CAP = 0.01


def _dc_pdd() -> pl.Expr:
    """Mean of probability times log inverse frequency, capped, where a token comes first."""
    token_id, logprob, surprise = tokens("token_ids", "logprob", "log_inverse_frequency")
    capped = (logprob.exp() * surprise).clip(upper_bound=_CAP)
    scored_id = pl.when(capped.is_not_null()).then(token_id)
    return mean(capped.filter(scored_id.is_first_distinct()))


FREQUENCY_ATTACKS = (
    of_texts(
        "dc_pdd",
        _dc_pdd(),
        formula=f"mean over distinct tokens of min({_CAP}, exp(logprob) * log_inverse_frequency)",
        source=(
            "Zhang et al. 2024 (arXiv:2409.14781), cross-entropy of probabilities and "
            f"frequencies, a = {_CAP}; a token counts where it is scored first"
        ),
        undefined="no token of the text has both a log-probability and a frequency",
        settings=("frequencies_from",),
    ),
)
"""``dc_pdd_v1``."""
