"""Attacks: named expressions that turn evidence into one score per target."""

from mia_batch.attacks.apply import find_unscored, score, score_by
from mia_batch.attacks.attack import Attack
from mia_batch.attacks.registry import defaults, families, get, load_file, names, register

__all__ = [
    "Attack",
    "defaults",
    "families",
    "find_unscored",
    "get",
    "load_file",
    "names",
    "register",
    "score",
    "score_by",
]
