"""The model's loss on a text beside a reference model's."""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.tokens import REFERENCE_TEXT, TEXT, average, first, logprobs, of_texts

__all__ = ["REFERENCE_ATTACKS"]

_CARLINI = "Carlini et al. 2021 (arXiv:2012.07805), section 5.2"
_BYTES = (
    "in nats per byte, so that tokenizers may differ; an unscored token counts as the mean of "
    "the scored ones"
)
_UNSCORED = "no token of the text has a log-probability under one of the two models"
_READS = (TEXT, REFERENCE_TEXT)
_SETTINGS = ("reference_model",)


def _rate(view: tuple[str, str]) -> pl.Expr:
    """Nats per byte of the text; 0 or less."""
    return average(view) * logprobs(view).len() / first("n_bytes", view)


def _cut_alike() -> pl.Expr:
    """Whether both models read the text as the same tokens."""
    cuts = pl.col("token_ids").filter(pl.col("view") == "text").drop_nulls()
    return (cuts.len() == 2) & (cuts.n_unique() == 1)


REFERENCE_ATTACKS = (
    of_texts(
        "reference_difference",
        _rate(TEXT) - _rate(REFERENCE_TEXT),
        formula="(loss(reference model) * its tokens - loss * tokens) / n_bytes",
        source=f"{_CARLINI}; difference of losses {_BYTES}",
        undefined=_UNSCORED,
        reads=_READS,
        settings=_SETTINGS,
    ),
    of_texts(
        "reference_token_difference",
        pl.when(_cut_alike()).then(average(TEXT) - average(REFERENCE_TEXT)),
        formula="loss(reference model) - loss",
        source=(
            "Shi et al. 2024 (arXiv:2310.16789), section 4.2 (Smaller Ref); difference of losses "
            "per token, as in the authors' code"
        ),
        undefined=f"{_UNSCORED}, or the two models' tokenizers cut it differently",
        reads=_READS,
        settings=_SETTINGS,
    ),
    of_texts(
        "reference_ratio",
        -_rate(TEXT) / _rate(REFERENCE_TEXT),
        formula="-(loss * tokens) / (loss(reference model) * its tokens)",
        source=f"{_CARLINI}; minus the ratio of losses {_BYTES}",
        undefined=f"{_UNSCORED}, or the reference model's loss is 0",
        reads=_READS,
        settings=_SETTINGS,
    ),
)
"""``reference_difference_v1``, ``reference_token_difference_v1``, ``reference_ratio_v1``."""
