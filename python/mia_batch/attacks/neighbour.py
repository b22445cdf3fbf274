"""The model's loss on a text beside its loss on texts that differ in some words."""

from __future__ import annotations

import polars as pl

from mia_batch.attacks.terms import mean
from mia_batch.attacks.tokens import NEIGHBOUR, PERTURBATION, TEXT, average, averages, of_texts

__all__ = ["NEIGHBOUR_ATTACKS"]

_MATTERN = "Mattern et al. 2023 (arXiv:2305.18462)"
_UNSCORED = "no token of the text, or of any neighbour, has a log-probability"


def _detect_gpt() -> pl.Expr:
    """Log-probability above the mean of the perturbed texts', in their standard deviations."""
    perturbed = averages(PERTURBATION)
    differ = perturbed.min() < perturbed.max()  # rounding gives equal ones a spread, too
    return pl.when(differ).then((average(TEXT) - mean(perturbed)) / perturbed.std())


NEIGHBOUR_ATTACKS = (
    of_texts(
        "neighbour_difference",
        average(TEXT) - mean(averages(NEIGHBOUR)),
        formula="mean of loss(neighbour) - loss",
        source=f"{_MATTERN}, the neighbourhood comparison; difference of losses, per token",
        undefined=_UNSCORED,
        reads=(TEXT, NEIGHBOUR),
        settings=("masked_model|neighbours_column",),
    ),
    of_texts(
        "neighbour_ratio",
        -average(TEXT) / mean(averages(NEIGHBOUR)),
        formula="-loss / (mean of loss(neighbour))",
        source=f"{_MATTERN}, the same as minus the ratio of losses, per token",
        undefined=f"{_UNSCORED}, or the mean loss of the neighbours is 0",
        reads=(TEXT, NEIGHBOUR),
        settings=("masked_model|neighbours_column",),
    ),
    of_texts(
        "detect_gpt",
        _detect_gpt(),
        formula="(mean of loss(perturbation) - loss) / (standard deviation of loss(perturbation))",
        source=(
            "Mitchell et al. 2023 (arXiv:2301.11305), algorithm 1, normalised; log-probabilities "
            "per token, as in the authors' code"
        ),
        undefined=(
            "no token of the text has a log-probability, or fewer than two perturbed texts have "
            "different ones"
        ),
        reads=(TEXT, PERTURBATION),
        settings=("masked_model",),
    ),
)
"""``neighbour_difference_v1``, ``neighbour_ratio_v1``, ``detect_gpt_v1``."""
