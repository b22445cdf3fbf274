"""How likely the model is to continue the prefix with the reference, token for token.

Source: Hayes et al. (2025), "Measuring memorization in language models via probabilistic
extraction", arXiv:2410.19482.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.tokens import EXTRACTION, logprobs, of_texts, scored, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.attacks.attack import Attack

__all__ = ["EXTRACTION_ATTACKS"]

_PAPER = "Hayes et al. 2025 (arXiv:2410.19482)"
_UNSCORED = "not every token of the reference has a log-probability"
_LEFT_OUT = f"{_UNSCORED}, or decoding leaves one of them out"
_UNLIKELY = -30.0
"""Below this log p, log(1 - p) is -p to the last bit."""


def _whole(term: pl.Expr, value: pl.Expr) -> pl.Expr:
    """Let a value stand where every token of the reference has its term."""
    return pl.when(term.len() > 0, term.null_count() == 0).then(value)


def _sum(term: pl.Expr) -> pl.Expr:
    """Sum of a term, added one by one; null where a token lacks it."""
    return _whole(term, term.implode().list.sum())


def _log_p_kept() -> pl.Expr:
    """Log of p_z among the tokens that the run's decoding keeps."""
    logprob, support_mass = tokens("logprob", "support_mass", view=EXTRACTION)
    return _sum(logprob - support_mass).clip(upper_bound=0.0)  # rounding may exceed certainty


def _greedy() -> pl.Expr:
    """1 where each token of the reference is the likeliest, else 0."""
    rank = scored("rank", EXTRACTION)
    return _whole(rank, (rank == 1).all().cast(pl.Float64))


def _log_samples(log_p: pl.Expr, p: float) -> pl.Expr:
    """Log of the samples needed to have the reference among them with probability p; 0 or more."""
    hazard = pl.when(log_p < _UNLIKELY).then(log_p).otherwise((-(-log_p.exp()).log1p()).log())
    return (log(-log(1 - p)) - hazard).clip(lower_bound=0.0)


def _attacks(
    name: str, log_p: pl.Expr, formula: str, scheme: str, undefined: str
) -> Iterator[Attack]:
    yield of_texts(
        name,
        log_p,
        formula=formula,
        source=f"{_PAPER}, log p_z {scheme}",
        undefined=undefined,
        reads=(EXTRACTION,),
    )
    for percent in (50, 90, 99):
        p = percent / 100
        yield of_texts(
            f"{name}_n_{percent}",
            -_log_samples(log_p, p),
            formula=f"-log(max(1, log(1 - {p}) / log(1 - exp({formula}))))",
            source=(
                f"{_PAPER}, (n, p)-discoverable extraction {scheme}; minus the log of the least "
                f"n, not rounded and at least 1, for p = {p}"
            ),
            undefined=undefined,
            reads=(EXTRACTION,),
        )


EXTRACTION_ATTACKS: tuple[Attack, ...] = (
    *_attacks(
        "extraction",
        _sum(logprobs(EXTRACTION)),
        "sum of logprob",
        "from the whole vocabulary",
        _UNSCORED,
    ),
    *_attacks(
        "extraction_top_k",
        _log_p_kept(),
        "sum of (logprob - support_mass)",
        "under the run's decoding",
        _LEFT_OUT,
    ),
    of_texts(
        "extraction_greedy",
        _greedy(),
        formula="1 where all tokens have rank = 1, else 0",
        source=f"{_PAPER}, discoverable extraction: 1 where greedy decoding does it",
        undefined=_UNSCORED,
        reads=(EXTRACTION,),
    ),
)
"""``extraction_v1``, ``extraction_n_50_v1`` ..., the same of ``extraction_top_k``, greedy last."""
