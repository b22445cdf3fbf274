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
from mia_batch.attacks.apply import check_alone, find_unscored, score, score_by
from mia_batch.attacks.attack import (
    CHOICES,
    COMBINATION,
    Attack,
    find_attack_names,
    suggest_names,
)
from mia_batch.errors import MiaBatchError, SettingsError
from mia_batch.plugins import every
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
    "samia": ("SaMIA",),
}


def _of(*titles: str) -> tuple[str, ...]:
    return tuple(attack.name for title in titles for attack in _FAMILIES[title])


def _chosen(name: str) -> tuple[str, ...]:
    """List the attacks of a choice, whose members are named by themselves or by their family."""
    named = (_of(each) if each in _FAMILIES else (each,) for each in CHOICES[name])
    return tuple(chain.from_iterable(named))


SPV_PAPER, ONE_PASS = map(_chosen, ("spv", "one-pass"))
_BUILT_IN = {attack.name: attack for family in _FAMILIES.values() for attack in family}
_PAPERS = {"min-k": _chosen("min-k"), "spv": SPV_PAPER}
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
    check_alone(attack)
    known = _known().get(attack.name)
    if known is not None and _formula(known) != _formula(attack):
        raise SettingsError(
            f"attacks: there is another attack {attack.name!r}, with another formula; a"
            " name never changes meaning: give yours another"
        )
    if known is None:
        _REGISTERED[attack.name] = attack
    return attack


def load_file(path: str) -> tuple[str, ...]:
    """Run a Python file, register each `Attack` that is bound in it, and return their names.

    Raises `SettingsError`, which names file and line, if it cannot be run or binds
    none.
    """
    try:
        bound = runpy.run_path(path)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
        where = path if line is None else f"{path}, line {line}"
        if isinstance(error, MiaBatchError):
            raise SettingsError(f"{where}: {error}") from error
        raise SettingsError(
            f"attacks_from: {where} cannot be run ({type(error).__name__}: {error}); "
            "correct the file"
        ) from error
    found = [value for value in bound.values() if isinstance(value, Attack)]
    if not found:
        raise SettingsError(
            f"attacks_from: {path} binds no Attack to a name; define one at its top"
            " level"
        )
    written = Path(path).read_text("utf-8").splitlines()
    for attack in found:
        at = next((n for n, text in enumerate(written, 1) if attack.name in text), None)
        register(replace(attack, defined=path if at is None else f"{path}, line {at}"))
    return tuple(dict.fromkeys(attack.name for attack in found))


def names() -> tuple[str, ...]:
    """Names of every attack, family by family, those of plug-ins and the user's own last."""
    return tuple(_known())


def families() -> dict[str, tuple[Attack, ...]]:
    """Attacks that come with the package, by the title of their family."""
    return dict(_FAMILIES)


def _known() -> dict[str, Attack]:
    return _BUILT_IN | _plugged_in() | _REGISTERED


@cache
def _plugged_in() -> dict[str, Attack]:
    found: dict[str, Attack] = {}
    for place, attack in every("attacks"):
        if not isinstance(attack, Attack) or attack.name in {*_BUILT_IN, *found}:
            raise SettingsError(
                f"{place} is not an Attack with a name of its own; remove its package"
            )
        found[attack.name] = attack
    return found


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
    known = names()
    if not (found := find_attack_names(name, known)):
        near = f"; {near} " if (near := suggest_names(name, known)) else "; "
        raise SettingsError(
            f"there is no attack {name!r}{near}`mia-batch attacks` lists them"
        )
    return found


def get(name: str) -> Attack:
    """Look one attack up, by any name that `resolve` knows."""
    first, *others = resolve(name)
    if others:
        some = f"{first}, {others[0]}, ..."
        raise SettingsError(f"{name!r} stands for several attacks: name one of {some}")
    return _known()[first]


def defaults(
    preset: Preset, evidence: Collection[str] = ("samples",)
) -> tuple[str, ...]:
    """Names of the attacks that a preset computes where none are asked for, its main one first.

    ``default``: next tokens, and next words for where those cannot be asked;
    ``matched``: the length-matched family; ``samia``: the authors' over whole
    candidates; ``min-k``: those of the Min-K% paper; ``spv``: those of the SPV-MIA
    paper and later ones on tuned models. ``evidence`` says which kinds there will be;
    ``probe-logprobs`` are those at points alone, whatever the preset.
    """
    on_texts = [
        name for name, attack in _BUILT_IN.items() if attack.evidence == "logprobs"
    ]
    from_tokens = [name for name in on_texts if name not in _chosen("by-name")]
    if preset in _PAPERS:
        from_tokens = [*_of("Log-probabilities at points"), *_PAPERS[preset]]
    both = _of("Probes and loss") if preset == "default" and len(evidence) > 1 else ()
    alone = _of("Next tokens") if preset == "default" and len(evidence) == 1 else ()
    wanted = (*alone, *_of(*_SAMPLING.get(preset, ())), *from_tokens, *both)
    return tuple(name for name in wanted if get(name).kind in evidence)
