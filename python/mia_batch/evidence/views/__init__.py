"""Views: other texts that a target is compared with, and what is known of its tokens."""

from mia_batch.evidence.views.frequencies import (
    Frequencies,
    count_frequencies,
    load_frequencies,
    save_frequencies,
)
from mia_batch.evidence.views.lowercase import lowercase
from mia_batch.evidence.views.masked import MaskedModel
from mia_batch.evidence.views.shots import Shots, choose_shots
from mia_batch.evidence.views.variants import Variants, neighbours, perturbations

__all__ = [
    "Frequencies",
    "MaskedModel",
    "Shots",
    "Variants",
    "choose_shots",
    "count_frequencies",
    "load_frequencies",
    "lowercase",
    "neighbours",
    "perturbations",
    "save_frequencies",
]
