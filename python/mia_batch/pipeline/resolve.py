"""From settings to what the stages take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.attacks import defaults, get, names
from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.errors import SettingsError
from mia_batch.evidence import Budget, Decoding, EngineSpec, Scoring, cannot_score, choose_engine
from mia_batch.targets import TargetPlan

if TYPE_CHECKING:
    from mia_batch.attacks import Attack
    from mia_batch.corpus import Corpus
    from mia_batch.evidence import DecodeScope, EngineName
    from mia_batch.settings import Settings

__all__ = [
    "chosen_attacks",
    "chosen_engine",
    "decode_budget",
    "decode_scope",
    "engine_spec",
    "open_corpus",
    "runs_here",
    "scoring",
    "scoring_engine",
    "target_plan",
]


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
    return None if reason is None else f"cannot be computed: {reason}"


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


def runs_here(settings: Settings) -> bool:
    """Whether a model runs on this machine; else samples come from an endpoint or a recording."""
    return settings.engine not in ("openai", "replay")


def chosen_engine(settings: Settings) -> tuple[str, str]:
    """Choose the engine that samples.

    Parameters
    ----------
    settings
        Names it, or leaves the choice.

    Returns
    -------
    tuple of str and str
        The engine, and why it was chosen.

    Raises
    ------
    SettingsError
        If it cannot run here.
    """
    match settings.engine:
        case "openai" | "replay":
            return settings.engine, "asked for"
        case local:
            return choose_engine(local)


def decode_scope(attacks: list[Attack]) -> DecodeScope:
    """Say how far candidates must be decoded for these attacks."""
    return "whole" if any(attack.whole_candidates for attack in attacks) else "matched"


def decode_budget(
    settings: Settings, scope: DecodeScope, max_model_len: int, max_attempts: int | None = None
) -> Budget:
    """Return the rule for the tokens to decode in a model with this context."""
    return Budget(
        scope=scope,
        max_length=settings.max_length,
        max_model_len=max_model_len,
        max_attempts=max_attempts,
    )


def engine_spec(settings: Settings, engine: EngineName) -> EngineSpec:
    """Return what the chosen engine needs to start."""
    return EngineSpec(
        engine=engine,
        model=settings.model,
        revision=settings.revision,
        dtype=settings.dtype,
        tensor_parallel_size=settings.tensor_parallel_size,
        decoding=Decoding(
            temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p
        ),
        engine_args=settings.engine_arg,
    )


def open_corpus(settings: Settings) -> Corpus:
    """Read and check the corpus that the settings name.

    Parameters
    ----------
    settings
        Input and names of columns.

    Returns
    -------
    Corpus
        The documents, found right.

    Raises
    ------
    CorpusError
        If the input cannot be read as a corpus; the message names file, row and column.
    """
    columns = ColumnNames(
        text=settings.text_column,
        document_id=settings.document_id_column,
        member=settings.member_column,
        label=settings.label_column,
        group=settings.group_column,
        prefix=settings.prefix_column,
        reference=settings.reference_column,
    )
    return read_documents(settings.input, columns, reserved=frozenset(names()))


def target_plan(settings: Settings) -> TargetPlan:
    """Say how documents are cut into targets under these settings."""
    return TargetPlan(
        prefix_ratio=settings.prefix_ratio,
        words=settings.word_rule,
        window_words=settings.window_words,
        stride=settings.stride,
        preset=settings.preset,
        text_length=settings.text_length,
    )
