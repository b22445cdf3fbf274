"""Attacks by name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from mia_batch.attacks.coverage import COVERAGE_ATTACKS
from mia_batch.attacks.extraction import EXTRACTION_ATTACKS
from mia_batch.attacks.frequency import FREQUENCY_ATTACKS
from mia_batch.attacks.loss import LOSS_ATTACKS
from mia_batch.attacks.min_k import MIN_K_ATTACKS
from mia_batch.attacks.neighbour import NEIGHBOUR_ATTACKS
from mia_batch.attacks.prefix_shots import PREFIX_SHOT_ATTACKS
from mia_batch.attacks.rank import RANK_ATTACKS
from mia_batch.attacks.reference import REFERENCE_ATTACKS
from mia_batch.attacks.rouge import ROUGE_ATTACKS
from mia_batch.attacks.sampling import MATCHED_ATTACKS, SAMIA_ATTACKS
from mia_batch.attacks.verbatim import VERBATIM_ATTACKS
from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection

    from mia_batch.attacks.attack import Attack
    from mia_batch.targets.plan import Preset

__all__ = ["defaults", "get", "names"]

_SAMPLING_FAMILIES = (
    MATCHED_ATTACKS,
    SAMIA_ATTACKS,
    ROUGE_ATTACKS,
    COVERAGE_ATTACKS,
    VERBATIM_ATTACKS,
)
_SCORING_FAMILIES = (
    LOSS_ATTACKS,
    MIN_K_ATTACKS,
    REFERENCE_ATTACKS,
    PREFIX_SHOT_ATTACKS,
    NEIGHBOUR_ATTACKS,
    FREQUENCY_ATTACKS,
    EXTRACTION_ATTACKS,
    RANK_ATTACKS,
)
MIN_K_PAPER = (
    "min_k_20_v1",
    *(f"min_k_{percent}_v1" for percent in (5, 10, 30, 40, 50, 60)),
    "loss_v1",
    "perplexity_v1",
    "loss_zlib_v1",
    "lowercase_ratio_v1",
    "reference_token_difference_v1",
    "neighbour_difference_v1",
)
"""What the Min-K% paper compares (Shi et al. 2024, table 1), with every k of the authors' code."""

_ATTACKS = {
    attack.name: attack for family in (*_SAMPLING_FAMILIES, *_SCORING_FAMILIES) for attack in family
}


def names() -> tuple[str, ...]:
    """Names of every attack, family by family.

    Returns
    -------
    tuple of str
        The names that ``get`` knows.
    """
    return tuple(_ATTACKS)


def get(name: str) -> Attack:
    """Look an attack up.

    Parameters
    ----------
    name
        Such as ``"samia_matched_v1"``.

    Returns
    -------
    Attack
        The attack of that name.

    Raises
    ------
    SettingsError
        If there is none.

    Examples
    --------
    >>> get("samia_v1").whole_candidates
    True
    """
    if name not in _ATTACKS:
        near = get_close_matches(name, _ATTACKS) or ["samia_matched_v1", "samia_v1"]
        msg = (
            f"attacks: there is no attack {name!r}; the nearest names are "
            f"{', '.join(near)}, and `mia-batch attacks` lists all"
        )
        raise SettingsError(msg)
    return _ATTACKS[name]


def defaults(preset: Preset, evidence: Collection[str] = ("samples",)) -> tuple[str, ...]:
    """Names of the attacks that a preset computes where none are asked for.

    Parameters
    ----------
    preset
        ``default``: the length-matched family; ``samia``: the authors' over whole candidates;
        ``min-k``: those of the Min-K% paper.
    evidence
        Kinds of evidence that there will be: ``samples``, ``logprobs``.

    Returns
    -------
    tuple of str
        The names; the preset's main attack comes first.
    """
    sampling = SAMIA_ATTACKS if preset == "samia" else MATCHED_ATTACKS
    scoring = tuple(attack for family in _SCORING_FAMILIES for attack in family)
    if preset == "min-k":
        scoring = tuple(get(name) for name in MIN_K_PAPER)
    return tuple(attack.name for attack in (*sampling, *scoring) if attack.evidence in evidence)
