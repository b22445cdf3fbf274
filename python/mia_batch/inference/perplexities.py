"""How sure models are of each text: perplexity and entropy, side by side."""

from __future__ import annotations

import polars as pl

from mia_batch.schemas import Perplexities

__all__ = ["perplexities"]

_NO_NUMBER = "no token has a log-probability, or the perplexity is too large for a number"
_NO_ENTROPY = "no attack of the run needs the whole distribution, or it cannot be had"
_NO_REFERENCE = "no reference model was asked for log-probabilities of the text"


def perplexities(own: pl.LazyFrame, reference: pl.LazyFrame) -> pl.LazyFrame:
    """Lay out the perplexities table from the rows of texts in the logprobs table.

    ``own`` are rows of the target model, ``reference`` those of the reference model, if any.
    """
    asked = own.select(
        "target_id",
        perplexity=_finite((-_mean("logprob")).exp()),
        entropy=_finite(-_mean("vocabulary_mean")),
        reason="reason",
    )
    control = reference.select(
        "target_id",
        reference_perplexity=_finite((-_mean("logprob")).exp()),
        reference_reason=pl.coalesce("reason", pl.lit(_NO_NUMBER)),
    )
    both = asked.join(control, on="target_id", how="left", maintain_order="left")
    return both.select(
        "target_id",
        "perplexity",
        "entropy",
        "reference_perplexity",
        reason=_reason("perplexity", "reason", _NO_NUMBER),
        entropy_reason=_reason("entropy", "reason", _NO_ENTROPY),
        reference_reason=_reason("reference_perplexity", "reference_reason", _NO_REFERENCE),
    ).cast(Perplexities.create_empty().schema)


def _mean(column: str) -> pl.Expr:
    """Mean over the tokens that have a number; null without any."""
    numbers = pl.col(column).cast(pl.List(pl.Float64)).list
    n = numbers.len() - numbers.count_matches(None)
    return pl.when(n > 0).then(numbers.sum() / n)


def _finite(value: pl.Expr) -> pl.Expr:
    return pl.when(value.is_finite()).then(value)


def _reason(value: str, given: str, otherwise: str) -> pl.Expr:
    return pl.when(pl.col(value).is_null()).then(pl.coalesce(given, pl.lit(otherwise)))
