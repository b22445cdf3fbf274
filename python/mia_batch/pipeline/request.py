"""What an audit is asked to do: `settle` takes every default and choice of the settings, once.

The settings that a user gives leave much open: the evidence, the attacks, windows, what
a recording or an earlier request has decided. `settle` fills all of it in, checks what
belongs together and returns an `AuditRequest`, which does not change any more. A dry run
prints it, ``run.json`` stores its settings, and the plan hashes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeAlias

from mia_batch.attacks import ONE_PASS, Attack, defaults, get, names
from mia_batch.attacks.attack import (
    CLOZE,
    COMBINATION,
    CONTINUATION,
    PAPER_TABLES,
    PROBE,
    TOKEN,
    find_attack_names,
    is_next_token,
)
from mia_batch.attacks.from_samples import EXPECTED
from mia_batch.corpus import find_files
from mia_batch.errors import SettingsError
from mia_batch.evidence.collect import FREQUENCY
from mia_batch.evidence.engines.registry import why_not
from mia_batch.evidence.recorded_logprobs import LogprobRecording
from mia_batch.evidence.replay import Recording
from mia_batch.features import why_no_similarity
from mia_batch.inference.findings import DecisionRule
from mia_batch.models.weights import have_same_shape
from mia_batch.pipeline.corpora import (
    build_windowing,
    check_paths,
    find_layout_of_input,
)
from mia_batch.pipeline.folder import Manifest, holds_answers
from mia_batch.plugins import extra
from mia_batch.report.paper import describe_missing_rows
from mia_batch.settings import (
    CLASSICS,
    FLAGS,
    N_STRONGEST,
    NO_YARDSTICK,
    Settings,
    spell_settings,
)
from mia_batch.views import RunModel, find_view_type

__all__ = [
    "AuditRequest",
    "build_decision_rule",
    "check_together",
    "choose_attacks",
    "explain_missing_rows",
    "fill_reference_kind",
    "fill_windows",
    "fill_yardstick",
    "find_paper_table",
    "list_abilities_needed",
    "list_columns_needed",
    "read_decision",
    "settle",
    "settle_rescoring",
]


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """What an audit is to do.

    Attributes
    ----------
    settings
        What the user gave, with every default filled in.
    attacks
        Those that are computed, in the order of their columns.
    rule
        The attack that decides, and how.
    recording
        Continuations that were generated elsewhere, if they are all there is.
    logprobs
        Log-probabilities that were computed elsewhere, by the model of the run.
    notes
        Sentences about what was chosen.
    """

    settings: Settings
    attacks: tuple[Attack, ...]
    rule: DecisionRule
    recording: Recording | None = None
    logprobs: Mapping[str, LogprobRecording] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def without_nudge(self) -> AuditRequest:
        """Return the same request of an endpoint that cannot nudge tokens."""
        return replace(self, settings=_fill(self.settings, {"nudge": 0.0}))


def settle(settings: Settings) -> AuditRequest:
    """Return what settings ask for; nothing that can be checked before a model is loaded is left.

    Raises `SettingsError`, as does all that follows, if settings contradict each other,
    if an attack cannot be computed, or if the run in the folder has answered otherwise.
    """
    notes: tuple[str, ...] = ()
    recording = None
    if settings.samples_from is not None:
        recording = Recording.open(
            settings.samples_from, candidate_column=settings.candidate_column
        )
    recorded_logprobs = _open_logprobs(settings)
    if isinstance(recording, Recording):
        settings = _fill(settings, _choose_for_recording(settings, recording))
    elif settings.source == "recording":
        settings = _fill(settings, _choose_for_files(settings, recorded_logprobs))
    chose_attacks = settings.preset != "default" or settings.attacks is not None
    evidence = settings.evidence
    leaves_continuing_open = settings.continue_strongest is None
    settings = _fill(settings, _choose_use_of_conversations(settings))
    settings = _fill(settings, _choose_evidence(settings))
    if settings.evidence != evidence:
        is_both = settings.evidence == "both"
        notes = (_BASELINES_TAKEN if is_both else _ONE_PASS_TAKEN,)
    settings = fill_reference_kind(settings)
    attacks = choose_attacks(settings)
    if not chose_attacks:  # what is set later changes nothing
        chosen = [attack.name for attack in attacks if attack.evidence != "scores"]
        settings = _fill(settings, {"attacks": tuple(chosen)})
    begun_run = Manifest.load(settings.folder)
    is_alone = begun_run is not None and settings.shard is None
    if begun_run and is_alone and not holds_answers(settings.folder, begun_run):
        begun_run = None  # no answer binds what was asked before
    if begun_run is not None and begun_run.plan and not settings.replace:
        settings = _fill(settings, _choose_as_planned(settings, attacks, begun_run))
        attacks = choose_attacks(settings)
    settings = fill_yardstick(fill_windows(settings), attacks)
    rule = build_decision_rule(settings, [attack.name for attack in attacks])
    check_together(settings, attacks)
    check_paths(settings)
    if begun_run is not None:
        _check_decision(settings, rule, begun_run)
        settings = _fill(settings, _choose_as_begun(settings, begun_run))
        if leaves_continuing_open:
            settings = _fill(settings, _choose_as_finished(begun_run))
    _check_columns(attacks, recorded_logprobs)
    reasons = explain_missing_rows(settings, [attack.name for attack in attacks])
    notes += (*describe_missing_rows(find_paper_table(settings), reasons),)
    return AuditRequest(
        settings, tuple(attacks), rule, recording, recorded_logprobs, notes
    )


def settle_rescoring(settings: Settings, finished_run: Manifest) -> AuditRequest:
    """Return what settings ask of a finished run, whose evidence stays as it is."""
    attacks = choose_attacks(settings)
    settings = _fill(settings, _choose_as_planned(settings, attacks, finished_run))
    attacks = choose_attacks(settings)
    rule = build_decision_rule(settings, [attack.name for attack in attacks])
    _check_decision(settings, rule, finished_run)
    return AuditRequest(settings, tuple(attacks), rule)


def _fill(settings: Settings, chosen: dict[str, object]) -> Settings:
    """Return settings with what was chosen; what the user gave stays known as given."""
    return settings.model_copy(update=chosen) if chosen else settings


# Which evidence a run collects, and which attacks it computes.

_WORD_SETTINGS = {"samples", "probes", "probe_every", "probe_words", "rarity_from"}
_SAMPLE_SETTINGS = _WORD_SETTINGS | {
    "nudge",
    "paraphrases_column",
    "temperature",
    "token_points",
    "top_k",
    "top_p",
}
"""Settings that say how a model is sampled: who gives one wants samples."""
_N_LOGPROB_POINTS = 128
"""Points at which log-probabilities are asked; each costs one token, so more than of words."""
_ONE_PASS_TAKEN = (
    "each text is read once for the log-probabilities of its tokens, because the model"
    " runs here; --evidence samples asks for next tokens instead"
)

_BASELINES_TAKEN = (
    "each text is read for the log-probabilities of its tokens, too, because the model"
    " runs here: the paper's baselines are in the same run; --evidence samples leaves"
    " them out"
)


def _choose_for_recording(
    settings: Settings, recording: Recording
) -> dict[str, object]:
    """Choose what a recording decides where the user does not."""
    # Without probes the length-matched family, and all of SaMIA where candidates count
    # as whole.
    chosen: dict[str, object] = {}
    if "samples" not in settings.model_fields_set:
        chosen["samples"] = recording.most_samples
    by_default = settings.attacks is None and settings.preset == "default"
    if by_default and not recording.has_probes:
        for_whole_candidates: list[str] = []
        if not recording.has_finish_reason:
            for_whole_candidates += filter(_reads_whole_candidates, defaults("samia"))
        chosen["attacks"] = (*defaults("matched"), *for_whole_candidates)
    return chosen


def _reads_whole_candidates(name: str) -> bool:
    return get(name).whole_candidates


def _open_logprobs(settings: Settings) -> dict[str, LogprobRecording]:
    """Open the files of log-probabilities, by the model that they are of."""
    recordings = {}
    for model, setting in (
        ("target", "logprobs_from"),
        ("reference", "reference_logprobs_from"),
    ):
        location = getattr(settings, setting)
        if location is not None:
            recordings[model] = LogprobRecording.open(location, setting)
    return recordings


_COLUMNS_OF_FILES = frozenset(
    {"vocabulary_mean", "vocabulary_variance", "top_logprob", "rank", "token_ids"}
)
"""Columns of log-probabilities that a file may lack."""
_Recordings: TypeAlias = Mapping[str, LogprobRecording]
"""Files of log-probabilities by the model that they are of."""


def _find_missing_column(
    attack: Attack, recordings: _Recordings
) -> tuple[str, LogprobRecording] | None:
    """Return a column that an attack reads and a file lacks."""
    models = dict.fromkeys(model for model, _ in attack.list_reads("logprobs"))
    for model in models:
        recording = recordings.get(model)
        if recording is None:
            continue
        missing = sorted(
            _COLUMNS_OF_FILES.intersection(attack.columns) - recording.columns
        )
        if missing:
            return missing[0], recording
    return None


def _choose_for_files(settings: Settings, recordings: _Recordings) -> dict[str, object]:
    """Choose the attacks that files of log-probabilities allow."""
    if settings.evidence not in (None, "logprobs"):
        raise SettingsError(
            f"evidence= is {settings.evidence!r}, and logprobs_from= has log-probabilities"
            " alone; leave evidence= out"
        )
    chosen: dict[str, object] = {"evidence": "logprobs"}
    if settings.attacks is None and settings.preset == "default":
        chosen["attacks"] = tuple(
            name
            for name in ONE_PASS
            if _find_missing_column(get(name), recordings) is None
            and next(_list_obstacles(get(name), settings), None) is None
        )
    return chosen


def _check_columns(attacks: Iterable[Attack], recordings: _Recordings) -> None:
    for attack in attacks:
        missing = _find_missing_column(attack, recordings)
        if missing is not None:
            column, recording = missing
            raise SettingsError(
                f"attacks: {attack.name} reads {column!r} of each token, and"
                f" {recording.source.location} has no such column; add it, or name"
                " other attacks"
            )


def _choose_use_of_conversations(settings: Settings) -> dict[str, object]:
    """Choose to ask about answers where the input holds conversations."""
    if settings.dataset is not None or settings.conversations == "text":
        return {}
    holds_conversations = find_layout_of_input(settings) is not None
    if settings.conversations == "answers" and not holds_conversations:
        raise SettingsError(
            f"conversations= is 'answers', and {settings.input} has no columns of"
            " messages, or of prompts and answers; leave it out"
        )
    if not holds_conversations:
        return {}
    _check_conversations(settings)
    chosen: dict[str, object] = {"conversations": "answers"}
    names_nothing = settings.attacks is None and settings.evidence is None
    if settings.chat and settings.preset == "default" and names_nothing:
        # An endpoint of chats answers from the first word on, and never within an answer
        chosen["preset"] = "matched"
    return chosen


_NOT_OF_CONVERSATIONS = {
    "canaries": "is of texts that stand alone",
    "extract": "follows a model through documents",
    "window_words": "cuts documents, and an answer is asked about whole",
    "window_characters": "cuts documents, and an answer is asked about whole",
    "logprobs_from": "has log-probabilities of texts with nothing before them",
    "texts_to": "writes texts with nothing before them",
    "text_length": "cuts texts, and an answer is asked about whole",
}
"""Settings that cannot be used where texts are answers of conversations, and why."""


def _check_conversations(settings: Settings) -> None:
    """Refuse what cannot be asked about answers of conversations."""
    for name, reason in _NOT_OF_CONVERSATIONS.items():
        if getattr(settings, name):
            raise SettingsError(
                f"{name}= {reason}, and {settings.input} holds conversations; leave it"
                " out, or give conversations= text"
            )
    if settings.preset == "samia":
        raise SettingsError(
            "preset= samia cuts texts into halves, and an answer is asked about whole;"
            " take another, or give conversations= text"
        )
    needs_template = settings.source == "endpoint" and not settings.chat
    if needs_template and settings.tokenizer is None:
        raise SettingsError(
            f"{settings.input} holds conversations: add chat= to send them as messages,"
            " or tokenizer=, whose chat template makes prompts of them"
        )


def _choose_evidence(settings: Settings) -> dict[str, object]:
    """Choose one pass of log-probabilities where the model runs here and nothing else is wanted."""
    # It tells more than samples, for less; the texts of highest scores are continued
    # afterwards.
    given = settings.model_fields_set
    if settings.evidence == "probe-logprobs" and "probes" not in given:
        return {"probes": _N_LOGPROB_POINTS}
    if settings.evidence is not None or settings.attacks is not None:
        return {}
    if settings.preset == "samia" and settings.source == "engine":
        return _choose_baselines(settings)
    if settings.preset != "default":
        return {}
    if settings.source == "endpoint":
        # Walks begin at the strongest windows, so they say the same and more.
        is_open = settings.continue_strongest is None and not settings.extract
        return {"continue_strongest": N_STRONGEST} if is_open else {}
    if settings.source != "engine" or given & _SAMPLE_SETTINGS:
        return {}
    possible = [
        name
        for name in ONE_PASS
        if next(_list_obstacles(get(name), settings), None) is None
    ]
    if not possible or settings.primary not in (None, *possible):
        return {}
    chosen: dict[str, object] = {"evidence": "logprobs", "attacks": tuple(possible)}
    if settings.continue_strongest is None:
        chosen["continue_strongest"] = N_STRONGEST
    if "long_texts" not in given:
        chosen["long_texts"] = "stride"
    return chosen


def _choose_baselines(settings: Settings) -> dict[str, object]:
    """Choose log-probabilities next to samples where a baseline of the paper can be computed."""
    baselines = [get(name) for name in defaults("samia", ("logprobs",))]
    obstacles = [next(_list_obstacles(attack, settings), None) for attack in baselines]
    return {"evidence": "both"} if None in obstacles else {}


def choose_attacks(settings: Settings) -> list[Attack]:
    """Return the attacks asked for by name, else all that evidence and settings allow."""
    combination = [get(COMBINATION)] if settings.combine else []
    if settings.attacks is None:
        attacks = _choose_possible_attacks(settings) + combination
    else:
        attacks = [get(name) for name in settings.attacks]
        attacks += [attack for attack in combination if attack not in attacks]
        for attack in attacks:
            obstacle = next(_list_obstacles(attack, settings), None)
            if obstacle is not None:
                raise SettingsError(f"attacks: {attack.name} {obstacle}")
    learned = [attack for attack in attacks if attack.evidence == "scores"]
    if learned and len(attacks) - len(learned) < 2:
        raise SettingsError(
            f"attacks: {learned[0].name} is learned from the scores of others, and"
            " needs two at least; name more, or leave attacks= out"
        )
    return attacks


def _choose_possible_attacks(settings: Settings) -> list[Attack]:
    """Return the preset's attacks on the evidence, less those that are prevented."""
    kinds = _list_kinds(settings.evidence or "samples")
    attacks = [get(name) for name in defaults(settings.preset, kinds)]
    if not attacks:
        raise SettingsError(
            f"evidence: preset {settings.preset!r} has no attack on"
            f" {' and '.join(kinds)}; leave it out, or name attacks"
        )
    obstacles = {
        attack.name: next(_list_obstacles(attack, settings), None) for attack in attacks
    }
    # Next tokens tell more than next words; but of a reference model words alone are
    # asked. What is combined reads both.
    asks_tokens = any(
        TOKEN in attack.reads and obstacles[attack.name] is None for attack in attacks
    )
    if asks_tokens and not settings.combine:
        wants_words = settings.reference_model or (
            settings.model_fields_set & _WORD_SETTINGS
        )
        left_out = TOKEN if wants_words else PROBE
        attacks = [
            attack for attack in attacks if left_out not in attack.list_reads("samples")
        ]
    possible = [attack for attack in attacks if obstacles[attack.name] is None]
    possible_kinds = {attack.kind for attack in possible}
    for attack in attacks:
        if attack.kind not in possible_kinds:
            raise SettingsError(f"evidence: {attack.name} {obstacles[attack.name]}")
    return possible


def find_paper_table(settings: Settings) -> dict[str, str]:
    """Return names in the table of the preset's paper, by attack; none where attacks are named."""
    return {} if settings.attacks else PAPER_TABLES.get(settings.preset, {})


def explain_missing_rows(
    settings: Settings, attacks: Collection[str]
) -> dict[str, str]:
    """Return why attacks of a paper's table are not computed, as ends of sentences about each."""
    settings = _fill(settings, {"evidence": settings.evidence or "samples"})
    reasons = {}
    for name in find_paper_table(settings):
        if name not in attacks:
            obstacle = next(_list_obstacles(get(name), settings), "is not asked for")
            reasons[name] = spell_settings(obstacle, FLAGS)
    return reasons


def _list_kinds(evidence: str) -> tuple[str, ...]:
    return ("samples", "logprobs") if evidence == "both" else (evidence,)


# What prevents an attack.


def _list_obstacles(attack: Attack, settings: Settings) -> Iterator[str]:
    """Iterate over what prevents an attack, each as the end of a sentence about it."""
    if settings.evidence is not None and attack.evidence != "scores":
        kinds = _list_kinds(settings.evidence)
        matching_kinds = {attack.evidence, attack.kind}.intersection(kinds)
        if not matching_kinds or (attack.logprobs and "logprobs" not in kinds):
            needed = "logprobs" if matching_kinds else attack.kind
            yield f"needs evidence {needed!r}, but evidence= is {settings.evidence!r}"
    for alternatives in attack.settings:
        setting_names = alternatives.split("|")
        if all(getattr(settings, name) is None for name in setting_names):
            yield f"needs {' or '.join(f'{name}=' for name in setting_names)}"
    if "similarity" in attack.columns:
        reason = why_no_similarity()
        if reason is not None:
            yield f"cannot be computed: {reason}"
    if settings.source == "recording":
        yield from _list_recording_obstacles(attack, settings)
    if "support_mass" in attack.columns and settings.temperature != 1:
        yield "needs temperature 1: only there is the mass known that decoding keeps"
    if settings.source == "endpoint" and "token_ids" in attack.columns:
        yield "needs token ids, which no endpoint gives"
    if settings.conversations == "answers":
        yield from _list_conversation_obstacles(attack, settings)
    elif _needs_conversations(attack):
        yield (
            "asks the model what came before each answer, and the input holds no"
            " conversations; give columns of prompts and answers, or of messages"
        )
    yield from _list_view_obstacles(attack, settings)
    yield from _list_engine_obstacles(attack, settings)


_RECORDED_MODELS = ("target", "reference")


def _list_recording_obstacles(attack: Attack, settings: Settings) -> Iterator[str]:
    logprobs = attack.list_reads("logprobs")
    if settings.samples_from is not None:
        if logprobs:
            yield "needs log-probabilities, and engine 'replay' has recorded samples only"
        if any(model != "target" for model, _ in attack.reads):
            yield "needs answers of another model, and engine 'replay' has those of one"
        return
    if any(model not in _RECORDED_MODELS for model, _ in attack.reads):
        yield "needs a model that is tuned here, and the audited one is a recording"
    for _, view in logprobs:
        if not find_view_type(view).reads_alone:
            yield (
                "needs log-probabilities of texts after others, and recorded ones are of"
                " texts alone"
            )
    if FREQUENCY in attack.columns and settings.tokenizer is None:
        yield "needs tokenizer=, to count the tokens of frequencies_from="


def _needs_conversations(attack: Attack) -> bool:
    views = (view for _, view in (*attack.reads, *attack.logprobs))
    return any(find_view_type(view).needs_conversations for view in views)


_FROM_THE_START = ("continuation",)
"""Views that ask for an answer from its first word on, as an endpoint of chats can be asked."""


def _list_conversation_obstacles(attack: Attack, settings: Settings) -> Iterator[str]:
    for _, view in (*attack.reads, *attack.logprobs):
        if find_view_type(view).in_conversation != "answer":
            yield (
                f"asks about texts that stand alone (view {view!r}), and the input holds"
                " conversations"
            )
        elif settings.chat and view not in _FROM_THE_START:
            yield (
                "needs a model that goes on within an answer, which an endpoint of chats"
                " does not"
            )


def _list_view_obstacles(attack: Attack, settings: Settings) -> Iterator[str]:
    if CLOZE in attack.reads and settings.source == "recording":
        yield "asks questions, which no recording has answered"
    if TOKEN not in attack.reads or CLOZE in attack.reads:
        return
    if EXPECTED in attack.columns and settings.stop_when_decided:
        yield "needs answers about all texts, and stop_when_decided= leaves some out"
    if settings.source == "recording" or settings.chat:
        yield "needs a model that goes on with a text: no chat, and no recording"
    elif settings.nudge and settings.engine != "auto":
        reason = why_not(settings.engine, "samples", frozenset({"nudge"}))
        if reason is not None:
            yield reason


def _list_engine_obstacles(attack: Attack, settings: Settings) -> Iterator[str]:
    reads_next_token = any(map(is_next_token, attack.list_reads("logprobs")))
    is_endpoint = settings.source == "endpoint"
    needs_tokens = reads_next_token or TOKEN in attack.reads
    if is_endpoint and needs_tokens and settings.tokenizer is None:
        yield "needs tokenizer= at an endpoint: without it nobody knows the true token"
    if attack.list_reads("logprobs") and settings.engine != "auto":
        needed = list_abilities_needed([attack])
        if is_endpoint and needs_tokens:
            needed -= {"vocabulary_mean"}  # which has bounds there
        reason = why_not(settings.engine, "logprobs", needed)
        if reason is not None:
            yield f"cannot be computed: {reason}; take engine transformers"


_COLUMNS_OF_SOME_ENGINES = {
    "vocabulary_mean",
    "vocabulary_variance",
    "top_logprob",
    "rank",
    "support_mass",
}
"""Columns of the logprobs table that not every engine can compute."""


def list_columns_needed(attacks: Iterable[Attack]) -> frozenset[str]:
    """Return the columns that attacks read of those which not every engine can compute."""
    columns = frozenset[str]().union(*(attack.columns for attack in attacks))
    return columns & _COLUMNS_OF_SOME_ENGINES


def list_abilities_needed(attacks: Iterable[Attack]) -> frozenset[str]:
    """Return what an engine must do with log-probabilities: columns, noise, questions."""
    attacks = list(attacks)
    views = {view for attack in attacks for _, view in attack.list_reads("logprobs")}
    abilities = (find_view_type(view).abilities for view in views)
    return list_columns_needed(attacks).union(*abilities)


# What decides, and what an earlier request has decided.

_PRIMARY_ATTACKS: tuple[str, ...] = (
    "min_k_plus_plus_20_v1",
    "token_hits_less_expected_v1",
    "token_hits_v1",
    "probe_leading_rarity_v1",
    "samia_matched_v1",
)
"""The first that is computed decides: the order in which they find most."""
_PRIMARY_ATTACKS_OF_TUNED_MODELS = (
    "wbc_v1",
    "self_prompt_difference_v1",
    "reference_token_difference_v1",
)
"""The first of these decides about a tuned model (``benches.finetuned``)."""
_PRIMARY_ATTACKS_OF_PAPERS = {
    "samia": ("samia_v1",),
    "spv": ("spv_semantic_v1", "spv_embedding_v1"),
}
"""The first of these decides where the preset of the paper is asked for."""
_LABELLED_FALSE = (
    "texts of the input that are labelled member = false, where there are any"
)


def build_decision_rule(settings: Settings, attacks: Sequence[str]) -> DecisionRule:
    """Return how a run decides: by the attack asked for, else the first likely one."""
    is_tuned = settings.preset == "spv" or settings.reference_kind == "base"
    candidates = _PRIMARY_ATTACKS
    if is_tuned:
        candidates = _PRIMARY_ATTACKS_OF_TUNED_MODELS + _PRIMARY_ATTACKS
    candidates = _PRIMARY_ATTACKS_OF_PAPERS.get(settings.preset, ()) + candidates
    primary = settings.primary or next(
        (name for name in candidates if name in attacks), attacks[0]
    )
    if primary not in attacks:
        raise SettingsError(
            f"primary= is {primary!r}, which is not computed; name it in attacks= too"
        )
    shared_names = {rule_field.name for rule_field in fields(DecisionRule)} - {
        "primary"
    }
    values = settings.model_dump(include=shared_names)
    if settings.stop_when_decided:
        values["adjustment"] = "e-bh"
    null_set = settings.non_members_known or _LABELLED_FALSE
    return DecisionRule(primary=primary, null_set=null_set, **values)


def read_decision(manifest: Manifest) -> dict[str, Any]:
    """Return how a run decides by now: as it was planned, or as an answer that replaced it."""
    return manifest.replaced[-1]["now"] if manifest.replaced else manifest.plan


def _choose_as_planned(
    settings: Settings, asked_attacks: Iterable[Attack], manifest: Manifest
) -> dict[str, object]:
    """Choose the attacks that a run has scored next to those asked for, and its primary attack."""
    if not manifest.plan or settings.replace:
        return {}
    scored = manifest.made.get("scores", manifest.plan).get("attacks", ())
    for name in scored:
        if not find_attack_names(name, names()):
            raise SettingsError(
                f"attacks: the run has scores of {name}, whose formula is not known"
                " here; give attacks_from= with its file, or replace= to take these"
                " scores away"
            )
    asked = tuple(attack.name for attack in asked_attacks)
    chosen: dict[str, object] = {}
    attacks = asked
    has_others = any(name not in asked for name in scored)
    if has_others:
        attacks = tuple(dict.fromkeys((*scored, *asked)))
        chosen["attacks"] = attacks
    primary = read_decision(manifest)["primary"]
    rule = build_decision_rule(settings, attacks)
    if settings.primary is None and rule.primary != primary:
        chosen["primary"] = primary
    if settings.evidence and has_others:
        kinds = {*_list_kinds(settings.evidence)}
        on_evidence = [get(name) for name in attacks if get(name).evidence != "scores"]
        if any(not kinds & {attack.evidence, attack.kind} for attack in on_evidence):
            chosen["evidence"] = None
    return chosen


def _check_decision(settings: Settings, rule: DecisionRule, manifest: Manifest) -> None:
    """Refuse a request that would answer otherwise than planned, unless it is to replace that."""
    if not manifest.plan or settings.replace:
        return
    decision = read_decision(manifest)
    asked = json.loads(json.dumps(asdict(rule)))
    changes = [
        f"{name}= is {decision[name]!r} in the plan and {value!r} now"
        for name, value in asked.items()
        if name not in ("null_set", "seed") and value != decision.get(name)
    ]
    if changes:
        raise SettingsError(
            f"{'; '.join(changes)}: the planned answer of {settings.folder} stays."
            " Give replace= to answer so instead, marked as exploratory and recorded"
            " in run.json"
        )


def _choose_as_begun(settings: Settings, begun_run: Manifest) -> dict[str, object]:
    """Choose what a run was asked with where defaults alone would say otherwise by now."""
    # Attacks that are asked for later read what is there: a nudge is kept off, and long
    # texts are in pieces.
    chosen: dict[str, object] = {}
    for name, value in {"nudge": 0.0, "long_texts": "stride"}.items():
        is_given = name in settings.model_fields_set
        if not is_given and begun_run.evidence.get(name) == value:
            chosen[name] = value
    return chosen


def _choose_as_finished(begun_run: Manifest) -> dict[str, object]:
    """Choose to continue nothing at an endpoint where a finished run did not: it would be paid."""
    was_left_open = begun_run.settings.get("continue_strongest") is None
    is_of_endpoint = begun_run.source == "endpoint"
    if begun_run.custody and was_left_open and is_of_endpoint:
        return {"continue_strongest": None}
    return {}


# Models and texts.

_BOOK_WINDOW_WORDS = 128


def fill_reference_kind(settings: Settings) -> Settings:
    """Return settings that say whether the reference model is the base: of one shape."""
    if settings.reference_model is None or settings.reference_kind is not None:
        return settings
    if settings.source != "engine":
        return settings
    target = (str(settings.model), settings.revision)
    reference = (str(settings.reference_model), settings.reference_revision)
    kind = "other"
    # Which checks of the models say better
    with suppress(OSError, ValueError, SettingsError):
        if have_same_shape(target, reference):
            kind = "base"
    return _fill(settings, {"reference_kind": kind})


def fill_windows(settings: Settings) -> Settings:
    """Return settings with windows of books, and refuse windows that contradict each other."""
    is_whole = settings.window_words is None and settings.window_characters is None
    if is_whole and find_files(settings.input).kind == "books":
        n_words = settings.text_length or _BOOK_WINDOW_WORDS
        settings = _fill(settings, {"window_words": n_words})
    build_windowing(settings)  # refuses
    return settings


def fill_yardstick(settings: Settings, attacks: Iterable[Attack]) -> Settings:
    """Return settings with the yardstick of books where it is compared or continued."""
    if settings.yardstick is not None or settings.source == "recording":
        return settings
    is_of_books = find_files(settings.input).kind == "books"
    is_continued = any(CONTINUATION in attack.reads for attack in attacks)
    is_shown = is_of_books and (settings.non_members or is_continued)
    return _fill(settings, {"yardstick": CLASSICS if is_shown else NO_YARDSTICK})


# What cannot be asked together.

_SETTINGS_OF_PASSAGES = ("controls", "known_corpus", "known_index")


def check_together(settings: Settings, attacks: Sequence[Attack]) -> None:
    """Refuse settings that contradict each other or the attacks."""
    attacks_of_trained_models = [
        attack.name
        for attack in attacks
        if any(RunModel(model).is_trained_here for model, _ in attack.reads)
    ]
    if settings.shard is not None and attacks_of_trained_models:
        raise SettingsError(
            f"shard= cannot be used with {attacks_of_trained_models[0]}: reference"
            " models are made by one process; run without --shard, with --workers where"
            " several engines are to answer"
        )
    for attack in attacks:
        if settings.shard is not None and _needs_conversations(attack):
            raise SettingsError(
                f"shard= cannot be used with {attack.name}: what is asked depends on"
                " earlier answers; run without --shard, with --workers where several"
                " engines are to answer"
            )
    _check_passages(settings, attacks)
    _check_executor(settings)
    if not settings.stop_when_decided:
        return
    learned = [attack.name for attack in attacks if attack.evidence == "scores"]
    for name in learned + attacks_of_trained_models:
        raise SettingsError(
            f"stop_when_decided= cannot be used with {name}, which learns "
            "from the answers about all texts; leave one of the two out"
        )
    if settings.shard is not None:
        raise SettingsError(
            "stop_when_decided= cannot be used with shard: what is asked depends on the"
            " answers about all texts; run without --shard"
        )


def _check_passages(settings: Settings, attacks: Sequence[Attack]) -> None:
    continues_texts = any(
        CONTINUATION in attack.list_reads("samples") for attack in attacks
    )
    if continues_texts or settings.extract or settings.continue_strongest:
        return
    for name in _SETTINGS_OF_PASSAGES:
        if getattr(settings, name):
            raise SettingsError(
                f"{name}= is about passages that come out, and these attacks ask for"
                " none; add continue_strongest= or extract=, or take preset 'matched'"
            )


def _check_executor(settings: Settings) -> None:
    if not settings.executor:
        return
    engine, source = settings.engine, settings.source
    if source == "endpoint" or (source == "recording" and settings.workers):
        raise SettingsError(
            "ray= and workers= are about engines that are started, and engine "
            f"{engine!r} is not started; leave them out"
        )
    reason = extra("executors", settings.executor).obstacle()
    if reason is not None:
        raise SettingsError(f"ray= and workers= need Ray: {reason}")
