"""Attacks: named expressions that turn evidence into one score per target.

Those that come with the package, those of plug-ins, and the user's own are known by
name.
"""

import runpy
import traceback
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import polars as pl

from mia_batch.attacks import from_logprobs, from_samples
from mia_batch.attacks.apply import check_columns, find_unscored, score, score_by
from mia_batch.attacks.attack import (
    CHOICES,
    COMBINATION,
    Attack,
    find_attack_names,
    find_family,
    normalise_name,
    suggest_names,
)
from mia_batch.errors import MiaBatchError, SettingsError
from mia_batch.plugins import load_all
from mia_batch.targets import Preset

__all__ = [
    "Attack",
    "defaults",
    "families",
    "find_unscored",
    "get",
    "load_file",
    "names",
    "register",
    "resolve",
    "score",
    "score_by",
    "write_paper_name",
]

_LEARNED = Attack(
    name=COMBINATION,
    # No expression over rows of one target can be learned
    expr=pl.lit(None, pl.Float64),
    evidence="scores",
    reads=(),
    formula=(
        "mean of the log-odds that a logistic regression and gradient-boosted trees"
        " give to all other scores of the text; learned from texts of other groups"
        " alone"
    ),
    source=(
        "cross-fitted by group; valid p-values: Marandon et al. 2024 (arXiv:2208.06685)"
    ),
    undefined=(
        "no other attack has a score of the text, or there are texts of fewer than 10"
        " groups of each class to learn from"
    ),
)
_LEARNERS = {"Learned from all scores": (_LEARNED,)}
_FAMILIES = {**from_samples.FAMILIES, **from_logprobs.FAMILIES, **_LEARNERS}
_SAMPLING = {
    "default": ("Probes", "Probes of two models", "DE-COP"),
    "matched": ("SaMIA, length-matched",),
}


def _list_families(*titles: str) -> list[str]:
    names: list[str] = []
    for title in titles:
        names += [attack.name for attack in _FAMILIES[title]]
    return names


def _list_choice(name: str) -> tuple[str, ...]:
    """Return the attacks of a choice, which names attacks and families."""
    names: list[str] = []
    for member in CHOICES[name]:
        names += _list_families(member) if member in _FAMILIES else [member]
    return tuple(names)


SPV_PAPER = _list_choice("spv")
ONE_PASS = _list_choice("one-pass")
_BUILT_IN = {attack.name: attack for attack in chain.from_iterable(_FAMILIES.values())}
_PAPERS = {
    "samia": _list_choice("samia"),
    "min-k": _list_choice("min-k"),
    "spv": SPV_PAPER,
}
_REGISTERED: dict[str, Attack] = {}


def register(attack: Attack) -> Attack:
    """Let an attack be asked for by its name, like those that come with the package; return it.

    The same formula again changes nothing; raises `SettingsError` if the name is that
    of another, or if the expression cannot be computed of any evidence.

    >>> import polars as pl
    >>> longest = Attack(
    ...     name="longest_candidate_v1",
    ...     expr=pl.col("words_candidate").max(),
    ...     source="none",
    ...     undefined="there is no candidate",
    ... )
    >>> register(longest).name in names()
    True
    """
    check_columns(attack)
    present = _all_attacks().get(attack.name)
    if present is not None and _formula(present) != _formula(attack):
        raise SettingsError(
            f"attacks: there is another attack {attack.name!r}, with another formula; a"
            " name never changes meaning: give yours another"
        )
    if present is None:
        _REGISTERED[attack.name] = attack
    return attack


def load_file(path: str) -> tuple[str, ...]:
    """Run a Python file, register each `Attack` that is bound in it, and return their names.

    Raises `SettingsError`, which names file and line, if it cannot be run or binds
    none.
    """
    try:
        variables = runpy.run_path(path)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == path]
        line = lines[-1] if lines else None
        if isinstance(error, SyntaxError):
            line = error.lineno
        place = path if line is None else f"{path}, line {line}"
        if isinstance(error, MiaBatchError):
            raise SettingsError(f"{place}: {error}") from error
        raise SettingsError(
            f"attacks_from: {place} cannot be run ({type(error).__name__}: {error}); "
            "correct the file"
        ) from error
    attacks = [value for value in variables.values() if isinstance(value, Attack)]
    if not attacks:
        raise SettingsError(
            f"attacks_from: {path} binds no Attack to a name; define one at its top"
            " level"
        )
    code = Path(path).read_text("utf-8").splitlines()
    for attack in attacks:
        lines_with_name = (
            number for number, text in enumerate(code, 1) if attack.name in text
        )
        line = next(lines_with_name, None)
        place = path if line is None else f"{path}, line {line}"
        register(replace(attack, defined=place))
    return tuple(dict.fromkeys(attack.name for attack in attacks))


def names() -> tuple[str, ...]:
    """Return all attacks' names, family by family, those of plug-ins and the user's last."""
    return tuple(_all_attacks())


def families() -> dict[str, tuple[Attack, ...]]:
    """Return the attacks that come with the package, by the title of their family."""
    return dict(_FAMILIES)


def _all_attacks() -> dict[str, Attack]:
    return _BUILT_IN | _load_plugins() | _REGISTERED


@cache
def _load_plugins() -> dict[str, Attack]:
    attacks: dict[str, Attack] = {}
    for place, attack in load_all("attacks"):
        if not isinstance(attack, Attack) or attack.name in {*_BUILT_IN, *attacks}:
            raise SettingsError(
                f"{place} is not an Attack with a name of its own; remove its package"
            )
        attacks[attack.name] = attack
    return attacks


def _formula(attack: Attack) -> tuple[object, ...]:
    expr = attack.expr.meta.serialize()
    return expr, attack.evidence, attack.reads, attack.logprobs, attack.whole_candidates


def resolve(name: str) -> tuple[str, ...]:
    """Return the full names that a name stands for.

    Besides the names of attacks there are those of families (``min-k++``,
    `attacks.attack`) and of papers (``Min-K%++``); case and punctuation are forgiven,
    and a version may be left out; a pattern stands for all that fit. An unknown name
    raises `SettingsError` with the nearest one.

    >>> resolve("Min-K%++"), resolve("samia_matched")
    (('min_k_plus_plus_20_v1',), ('samia_matched_v1',))
    """
    all_names = names()
    matches = find_attack_names(name, all_names)
    if not matches:
        question = suggest_names(name, all_names)
        hint = f"{question} " if question else ""
        raise SettingsError(
            f"there is no attack {name!r}; {hint}`mia-batch attacks` lists them"
        )
    return matches


def write_paper_name(name: str) -> str:
    """Return what papers call an attack: that of its family, with what is its own in brackets.

    An attack of an unnamed family, a plug-in or the user keeps its name.

    >>> write_paper_name("min_k_20_v1"), write_paper_name("loss_v1")
    ('Min-K% Prob (20)', 'LOSS')
    """
    family = find_family(name) if name in _BUILT_IN else None
    if family is None or not family.paper_names:
        return name
    stem, _, version = name.rpartition("_v")
    longest = max(filter(name.startswith, family.stems), key=len)
    paper = normalise_name(family.paper_names[0])
    if len(family.stems) == 1 or paper.startswith(normalise_name(longest)):
        stem = stem.removeprefix(longest)
    details = stem.replace("_", " ").split()
    if version != "1":
        details.append(f"v{version}")
    return f"{family.paper_names[0]} ({' '.join(details)})".removesuffix(" ()")


def get(name: str) -> Attack:
    """Return one attack, by any name that `resolve` knows."""
    matches = resolve(name)
    if len(matches) > 1:
        first_two = ", ".join(matches[:2])
        raise SettingsError(
            f"{name!r} stands for several attacks: name one of {first_two}, ..."
        )
    return _all_attacks()[matches[0]]


def defaults(
    preset: Preset, evidence: Collection[str] = ("samples",)
) -> tuple[str, ...]:
    """Return the attacks that a preset computes where none are asked for, its main one first.

    ``default``: next tokens, and next words for where those cannot be asked;
    ``matched``: the length-matched family; ``samia``: those of the SaMIA paper, over
    whole candidates, and its baselines; ``min-k``: those of the Min-K% paper; ``spv``:
    those of the SPV-MIA paper and later ones on tuned models. ``evidence`` says which
    kinds there will be; ``probe-logprobs`` are those at points alone, whatever the
    preset.
    """
    candidates: list[str] = []
    if preset == "default" and len(evidence) == 1:
        candidates += _list_families("Next tokens")
    candidates += _list_families(*_SAMPLING.get(preset, ()))
    if preset in _PAPERS:
        candidates += _list_families("Log-probabilities at points")
        candidates += _PAPERS[preset]
    else:
        by_name = _list_choice("by-name")
        candidates += [
            name
            for name, attack in _BUILT_IN.items()
            if attack.evidence == "logprobs" and name not in by_name
        ]
    if preset == "default" and len(evidence) > 1:
        candidates += _list_families("Probes and loss")
    return tuple(name for name in candidates if get(name).kind in evidence)
