"""How likely the model is to continue the prefix with the reference, token for token.

Source: Hayes et al. (2025), "Measuring memorization in language models via probabilistic
extraction", arXiv:2410.19482.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.tokens import EXTRACTION, logprobs, scored, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def _attacks(name: str, log_p: pl.Expr, scheme: str, undefined: str) -> Iterator[Attack]:
    yield Attack(
        name=f"{name}_v1",
        expr=log_p,
        source=f"{_PAPER}, log p_z {scheme}",
        undefined=undefined,
        evidence="logprobs",
        reads=(EXTRACTION,),
    )
    for percent in (50, 90, 99):
        yield Attack(
            name=f"{name}_n_{percent}_v1",
            expr=-_log_samples(log_p, percent / 100),
            source=(
                f"{_PAPER}, (n, p)-discoverable extraction {scheme}; minus the log of the least "
                f"n, not rounded and at least 1, for p = {percent / 100}"
            ),
            undefined=undefined,
            evidence="logprobs",
            reads=(EXTRACTION,),
        )


EXTRACTION_ATTACKS: tuple[Attack, ...] = (
    *_attacks("extraction", _sum(logprobs(EXTRACTION)), "from the whole vocabulary", _UNSCORED),
    *_attacks("extraction_top_k", _log_p_kept(), "under the run's decoding", _LEFT_OUT),
    Attack(
        name="extraction_greedy_v1",
        expr=_greedy(),
        source=f"{_PAPER}, discoverable extraction: 1 where greedy decoding does it",
        undefined=_UNSCORED,
        evidence="logprobs",
        reads=(EXTRACTION,),
    ),
)
"""``extraction_v1``, ``extraction_n_50_v1`` ..., the same of ``extraction_top_k``, greedy last."""
