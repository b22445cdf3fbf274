"""PETAL: log-probabilities guessed from how alike the model's word and the true word are."""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import among, mean

__all__ = ["PETAL_ATTACKS"]

_PROBE = ("target", "probe")
_SURROGATE = ("reference", "probe")
_LEAST = 1e-16  # similarity, of the authors' code
_SOURCE = (
    "He et al. 2025 (USENIX Security), with log similarity, its floor and a line per text as in "
    "the authors' code; words at the run's points instead of every token, embeddings of WordLlama "
    "instead of all-MiniLM-L6-v2"
)


def _log_similarity(view: tuple[str, str]) -> pl.Expr:
    """Log similarity of the first answer at each point; null in other rows."""
    first = among([view]) & (pl.col("sample_index") == 0)
    return pl.when(first).then(pl.col("similarity").clip(lower_bound=_LEAST).log())


def _petal() -> pl.Expr:
    """Fit a line on the surrogate, from similarity to log-probability, and apply it."""
    same = pl.all_horizontal(
        pl.col(name) == pl.col(name).shift(1) for name in ("model", "view", "view_index")
    )
    logprob = pl.when(same).then(pl.col("logprob").shift(1)).list.first().cast(pl.Float64)
    known = pl.when(logprob.is_not_null()).then(_log_similarity(_SURROGATE))
    logprob = pl.when(known.is_not_null()).then(logprob)
    spread = mean((known - mean(known)) ** 2)
    both = mean((known - mean(known)) * (logprob - mean(logprob)))
    slope = pl.when(known.max() > known.min()).then(both / spread).otherwise(0.0)
    return mean(logprob) + slope * (mean(_log_similarity(_PROBE)) - mean(known))


PETAL_ATTACKS = (
    Attack(
        name="petal_v1",
        expr=_petal(),
        formula="mean over points of a + b ln(similarity of the answer and the true word); a and b "
        "fitted on the reference model's answers and log-probabilities of the same text",
        source=f"{_SOURCE}; the surrogate is the reference model; where its similarities do not "
        "vary, b is 0",
        undefined="the text is too short for a point, or one of the two models gave no answer",
        reads=(_PROBE, _SURROGATE),
        logprobs=(_SURROGATE,),
        settings=("reference_model",),
    ),
    Attack(
        name="petal_similarity_v1",
        expr=mean(_log_similarity(_PROBE)),
        formula="mean over points of ln(similarity of the answer and the true word)",
        source=f"{_SOURCE}; without a surrogate, so with one line for all texts",
        undefined="the text is too short for a point",
        reads=(_PROBE,),
    ),
)
"""``petal_v1`` and what is left of it without a surrogate."""
