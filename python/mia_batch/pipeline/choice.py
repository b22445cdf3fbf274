"""Which attacks a run computes, what prevents others, and what is decided by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from mia_batch.attacks import Attack, defaults, get
from mia_batch.attacks.attack import CHOICE, COMBINATION, CONTINUATION, NEXT_TOKEN
from mia_batch.errors import SettingsError
from mia_batch.evidence.collect import NOISE, QUESTION
from mia_batch.evidence.engines.registry import why_not
from mia_batch.evidence.replay import Recording
from mia_batch.features import why_no_similarity
from mia_batch.inference.findings import VerdictPlan
from mia_batch.plugins import extra
from mia_batch.prompts.views import RunModel
from mia_batch.settings import Settings

_PRIMARY = ("probe_leading_rarity_v1", "samia_matched_v1", "min_k_plus_plus_20_v1")
_PRIMARY_OF_TUNED = ("wbc_v1", "self_prompt_difference_v1")
_LABELLED_FALSE = "texts of the input that are labelled member = false, where there are any"
_COMPUTED = {"vocabulary_mean", "vocabulary_variance", "rank", "support_mass"}
"""Columns of the logprobs table that not every engine can compute."""
_FEWEST_COMBINED = 2


def chosen_attacks(settings: Settings) -> list[Attack]:
    """Choose the attacks: those asked for by name, else all that evidence and settings allow.

    Raises `SettingsError` if one that was asked for needs other evidence, a setting that is not
    given, or an engine that can do more.
    """
    named = _named(settings)
    learned = [attack for attack in named if attack.evidence == "scores"]
    if learned and len(named) - len(learned) < _FEWEST_COMBINED:
        raise SettingsError(
            f"setting 'attacks': {learned[0].name} is learned from the scores of others, and needs "
            "two at least; name more, or leave 'attacks' out"
        )
    return named


def _named(settings: Settings) -> list[Attack]:
    combined = [get(COMBINATION)] if settings.combine else []
    if settings.attacks is None:
        return _possible(_kinds(settings.evidence or "samples"), settings) + combined
    named = [get(name) for name in settings.attacks]
    named += [attack for attack in combined if attack not in named]
    for attack in named:
        if (obstacle := _obstacle(attack, settings)) is not None:
            raise SettingsError(f"setting 'attacks': {attack.name} {obstacle}")
    return named


def _possible(kinds: tuple[str, ...], settings: Settings) -> list[Attack]:
    """Return the preset's attacks on these kinds of evidence, less those that something prevents.

    Raises `SettingsError` if that is all of one kind.
    """
    attacks = [get(name) for name in defaults(settings.preset, kinds)]
    if not attacks:
        raise SettingsError(
            f"setting 'evidence': preset {settings.preset!r} has no attack on "
            f"{' and '.join(kinds)}; leave it out, or name attacks"
        )
    possible = [attack for attack in attacks if _obstacle(attack, settings) is None]
    left = {attack.kind for attack in possible}
    if (lost := next((each for each in attacks if each.kind not in left), None)) is not None:
        raise SettingsError(f"setting 'evidence': {lost.name} {_obstacle(lost, settings)}")
    return possible


def check_together(settings: Settings, attacks: Sequence[Attack]) -> None:
    """Raise `SettingsError` where settings and attacks do not go together."""
    if (refusal := next(_refusals(settings, attacks), None)) is not None:
        raise SettingsError(refusal)


def _refusals(settings: Settings, attacks: Sequence[Attack]) -> Iterator[str]:
    making = [
        attack.name
        for attack in attacks
        if any(RunModel.of(model).is_made for model, _ in attack.reads)
    ]
    learned = [each.name for each in attacks if each.evidence == "scores"]
    engine = settings.engine
    if settings.shard is not None and making:
        yield (
            f"setting 'shard' cannot be used with {making[0]}: reference models are made by "
            "one process; run without --shard, with --workers where several engines are to answer"
        )
    continued = any(CONTINUATION in attack.reads_of("samples") for attack in attacks)
    if settings.controls and not (continued or settings.extract):
        yield (
            "setting 'controls' is about passages that come out, and these attacks ask for none; "
            "add 'extract', or take preset 'matched'"
        )
    if settings.on_cluster and (engine == "openai" or (engine == "replay" and settings.workers)):
        yield (
            "settings 'ray' and 'workers' are about engines that are started, and engine "
            f"{engine!r} is none; leave them out"
        )
    elif settings.on_cluster and (reason := extra("executors", "ray").why_no_ray()) is not None:
        yield f"settings 'ray' and 'workers' need Ray: {reason}"
    if not settings.stop_when_decided:
        return
    if learning := learned + making:
        yield (
            f"setting 'stop_when_decided' cannot be used with {learning[0]}, which learns "
            "from the answers about all texts; leave one of the two out"
        )
    if settings.shard is not None:
        yield (
            "setting 'stop_when_decided' cannot be used with 'shard': what is asked depends on the "
            "answers about all texts; run without --shard"
        )


def _kinds(evidence: str) -> tuple[str, ...]:
    return ("samples", "logprobs") if evidence == "both" else (evidence,)


def _obstacle(attack: Attack, settings: Settings) -> str | None:
    return next(_obstacles(attack, settings), None)


def _obstacles(attack: Attack, settings: Settings) -> Iterator[str]:
    """Say what keeps an attack from being computed under these settings."""
    if settings.evidence is not None and attack.evidence != "scores":
        kinds = _kinds(settings.evidence)
        given = {attack.evidence, attack.kind}.intersection(kinds)
        if not given or (attack.logprobs and "logprobs" not in kinds):
            needed = attack.kind if not given else "logprobs"
            yield f"needs evidence {needed!r}, but setting 'evidence' is {settings.evidence!r}"
    for wanted in attack.settings:
        names = wanted.split("|")
        if all(getattr(settings, name) is None for name in names):
            yield f"needs setting {' or '.join(map(repr, names))}"
    if "similarity" in attack.columns and (reason := why_no_similarity()) is not None:
        yield f"cannot be computed: {reason}"
    if settings.engine == "replay" and attack.reads_of("logprobs"):
        yield "needs log-probabilities, and engine 'replay' has recorded samples only"
    if settings.engine == "replay" and any(model != "target" for model, _ in attack.reads):
        yield "needs answers of another model, and engine 'replay' has those of one"
    if "support_mass" in attack.columns and settings.temperature != 1:
        yield "needs temperature 1: only there is the mass known that decoding keeps"
    if settings.engine == "openai":
        yield from _endpoint_obstacles(attack, settings)
    if attack.reads_of("logprobs") and settings.engine != "auto":
        reason = why_not(settings.engine, "logprobs", engine_abilities([attack]))
        if reason is not None:
            yield f"cannot be computed: {reason}; take engine transformers"


def _endpoint_obstacles(attack: Attack, settings: Settings) -> Iterator[str]:
    if "token_ids" in attack.columns:
        yield "needs token ids, which no endpoint gives"
    if {*NEXT_TOKEN}.intersection(attack.reads_of("logprobs")) and settings.tokenizer is None:
        yield "needs setting 'tokenizer' at an endpoint: without it nobody knows the true token"


def engine_columns(attacks: Iterable[Attack]) -> frozenset[str]:
    """Name the columns that an engine must compute beside log-probabilities."""
    read = {column for attack in attacks for column in attack.columns}
    return frozenset(read & _COMPUTED)


def engine_abilities(attacks: Iterable[Attack]) -> frozenset[str]:
    """Name what an engine must be able to do beside log-probabilities: columns, noise, answers."""
    attacks = [*attacks]
    read = {view for attack in attacks for _, view in attack.reads_of("logprobs")}
    answers = {QUESTION} if CHOICE[1] in read else set()
    return engine_columns(attacks) | (read & {NOISE}) | answers


def verdict_plan(settings: Settings, attacks: Sequence[str]) -> VerdictPlan:
    """Say what the run is to decide and how.

    The primary attack is the one asked for, else the first of `probe_leading_rarity_v1`,
    `samia_matched_v1` and `min_k_plus_plus_20_v1` that is computed, else the first attack.
    With preset ``spv`` `wbc_v1` and `self_prompt_difference_v1` come before these: they tell most
    of tuned models (``benches.finetuned``).
    """
    likely = _PRIMARY_OF_TUNED + _PRIMARY if settings.preset == "spv" else _PRIMARY
    primary = settings.primary or next((name for name in likely if name in attacks), attacks[0])
    if primary not in attacks:
        raise SettingsError(
            f"setting 'primary' is {primary!r}, which is not computed; name it in 'attacks' too"
        )
    same = settings.model_dump(include={field.name for field in fields(VerdictPlan)} - {"primary"})
    same |= {"adjustment": "e-bh"} if settings.stop_when_decided else {}
    null_set = settings.non_members_known or _LABELLED_FALSE
    return VerdictPlan(primary=primary, null_set=null_set, **same)


def recorded_settings(settings: Settings, recording: Recording) -> Settings:
    """Fill in what a recording decides where the request does not.

    As many samples as were recorded; where these are no probes, the length-matched family, and the
    whole SaMIA family where candidates count as whole.
    """
    filled: dict[str, object] = {}
    if "samples" not in settings.model_fields_set:
        filled["samples"] = recording.most_samples
    by_default = settings.attacks is None and settings.preset == "default"
    if by_default and not recording.has_probes:
        whole = () if recording.has_finish_reason else defaults("samia")
        filled["attacks"] = (*defaults("matched"), *whole)
    return settings.model_copy(update=filled)
