"""Attacks by name: those that come with the package, those of plug-ins, and the user's own."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Collection
from difflib import get_close_matches
from functools import cache

from mia_batch.attacks import from_logprobs, from_references, from_samples
from mia_batch.attacks.attack import LEARNED_ATTACKS, Attack
from mia_batch.errors import SettingsError
from mia_batch.plugins import every
from mia_batch.targets import Preset

_FAMILIES = {
    "SaMIA, length-matched": from_samples.MATCHED_ATTACKS,
    "SaMIA": from_samples.SAMIA_ATTACKS,
    "ROUGE": from_samples.ROUGE_ATTACKS,
    "Probes": from_samples.PROBE_ATTACKS,
    "Probes of two models": from_samples.REFERENCE_PROBE_ATTACKS,
    "Probes, drawn answers": from_samples.LOG_HIT_RATE_ATTACKS,
    "SaMIA, weighed by rarity": from_samples.MATCHED_RARITY_ATTACKS,
    "PETAL": from_samples.PETAL_ATTACKS,
    "DE-COP": from_samples.CHOICE_ATTACKS,
    "Probes and loss": from_samples.COMBINED_ATTACKS,
    "N-gram coverage": from_samples.COVERAGE_ATTACKS,
    "Verbatim blocks": from_samples.VERBATIM_ATTACKS,
    "Log-probabilities at points": from_samples.PROBE_LOGPROB_ATTACKS,
    "DE-COP from log-probabilities": from_samples.CHOICE_LOGPROB_ATTACKS,
    "Loss": from_logprobs.LOSS_ATTACKS,
    "Min-K% and Min-K%++": from_logprobs.MIN_K_ATTACKS,
    "Reference models": from_references.REFERENCE_ATTACKS,
    "Base models, token by token": from_references.BASE_MODEL_ATTACKS,
    "Tuned reference models": from_references.TUNED_REFERENCE_ATTACKS,
    "SPV-MIA": from_references.SPV_ATTACKS,
    "SPV-MIA without a reference model": from_references.SPV_UNCALIBRATED_ATTACKS,
    "Shadow models: LiRA and RMIA": from_references.SHADOW_ATTACKS,
    "Shots before the text": from_references.PREFIX_SHOT_ATTACKS,
    "Neighbours": from_references.NEIGHBOUR_ATTACKS,
    "Token frequencies": from_samples.FREQUENCY_ATTACKS,
    "Extraction": from_samples.EXTRACTION_ATTACKS,
    "Ranks and entropy": from_samples.RANK_ATTACKS,
    "Series of losses": from_logprobs.SERIES_ATTACKS,
    "Shapes of series of losses": from_logprobs.SHAPE_ATTACKS,
    "Learned from all scores": LEARNED_ATTACKS,
}
_SAMPLING = {
    "default": ("Probes", "Probes of two models", "DE-COP"),
    "matched": ("SaMIA, length-matched",),
    "samia": ("SaMIA",),
}


def _of(*titles: str) -> tuple[Attack, ...]:
    return tuple(attack for title in titles for attack in _FAMILIES[title])


MIN_K_PAPER = (
    *(f"min_k_{percent}_v1" for percent in (20, 5, 10, 30, 40, 50, 60)),
    *("loss_v1", "perplexity_v1", "loss_zlib_v1", "lowercase_ratio_v1"),
    *("reference_token_difference_v1", "neighbour_difference_v1"),
)
"""What the Min-K% paper compares (Shi et al. 2024, table 1), with every k of the authors' code."""
_TUNED = _of("SPV-MIA", "SPV-MIA without a reference model", "Tuned reference models")
_LATER = _of("Base models, token by token", "Shadow models: LiRA and RMIA")
SPV_PAPER = (
    *(attack.name for attack in _TUNED),
    *("reference_token_difference_v1", "loss_v1", "neighbour_difference_v1", "detect_gpt_v1"),
    *("min_k_20_v1", "min_k_plus_plus_20_v1"),
    *(attack.name for attack in _LATER),
)
"""What the SPV-MIA paper compares (Fu et al. 2024, tables 1, 5 and 6), and later attacks on tuned
models."""

_BUILT_IN = {attack.name: attack for family in _FAMILIES.values() for attack in family}
_BY_NAME = {
    attack.name for attack in _of("SPV-MIA without a reference model", "Shapes of series of losses")
}
"""Not among the defaults: they take many passes and no setting of their own, or have no sign."""
_PAPERS = {"min-k": MIN_K_PAPER, "spv": SPV_PAPER}
_REGISTERED: dict[str, Attack] = {}


def register(attack: Attack) -> Attack:
    """Let an attack be asked for by its name, like those that come with the package.

    Parameters
    ----------
    attack
        The attack. Registering the same formula again changes nothing.

    Returns
    -------
    Attack
        The same.

    Raises
    ------
    SettingsError
        If its name is that of another attack.

    Examples
    --------
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
    known = _known().get(attack.name)
    if known is not None and _formula(known) != _formula(attack):
        raise SettingsError(
            f"attacks: there is another attack {attack.name!r}, with another formula; a name never "
            "changes meaning: give yours another"
        )
    if known is None:
        _REGISTERED[attack.name] = attack
    return attack


def load_file(path: str) -> tuple[str, ...]:
    """Run a Python file, register each `Attack` that is bound in it, and return their names.

    Raises `SettingsError`, which names file and line, if it cannot be run or binds none.
    """
    try:
        bound = runpy.run_path(path)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == path
        ]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
        where = path if line is None else f"{path}, line {line}"
        raise SettingsError(
            f"setting 'attacks_from': {where} cannot be run ({type(error).__name__}: {error}); "
            "correct the file"
        ) from error
    found = [value for value in bound.values() if isinstance(value, Attack)]
    if not found:
        raise SettingsError(
            f"setting 'attacks_from': {path} binds no Attack to a name; define one at its top level"
        )
    return tuple(dict.fromkeys(register(attack).name for attack in found))


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


def get(name: str) -> Attack:
    """Look an attack up; `SettingsError` with the nearest names if there is none."""
    known = _known()
    if name not in known:
        near = get_close_matches(name, known) or ["samia_matched_v1", "samia_v1"]
        raise SettingsError(
            f"attacks: there is no attack {name!r}; the nearest names are "
            f"{', '.join(near)}, and `mia-batch attacks` lists all"
        )
    return known[name]


def defaults(preset: Preset, evidence: Collection[str] = ("samples",)) -> tuple[str, ...]:
    """Names of the attacks that a preset computes where none are asked for, its main one first.

    ``default``: probes; ``matched``: the length-matched family; ``samia``: the authors' over whole
    candidates; ``min-k``: those of the Min-K% paper; ``spv``: those of the SPV-MIA paper and
    later ones on tuned models. ``evidence`` says which kinds there will be; ``probe-logprobs`` are
    those at points alone, whatever the preset.
    """
    if preset in _PAPERS:
        points = _of("Log-probabilities at points")
        of_tokens = [*points, *map(get, _PAPERS[preset])]
    else:
        of_tokens = [
            attack
            for attack in _BUILT_IN.values()
            if attack.evidence == "logprobs" and attack.name not in _BY_NAME
        ]
    both = _of("Probes and loss") if preset == "default" and len(evidence) > 1 else ()
    wanted = (*_of(*_SAMPLING.get(preset, ())), *of_tokens, *both)
    return tuple(attack.name for attack in wanted if attack.kind in evidence)
