"""Which attacks a run computes, and what its scoring engine must give for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.attacks import defaults, get
from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.choice import cannot_score, choose_engine
from mia_batch.evidence.scorer import Scoring

if TYPE_CHECKING:
    from mia_batch.attacks import Attack
    from mia_batch.evidence.engine import EngineName
    from mia_batch.settings import Settings

__all__ = ["chosen_attacks", "scoring", "scoring_engine"]


def chosen_attacks(settings: Settings) -> list[Attack]:
    """Choose the attacks: those asked for by name, else all that evidence and settings allow.

    Parameters
    ----------
    settings
        The settings.

    Returns
    -------
    list of Attack
        At least one.

    Raises
    ------
    SettingsError
        If an attack that was asked for needs other evidence, a setting that is not given, or an
        engine that can do more.
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
    if settings.evidence is not None and attack.evidence not in _kinds(settings.evidence):
        return (
            f"needs evidence {attack.evidence!r}, but setting 'evidence' is {settings.evidence!r}"
        )
    for wanted in attack.settings:
        names = wanted.split("|")
        if all(getattr(settings, name) is None for name in names):
            return f"needs setting {' or '.join(map(repr, names))}"
    return _engine_obstacle(attack, settings) if attack.evidence == "logprobs" else None


def _engine_obstacle(attack: Attack, settings: Settings) -> str | None:
    if settings.engine == "replay":
        return "needs log-probabilities, and engine 'replay' has recorded samples only"
    if "kept_mass" in attack.columns and settings.temperature != 1:
        return "needs temperature 1: only there is the mass known that decoding keeps"
    if settings.engine == "openai" and "token_ids" in attack.columns:
        return "needs token ids, which no endpoint gives"
    if settings.engine == "auto":
        return None
    reason = cannot_score(settings.engine, scoring([attack], settings))
    return None if reason is None else f"cannot be computed: {reason}; take engine transformers"


def scoring(attacks: list[Attack], settings: Settings) -> Scoring:
    """Say what a scoring engine computes for these attacks."""
    columns = {column for attack in attacks for column in attack.columns}
    return Scoring(
        moments=not columns.isdisjoint({"mean", "variance"}),
        rank="rank" in columns,
        kept_mass="kept_mass" in columns,
        head_bytes=settings.head_memory << 20,
    )


def scoring_engine(settings: Settings, wanted: Scoring) -> tuple[EngineName, str]:
    """Choose the engine that gives log-probabilities on this machine.

    Parameters
    ----------
    settings
        Names it, or leaves the choice.
    wanted
        What it must compute.

    Returns
    -------
    tuple of str and str
        The engine, and why it was chosen.

    Raises
    ------
    SettingsError
        If none can run here.
    """
    match settings.engine:
        case "openai" | "replay":  # an endpoint gives those of its own model only
            engine, why = choose_engine("auto")
        case local:
            engine, why = choose_engine(local)
    reason = cannot_score(engine, wanted)
    return (engine, why) if reason is None else ("transformers", reason)
