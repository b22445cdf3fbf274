"""How likely a text is beside texts around it, and the same under a reference model (SPV-MIA)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.terms import among, mean
from mia_batch.attacks.tokens import average, averages, of_texts

if TYPE_CHECKING:
    from mia_batch.attacks.attack import Attack

__all__ = ["SPV_ATTACKS", "SPV_UNCALIBRATED_ATTACKS"]

_FU = "Fu et al. 2024 (arXiv:2311.06062)"
_PROBABILITY = (
    "p = exp(mean log-probability of the tokens), as in the authors' code: the joint probability "
    "of equation 1 is 0 in floating point for all but short texts"
)
_VIEWS = {
    "semantic": ("paraphrase", "equations 5 and 10, algorithm 2", ("masked_model",)),
    "embedding": ("noise", "equations 5 and 10, algorithm 1", ()),
    "neighbour": ("neighbour", "equations 5 and 11", ("masked_model|neighbours_column",)),
}
_PAIRED = ("paraphrase", "noise")
_CALLED = {"neighbour": "neighbour", "perturbation": "perturbed text"}


def _mean_of_pairs(view: tuple[str, str]) -> pl.Expr:
    """Mean probability over the whole pairs there are: texts 2n and 2n + 1 of a view."""
    index = pl.col("view_index").filter(among([view]))
    p, index = averages(view).exp().sort_by(index), index.sort()
    whole = (index % 2 == 0) & (index.shift(-1) == index + 1)
    return mean(pl.when(whole).then((p + p.shift(-1)) / 2))


def _variation(model: str, view: str) -> pl.Expr:
    """Mean probability of the texts around a text less its own; lowest at a peak."""
    around = (model, view)
    p = _mean_of_pairs(around) if view in _PAIRED else mean(averages(around).exp())
    return p - average((model, "text")).exp()


def _attack(
    name: str, view: str, *, source: str, settings: tuple[str, ...], calibrated: bool
) -> Attack:
    models = ("target", "self_prompt") if calibrated else ("target",)
    score = -_variation("target", view)
    if calibrated:
        score += _variation("self_prompt", view)
    inner = f"p(text) - mean of p({view})"
    return of_texts(
        name,
        score,
        formula=f"{inner}, less the same of the self-prompt model" if calibrated else inner,
        source=f"{_FU}, {source}; {_PROBABILITY}",
        undefined=(
            "no token of the text, or of "
            + ("both texts of any pair" if view in _PAIRED else f"any {_CALLED[view]}")
            + ", has a log-probability"
            + (" under one of the two models" if calibrated else "")
        ),
        reads=tuple((model, each) for model in models for each in ("text", view)),
        settings=(*(("prompts_from",) if calibrated else ()), *settings),
    )


SPV_ATTACKS = (
    *(
        _attack(
            f"spv_{domain}",
            view,
            source=f"{paper}, negated so that members score high",
            settings=settings,
            calibrated=True,
        )
        for domain, (view, paper, settings) in _VIEWS.items()
    ),
    _attack(
        "spv_released",
        "perturbation",
        source=(
            "as the authors' code has equations 5 and 11: unpaired texts with spans of two words "
            "filled anew, negated; its 0.3 n / (2 + 2) spans are 15 percent of the words, as in "
            "DetectGPT, whose perturbed texts these are"
        ),
        settings=("masked_model",),
        calibrated=True,
    ),
)
"""``spv_semantic_v1``, ``spv_embedding_v1``, ``spv_neighbour_v1``, ``spv_released_v1``."""

SPV_UNCALIBRATED_ATTACKS = tuple(
    _attack(
        f"spv_{domain}_uncalibrated",
        view,
        source=f"{paper.replace('5 and ', '').replace('equations', 'equation')}, table 6 (without "
        "difficulty calibration), negated",
        settings=settings,
        calibrated=False,
    )
    for domain, (view, paper, settings) in _VIEWS.items()
)
"""``spv_semantic_uncalibrated_v1``, ``..._embedding_...``, ``..._neighbour_...``."""
