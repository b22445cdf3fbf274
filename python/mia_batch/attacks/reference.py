"""The model's loss on a text beside a reference model's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.tokens import (
    CANDIDATE_TEXT,
    REFERENCE_TEXT,
    SELF_PROMPT_TEXT,
    TEXT,
    average,
    cut_alike,
    first,
    logprobs,
    of_texts,
)

if TYPE_CHECKING:
    from mia_batch.attacks.attack import Attack

__all__ = ["REFERENCE_ATTACKS", "TUNED_REFERENCE_ATTACKS"]

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


def _difference(name: str, other: tuple[str, str], *, source: str, setting: str) -> Attack:
    """Loss per token under another model less the target's, where both read the same tokens."""
    model = other[0].replace("_", "-")
    return of_texts(
        name,
        pl.when(cut_alike(TEXT, other)).then(average(TEXT) - average(other)),
        formula=f"loss({model} model) - loss",
        source=source,
        undefined=f"{_UNSCORED}, or the two models' tokenizers cut it differently",
        reads=(TEXT, other),
        settings=(setting,),
    )


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
    _difference(
        "reference_token_difference",
        REFERENCE_TEXT,
        source=(
            "Shi et al. 2024 (arXiv:2310.16789), section 4.2 (Smaller Ref); difference of losses "
            "per token, as in the authors' code; LiRA-Base where the other is the base model"
        ),
        setting="reference_model",
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

_FU = "Fu et al. 2024 (arXiv:2311.06062)"

TUNED_REFERENCE_ATTACKS = (
    _difference(
        "self_prompt_difference",
        SELF_PROMPT_TEXT,
        source=(
            f"{_FU}, equations 4 and 7, table 6 (SPV-MIA without probabilistic variation); the "
            "other model is tuned on what the target says; difference of losses per token"
        ),
        setting="prompts_from",
    ),
    _difference(
        "candidate_difference",
        CANDIDATE_TEXT,
        source=(
            f"{_FU}, equation 4, appendix A.6.3 (LiRA-Candidate, after Mireshghallah et al. 2022); "
            "the other model is tuned on other texts of the same kind; difference of losses per "
            "token"
        ),
        setting="candidate_from",
    ),
)
"""``self_prompt_difference_v1``, ``candidate_difference_v1``."""
