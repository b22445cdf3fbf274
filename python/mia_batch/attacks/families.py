"""Families of attacks: short names, the names that papers use, and what each stands for.

``min-k++``, ``Min-K%++`` and ``min_k_plus_plus_20`` all name ``min_k_plus_plus_20_v1``.
"""

import re
import tomllib
from collections.abc import Collection
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple

_LEAST_ALIKE = 0.7  # of names, for a question whether one was meant


class Family(NamedTuple):
    """Attacks of one idea: `papers` names them elsewhere, most usual first."""

    # ``stems`` are beginnings of its members' names; the longest stem of all families decides.
    # ``default`` are the members that the family's name stands for, by default ``<stem>_v1``.

    name: str
    papers: tuple[str, ...]
    stems: tuple[str, ...]
    default: tuple[str, ...]


def _family(name: str, papers: str = "", stems: str = "", default: str = "") -> Family:
    own = stems or name.replace("-", "_")
    default = default or f"{own.partition(', ')[0]}_v1"
    return Family(name, *(tuple(filter(None, each.split(", "))) for each in (papers, own, default)))


_TABLE = tomllib.loads(Path(__file__).with_name("families.toml").read_text("utf-8"))
FAMILIES, CHOICES = tuple(_family(**each) for each in _TABLE["families"]), _TABLE["choices"]


def key_of(name: str) -> str:
    """Forgive case and punctuation, except that ``+`` makes another name."""
    return re.sub("[^a-z0-9]", "", name.lower().replace("+", "plus"))


@cache
def _by_key() -> dict[str, Family]:
    return {key_of(each): family for family in FAMILIES for each in (family.name, *family.papers)}


def family_of(attack: str) -> Family | None:
    """Find the family of an attack; None of one that did not come with the package."""
    stems = {stem: family for family in FAMILIES for stem in family.stems}
    fitting = max(filter(attack.startswith, stems), default="", key=len)
    return stems.get(fitting)


def members(family: Family, known: Collection[str]) -> list[str]:
    return [name for name in known if family_of(name) is family]


def meant(name: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the names of attacks that a name stands for; empty where nobody knows it."""
    if name in known:
        return (name,)
    if (family := _by_key().get(key := key_of(name))) is not None:
        return family.default
    alike = {key_of(each.rpartition("_v")[0]): each for each in known}
    alike |= {key_of(each): each for each in known}
    return (alike[key],) if key in alike else ()


def suggestion(name: str, known: Collection[str]) -> str:
    """Ask which attacks or family may have been meant; "" if nothing is near."""
    attacks = {key_of(each): each for each in known}
    near = get_close_matches(key_of(name), [*_by_key(), *attacks], n=1, cutoff=_LEAST_ALIKE)
    if not near:
        return ""
    if (family := _by_key().get(near[0])) is None:
        close = get_close_matches(key_of(name), attacks, n=3)
        return f"did you mean {' or '.join(attacks[each] for each in close)}?"
    first, *others = members(family, known)
    last = f" ... {others[-1]}" if others else ""
    return f"did you mean the family {family.name} ({first}{last})?"
