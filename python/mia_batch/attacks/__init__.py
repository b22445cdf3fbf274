"""Attacks: named expressions that turn evidence into one score per target."""

from mia_batch.attacks.apply import find_unscored, score
from mia_batch.attacks.attack import Attack
from mia_batch.attacks.one_sample import score_by
from mia_batch.attacks.registry import defaults, get, names

__all__ = [
    "Attack",
    "defaults",
    "find_unscored",
    "get",
    "names",
    "score",
    "score_by",
]
