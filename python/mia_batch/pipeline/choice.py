"""Which attacks a run computes, and what prevents others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.attacks import defaults, get
from mia_batch.attacks.attack import PROBE
from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.registry import why_not

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mia_batch.attacks import Attack
    from mia_batch.settings import Settings

__all__ = ["chosen_attacks", "engine_columns"]

_COMPUTED = {"vocabulary_mean", "vocabulary_variance", "rank", "support_mass"}
"""Columns of the logprobs table that not every engine can compute."""


def chosen_attacks(settings: Settings) -> list[Attack]:
    """Choose the attacks: those asked for by name, else all that evidence and settings allow.

    Raises `SettingsError` if one that was asked for needs other evidence, a setting that is not
    given, or an engine that can do more.
    """
    if settings.attacks is None:
        kinds = _kinds(settings.evidence or "samples")
        return [attack for kind in kinds for attack in _possible(kind, settings)]
    named = [get(name) for name in settings.attacks]
    for attack in named:
        if (obstacle := _obstacle(attack, settings)) is not None:
            msg = f"setting 'attacks': {attack.name} {obstacle}"
            raise SettingsError(msg)
    return named


def _possible(kind: str, settings: Settings) -> list[Attack]:
    """Return the preset's attacks on one kind of evidence, less those that something prevents."""
    attacks = [get(name) for name in defaults(settings.preset, (kind,))]
    possible = [attack for attack in attacks if _obstacle(attack, settings) is None]
    if attacks and not possible:
        msg = f"setting 'evidence': {attacks[0].name} {_obstacle(attacks[0], settings)}"
        raise SettingsError(msg)
    return possible


def _kinds(evidence: str) -> tuple[str, ...]:
    return ("samples", "logprobs") if evidence == "both" else (evidence,)


def _obstacle(attack: Attack, settings: Settings) -> str | None:
    """Say what keeps an attack from being computed under these settings."""
    if settings.evidence is not None:
        kinds = _kinds(settings.evidence)
        if not {attack.evidence, attack.kind}.intersection(kinds):
            return (
                f"needs evidence {attack.kind!r}, but setting 'evidence' is {settings.evidence!r}"
            )
    for wanted in attack.settings:
        names = wanted.split("|")
        if all(getattr(settings, name) is None for name in names):
            return f"needs setting {' or '.join(map(repr, names))}"
    if attack.evidence == "samples":
        return None
    if settings.engine == "replay":
        return "needs log-probabilities, and engine 'replay' has recorded samples only"
    if "support_mass" in attack.columns and settings.temperature != 1:
        return "needs temperature 1: only there is the mass known that decoding keeps"
    if settings.engine == "openai" and (reason := _endpoint_obstacle(attack, settings)):
        return reason
    if settings.engine == "auto":
        return None
    reason = why_not(settings.engine, "logprobs", engine_columns([attack]))
    return None if reason is None else f"cannot be computed: {reason}; take engine transformers"


def _endpoint_obstacle(attack: Attack, settings: Settings) -> str | None:
    if "token_ids" in attack.columns:
        return "needs token ids, which no endpoint gives"
    if PROBE in attack.reads and settings.tokenizer is None:
        return "needs setting 'tokenizer' at an endpoint: without it nobody knows the true token"
    return None


def engine_columns(attacks: Iterable[Attack]) -> frozenset[str]:
    """Name the columns that an engine must compute beside log-probabilities."""
    read = {column for attack in attacks for column in attack.columns}
    return frozenset(read & _COMPUTED)
