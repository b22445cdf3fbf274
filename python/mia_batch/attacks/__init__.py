"""Attacks: named expressions that turn evidence into one score per target."""

from mia_batch.attacks.apply import score
from mia_batch.attacks.attack import Attack
from mia_batch.attacks.one_sample import score_by
from mia_batch.attacks.registry import defaults, families, get, load_file, names, register
from mia_batch.attacks.unscored import find_unscored

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
