"""What the stages of an audit share: settings, attacks, texts, models, the run and its manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import polars as pl

from mia_batch.attacks import ONE_PASS, Attack, defaults, get, names
from mia_batch.attacks import attack as views
from mia_batch.attacks.attack import meant
from mia_batch.attacks.from_samples import EXPECTED
from mia_batch.corpus import SourceFile, digest_each, digest_of
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.evidence.collect import FREQUENCY
from mia_batch.evidence.endpoint.wire import Tokens
from mia_batch.evidence.engines.registry import choose_engine, engine_types, why_not
from mia_batch.evidence.parts import Shard
from mia_batch.evidence.process import KeptEngine
from mia_batch.evidence.replay import Recording
from mia_batch.evidence.request import (
    MOST_ATTEMPTS,
    Budget,
    DecodeScope,
    Decoding,
    EngineSpec,
    EvidenceKind,
)
from mia_batch.features import why_no_similarity
from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.e_values import RoundsTest
from mia_batch.inference.findings import VerdictPlan
from mia_batch.models.weights import ModelIdentity, identify_model, of_one_shape
from mia_batch.observer import Observer
from mia_batch.pipeline import corpora
from mia_batch.pipeline.corpora import Corpora
from mia_batch.pipeline.folder import Manifest, RunFolder, agree, others_at_work
from mia_batch.plugins import extra
from mia_batch.schemas import Targets
from mia_batch.settings import (
    RESOURCES,
    Settings,
    endpoint_settings,
    endpoint_tokenizer,
)
from mia_batch.tables import scan
from mia_batch.views import RunModel, View, find_view_type

# Which attacks a run computes, what prevents others, and what is decided by them.

_PRIMARY = (  # the first that is computed is decided by: the order in which they find most
    *("min_k_plus_plus_20_v1", "token_hits_less_expected_v1", "token_hits_v1"),
    *("probe_leading_rarity_v1", "samia_matched_v1"),
)
_PRIMARY_OF_TUNED = (
    "wbc_v1",
    "self_prompt_difference_v1",
    "reference_token_difference_v1",
)
_REMOTE = ("openai", "replay")
_WORD_SETTINGS = {"samples", "probes", "probe_every", "probe_words", "rarity_from"}
_LABELLED_FALSE = (
    "texts of the input that are labelled member = false, where there are any"
)
_COMPUTED = {
    "vocabulary_mean",
    "vocabulary_variance",
    "top_logprob",
    "rank",
    "support_mass",
}
"""Columns of the logprobs table that not every engine can compute."""


def chosen_attacks(settings: Settings) -> list[Attack]:
    """Choose the attacks: those asked for by name, else all that evidence and settings allow."""
    combined = [get(views.COMBINATION)] if settings.combine else []
    if settings.attacks is None:
        chosen = _possible(_kinds(settings.evidence or "samples"), settings) + combined
    else:
        chosen = [get(name) for name in settings.attacks]
        chosen += [attack for attack in combined if attack not in chosen]
        for attack in chosen:
            if (obstacle := next(_obstacles(attack, settings), None)) is not None:
                raise SettingsError(f"attacks: {attack.name} {obstacle}")
    learned = [attack for attack in chosen if attack.evidence == "scores"]
    if learned and len(chosen) - len(learned) < 2:
        raise SettingsError(
            f"attacks: {learned[0].name} is learned from the scores of others, and"
            " needs two at least; name more, or leave attacks= out"
        )
    return chosen


def _possible(kinds: tuple[str, ...], settings: Settings) -> list[Attack]:
    """Return the preset's attacks on these kinds of evidence, less those that are prevented."""
    attacks = [get(name) for name in defaults(settings.preset, kinds)]
    if not attacks:
        wanted = f"preset {settings.preset!r} has no attack on {' and '.join(kinds)}"
        raise SettingsError(f"evidence: {wanted}; leave it out, or name attacks")
    pairs = [(attack, next(_obstacles(attack, settings), None)) for attack in attacks]
    # Next tokens tell more than next words; but of a reference model words alone are
    # asked.
    is_token = (views.TOKEN in attack.reads and why is None for attack, why in pairs)
    if not settings.combine and any(is_token):  # what is combined reads both
        words = settings.reference_model or settings.model_fields_set & _WORD_SETTINGS
        left_out = views.TOKEN if words else views.PROBE
        pairs = [
            (each, why)
            for each, why in pairs
            if left_out not in each.reads_of("samples")
        ]
    possible = [attack for attack, obstacle in pairs if obstacle is None]
    for attack, obstacle in pairs:
        if attack.kind not in {each.kind for each in possible}:
            raise SettingsError(f"evidence: {attack.name} {obstacle}")
    return possible


_SAMPLE_SETTINGS = _WORD_SETTINGS | {"token_points", "nudge"}
_SAMPLE_SETTINGS |= {"temperature", "top_k", "top_p", "paraphrases_column"}
"""Settings that say how a model is sampled: who gives one wants samples."""
_STRONGEST = 64
_POINTS = 128  # at which log-probabilities are asked: each costs one token
ONE_PASS_TAKEN = (
    "each text is read once for the log-probabilities of its tokens, because the model"
    " runs here; --evidence samples asks for next tokens instead"
)


def with_evidence(settings: Settings) -> Settings:
    """Take one pass of log-probabilities where the model runs here, if nothing else is wanted."""
    # It tells more than samples, for less; the texts of highest scores are continued
    # afterwards. Of log-probabilities at points more are asked than of words.
    if (
        settings.evidence == "probe-logprobs"
        and "probes" not in settings.model_fields_set
    ):
        return settings.model_copy(update={"probes": _POINTS})
    asked_for = settings.evidence, settings.attacks
    is_asked = asked_for != (None, None) or settings.preset != "default"
    if (
        is_asked
        or settings.engine in _REMOTE
        or settings.model_fields_set & _SAMPLE_SETTINGS
    ):
        return settings
    attacks = [get(name) for name in ONE_PASS]
    chosen = tuple(each.name for each in attacks if not any(_obstacles(each, settings)))
    if not chosen or settings.primary not in (None, *chosen):
        return settings
    filled: dict[str, object] = {"evidence": "logprobs", "attacks": chosen}
    if settings.continue_strongest is None:
        filled["continue_strongest"] = _STRONGEST
    if "long_texts" not in settings.model_fields_set:
        filled["long_texts"] = "stride"
    return settings.model_copy(update=filled)


_ABOUT_PASSAGES = ("controls", "known_corpus", "known_index")


def check_together(settings: Settings, attacks: Sequence[Attack]) -> None:
    reads = {
        attack.name: {RunModel.parse(model) for model, _ in attack.reads}
        for attack in attacks
    }
    making = [
        name
        for name, models in reads.items()
        if any(model.is_trained_here for model in models)
    ]
    learned = [each.name for each in attacks if each.evidence == "scores"]
    engine = settings.engine
    if settings.shard is not None and making:
        raise SettingsError(
            f"shard= cannot be used with {making[0]}: reference models are made by one"
            " process; run without --shard, with --workers where several engines are"
            " to answer"
        )
    continued = any(
        views.CONTINUATION in attack.reads_of("samples") for attack in attacks
    )
    about = [name for name in _ABOUT_PASSAGES if getattr(settings, name)]
    if about and not (continued or settings.extract or settings.continue_strongest):
        raise SettingsError(
            f"{about[0]}= is about passages that come out, and these attacks ask for"
            " none; add continue_strongest= or extract=, or take preset 'matched'"
        )
    executor = settings.executor
    if executor and (engine == "openai" or (engine == "replay" and settings.workers)):
        raise SettingsError(
            "ray= and workers= are about engines that are started, and engine "
            f"{engine!r} is not started; leave them out"
        )
    if executor and (reason := extra("executors", executor).obstacle()) is not None:
        raise SettingsError(f"ray= and workers= need Ray: {reason}")
    if not settings.stop_when_decided:
        return
    if learning := learned + making:
        raise SettingsError(
            f"stop_when_decided= cannot be used with {learning[0]}, which learns "
            "from the answers about all texts; leave one of the two out"
        )
    if settings.shard is not None:
        raise SettingsError(
            "stop_when_decided= cannot be used with shard: what is asked depends on the"
            " answers about all texts; run without --shard"
        )


def _kinds(evidence: str) -> tuple[str, ...]:
    return ("samples", "logprobs") if evidence == "both" else (evidence,)


def _obstacles(attack: Attack, settings: Settings) -> Iterator[str]:
    if settings.evidence is not None and attack.evidence != "scores":
        kinds = _kinds(settings.evidence)
        given = {attack.evidence, attack.kind}.intersection(kinds)
        if not given or (attack.logprobs and "logprobs" not in kinds):
            needed = "logprobs" if given else attack.kind
            yield f"needs evidence {needed!r}, but evidence= is {settings.evidence!r}"
    for wanted in attack.settings:
        names = wanted.split("|")
        if all(getattr(settings, name) is None for name in names):
            yield f"needs {' or '.join(f'{name}=' for name in names)}"
    if "similarity" in attack.columns and (reason := why_no_similarity()) is not None:
        yield f"cannot be computed: {reason}"
    if settings.engine == "replay" and attack.reads_of("logprobs"):
        yield "needs log-probabilities, and engine 'replay' has recorded samples only"
    if settings.engine == "replay" and any(
        model != "target" for model, _ in attack.reads
    ):
        yield "needs answers of another model, and engine 'replay' has those of one"
    if "support_mass" in attack.columns and settings.temperature != 1:
        yield "needs temperature 1: only there is the mass known that decoding keeps"
    at_points = set(filter(views.is_next_token, attack.reads_of("logprobs")))
    if settings.engine == "openai" and "token_ids" in attack.columns:
        yield "needs token ids, which no endpoint gives"
    yield from _view_obstacles(attack, settings)
    at_points |= {views.TOKEN}.intersection(attack.reads)
    if settings.engine == "openai" and at_points and settings.tokenizer is None:
        yield "needs tokenizer= at an endpoint: without it nobody knows the true token"
    if attack.reads_of("logprobs") and settings.engine != "auto":
        bounded = (
            {"vocabulary_mean"} if settings.engine == "openai" and at_points else set()
        )
        reason = why_not(
            settings.engine, "logprobs", engine_abilities([attack]) - bounded
        )
        if reason is not None:
            yield f"cannot be computed: {reason}; take engine transformers"


def _view_obstacles(attack: Attack, settings: Settings) -> Iterator[str]:
    if views.CLOZE in attack.reads and settings.engine == "replay":
        yield "asks questions, which no recording has answered"
    if views.TOKEN not in attack.reads or views.CLOZE in attack.reads:
        return
    if EXPECTED in attack.columns and settings.stop_when_decided:
        yield "needs answers about all texts, and stop_when_decided= leaves some out"
    if settings.engine == "replay" or settings.chat:
        yield "needs a model that goes on with a text: no chat, and no recording"
    elif settings.nudge and settings.engine != "auto":
        yield from filter(
            None, [why_not(settings.engine, "samples", frozenset({"nudge"}))]
        )


def reads_tokens(audit: Audit) -> bool:
    return any(views.TOKEN in attack.reads_of("samples") for attack in audit.asking)


def engine_columns(attacks: Iterable[Attack]) -> frozenset[str]:
    read = {column for attack in attacks for column in attack.columns}
    return frozenset(read & _COMPUTED)


def engine_abilities(attacks: Iterable[Attack]) -> frozenset[str]:
    """Name what an engine must be able to do with log-probabilities: columns, noise, answers."""
    attacks = [*attacks]
    views_read = {view for attack in attacks for _, view in attack.reads_of("logprobs")}
    abilities = (find_view_type(view).abilities for view in views_read)
    return engine_columns(attacks).union(*abilities)


def verdict_plan(settings: Settings, attacks: Sequence[str]) -> VerdictPlan:
    """Say what the run is to decide and how: by the attack asked for, else the first likely one."""
    # Of tuned models those for them tell most (``benches.finetuned``).
    tuned = settings.preset == "spv" or settings.reference_kind == "base"
    likely = _PRIMARY_OF_TUNED + _PRIMARY if tuned else _PRIMARY
    primary = settings.primary or next(
        (name for name in likely if name in attacks), attacks[0]
    )
    if primary not in attacks:
        raise SettingsError(
            f"primary= is {primary!r}, which is not computed; name it in attacks= too"
        )
    same = settings.model_dump(
        include={field.name for field in fields(VerdictPlan)} - {"primary"}
    )
    same |= {"adjustment": "e-bh"} if settings.stop_when_decided else {}
    null_set = settings.non_members_known or _LABELLED_FALSE
    return VerdictPlan(primary=primary, null_set=null_set, **same)


def with_reference(settings: Settings) -> Settings:
    given = settings.reference_model is not None and settings.reference_kind is None
    if not given or settings.engine in _REMOTE:
        return settings
    reference = (str(settings.reference_model), settings.reference_revision)
    kind = "other"
    # Which checks of the models say better
    with suppress(OSError, ValueError, SettingsError):
        if of_one_shape((str(settings.model), settings.revision), reference):
            kind = "base"
    return settings.model_copy(update={"reference_kind": kind})


# What a run has answered stays: later requests add scores to it.


def decision_of(manifest: Manifest) -> dict[str, Any]:
    """Return how a run decides by now: as it was planned, or as an answer that replaced it."""
    return manifest.replaced[-1]["now"] if manifest.replaced else manifest.plan


def with_planned(
    settings: Settings, asked: Iterable[str], manifest: Manifest
) -> Settings:
    """Add the attacks that are asked for to those that a run has scored, and keep its primary."""
    if not manifest.plan or settings.replace:
        return settings
    scored = manifest.made.get("scores", manifest.plan).get("attacks", ())
    for name in scored:
        if not meant(name, names()):
            raise SettingsError(
                f"attacks: the run has scores of {name}, whose formula is not known"
                " here; give attacks_from= with its file, or replace= to take these"
                " scores away"
            )
    filled, together = dict[str, object](), tuple(asked)
    if missing := [name for name in scored if name not in together]:
        together = tuple(dict.fromkeys((*scored, *together)))
        filled["attacks"] = together
    primary = decision_of(manifest)["primary"]
    if settings.primary is None and verdict_plan(settings, together).primary != primary:
        filled["primary"] = primary
    kinds = {*_kinds(settings.evidence)} if settings.evidence and missing else None
    for attack in map(get, together):
        if (
            kinds
            and attack.evidence != "scores"
            and not kinds & {attack.evidence, attack.kind}
        ):
            filled["evidence"] = None
    return settings.model_copy(update=filled) if filled else settings


def check_decision(audit: Audit) -> None:
    """Refuse a request that would answer otherwise than planned, unless it is to replace that."""
    if not audit.manifest.plan or audit.settings.replace:
        return
    decided, now = (
        decision_of(audit.manifest),
        json.loads(json.dumps(asdict(audit.plan))),
    )
    changed = [
        f"{name}= is {decided[name]!r} in the plan and {value!r} now"
        for name, value in now.items()
        if name not in ("null_set", "seed") and value != decided.get(name)
    ]
    if changed:
        raise SettingsError(
            f"{'; '.join(changed)}: the planned answer of {audit.run.folder} stays."
            " Give replace= to answer so instead, marked as exploratory and recorded"
            " in run.json"
        )


def recorded_settings(settings: Settings, recording: Recording) -> Settings:
    """Fill in what a recording decides where the request does not."""
    # Without probes the length-matched family, and all of SaMIA where candidates count
    # as whole.
    filled: dict[str, object] = {}
    if "samples" not in settings.model_fields_set:
        filled["samples"] = recording.most_samples
    by_default = settings.attacks is None and settings.preset == "default"
    if by_default and not recording.has_probes:
        whole = () if recording.has_finish_reason else defaults("samia")
        filled["attacks"] = (*defaults("matched"), *whole)
    return settings.model_copy(update=filled)


# What the stages share.

_MODEL_SETTINGS = {  # names of models that settings give, and the settings of source and revision
    "target": ("model", "revision"),
    "reference": ("reference_model", "reference_revision"),
    "masked": ("masked_model", None),
}


@dataclass
class Audit:
    """One audit at work."""

    # ``among``: the ``target_id`` of texts that may be asked now; None = all. ``turn``
    # is held while what all shards share is made or stored. ``kept`` is the engine of
    # the run's own models, between two of them. ``most_paid`` is what each part that is
    # foreseen can cost at an endpoint. An audit that only looks at evidence has no
    # ``plan``.

    settings: Settings
    observer: Observer
    attacks: list[Attack]
    recording: Recording | None
    run: RunFolder
    manifest: Manifest = field(default_factory=Manifest)
    among: pl.Series | None = None
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    kept: KeptEngine = field(default_factory=KeptEngine)
    most_paid: list[Tokens] = field(default_factory=list)
    plan: VerdictPlan = field(init=False)
    _identities: dict[Any, ModelIdentity] = field(
        init=False, default_factory=dict, repr=False
    )

    @classmethod
    def begin(cls, settings: Settings, observer: Observer) -> Audit:
        """Check all that can be checked before a model's libraries are loaded."""
        recording = None
        if settings.samples_from is not None:
            column = settings.candidate_column
            recording = Recording.open(settings.samples_from, candidate_column=column)
            settings = recorded_settings(settings, recording)
        given, settings = settings, with_evidence(settings)
        if settings.evidence != given.evidence:
            observer.stage(ONE_PASS_TAKEN)
        settings, attacks = with_reference(settings), chosen_attacks(settings)
        # What is set later changes nothing
        if given.preset == "default" and given.attacks is None:
            chosen = tuple(
                attack.name for attack in attacks if attack.evidence != "scores"
            )
            settings = settings.model_copy(update={"attacks": chosen})
        begun = Manifest.of(settings.folder)
        if begun is not None and begun.plan and not settings.replace:
            settings = with_planned(
                settings, [attack.name for attack in attacks], begun
            )
            attacks = chosen_attacks(settings)
        settings = corpora.with_yardstick(corpora.with_windows(settings), attacks)
        audit = cls(settings, observer, attacks, recording, RunFolder(settings.folder))
        audit.plan = verdict_plan(settings, [attack.name for attack in audit.attacks])
        check_together(settings, audit.attacks)
        corpora.check_paths(settings)
        if begun is not None:
            audit.manifest = begun
            check_decision(audit)
            # Attacks that are asked for later read what is there: a nudge is kept off,
            # and long texts are in pieces, where defaults alone would say otherwise.
            settled = {"nudge": 0.0, "long_texts": "stride"}
            there = {
                name
                for name, value in settled.items()
                if begun.evidence.get(name) == value
            }
            there -= settings.model_fields_set
            audit.settings = settings.model_copy(
                update={name: settled[name] for name in there}
            )
            return audit
        engine, why = audit.engine("samples")
        if engine == "openai":
            endpoint_settings(settings)
            endpoint_tokenizer(settings)
        evidence = settings.evidence_values | {"engine": engine}
        models = {"target": {"source": audit.source("target")}}
        audit.manifest = Manifest(evidence=evidence, engine_choice=why, models=models)
        return audit

    @classmethod
    def finished(cls, run: RunFolder, settings: Settings, observer: Observer) -> Audit:
        manifest = run.manifest
        asked = [attack.name for attack in chosen_attacks(settings)]
        settings = with_planned(settings, asked, manifest)
        audit = cls(settings, observer, chosen_attacks(settings), None, run, manifest)
        audit.plan = verdict_plan(settings, [attack.name for attack in audit.attacks])
        check_decision(audit)
        return audit

    @property
    def planned_attacks(self) -> list[Attack]:
        """The attacks of the plan, by which the answer is given; others were added later."""
        planned = {*self.manifest.plan.get("attacks", ())}
        if self.plan.primary not in planned or self.manifest.replaced:
            return self.attacks
        return [attack for attack in self.attacks if attack.name in planned]

    @property
    def later_attacks(self) -> list[str]:
        """Names of the attacks that were added to those of the plan."""
        planned = {attack.name for attack in self.planned_attacks}
        return [attack.name for attack in self.attacks if attack.name not in planned]

    @cached_property
    def corpora(self) -> Corpora:
        return corpora.open_corpora(self.settings)

    def target_table(self) -> pl.LazyFrame:
        made = self.manifest.made.get("targets")
        if made is not None and made == self.corpora.fingerprint(self.settings):
            return self.run.scan("targets")
        return self.corpora.targets(self.settings)

    def order_table(self) -> pl.LazyFrame:
        """Open the targets in the order of asking, as far as it has been drawn."""
        made = self.manifest.made.get("targets")
        if made is not None and made == self.corpora.fingerprint(self.settings):
            return scan(self.run.order, Targets)
        return self.corpora.targets(self.settings)

    def rounds(self) -> RoundsTest | None:
        """Prepare the test of groups that stop when they are decided, if the plan says so."""
        if self.plan.adjustment != "e-bh":
            return None
        sets = read_comparison_sets(self.target_table())
        if not (sets.targets.size and sets.nulls.size):
            raise SettingsError(
                "stop_when_decided= compares groups with others that are known to be"
                " outside the training data; give non_members="
            )
        return RoundsTest(sets, self.plan)

    @cached_property
    def placebo(self) -> Attack | None:
        """The primary attack on the reference model, which cannot know the audited texts."""
        given = (
            self.settings.reference_model and self.settings.non_members and self.attacks
        )
        if not given or self.recording is not None or self.plan.adjustment == "e-bh":
            return None
        primary = next(
            attack for attack in self.attacks if attack.name == self.plan.primary
        )
        has_placebo = all(
            model == "target" and find_view_type(view).suits_placebo
            for model, view in (*primary.reads, *primary.logprobs)
        )
        if (
            not has_placebo
            or primary.evidence == "scores"
            or FREQUENCY in primary.columns
        ):
            return None
        reads = tuple(("reference", view) for _, view in primary.reads)
        logprobs = tuple(("reference", view) for _, view in primary.logprobs)
        name = f"placebo_of_{primary.name}"
        return replace(primary, name=name, reads=reads, logprobs=logprobs)

    @property
    def asking(self) -> list[Attack]:
        """The attacks for which models are asked: those of the run, and the placebo."""
        return [*self.attacks, *filter(None, [self.placebo])]

    def reading(self, kind: EvidenceKind) -> list[Attack]:
        return [attack for attack in self.asking if attack.reads_of(kind)]

    @property
    def continues(self) -> bool:
        return any(
            views.CONTINUATION in attack.reads for attack in self.reading("samples")
        )

    @cached_property
    def shard(self) -> Shard | None:
        return Shard.parse(self.settings.shard) if self.settings.shard else None

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Change the manifest: shards do so in turns, and each from what all have stored."""
        with self.turn:
            stored = Manifest.of(self.run.folder) if self.shard is not None else None
            if stored is not None and stored.stored != self.manifest.stored:
                self.manifest = stored
            yield
            if self.shard is not None and not self.manifest.custody:
                self.save()

    @property
    def has_others(self) -> bool:
        return self.shard is not None and bool(
            others_at_work(self.run.folder, self.shard)
        )

    def refuse_others(self, why: str) -> None:
        """Raise `RunFolderError` if other shards are at work, who read what is to be removed."""
        if self.has_others:
            where = f"while other shards are at work in {self.run.folder}"
            raise RunFolderError(f"{why}, {where}; wait for their end")

    def save(self) -> None:
        """Store the manifest of a run that is not finished: it has no root."""
        self.manifest.custody = {}
        with self.turn:
            self.manifest.write(self.run.folder)

    def begin_change(self) -> None:
        """Take the root away from a finished run before its tables change."""
        if self.manifest.custody:
            self.save()

    def agree(self, wanted: Mapping[str, Any], model: str | None = None) -> None:
        """Record what changes evidence, or identifies a model; refuse all that differs."""
        manifest, of = self.manifest, "" if model is None else f" of model {model!r}"
        known = (
            manifest.evidence
            if model is None
            else manifest.models.setdefault(model, {})
        )
        agree(known, wanted, self.run.folder, of)

    def digest_input(
        self, setting: str, files: Iterable[SourceFile], agreed: str = ""
    ) -> str:
        """Record the files of a setting; with ``agreed`` evidence is made from them under it."""
        self.manifest.inputs[setting] = digest_each(files)
        digest = digest_of(self.manifest.inputs[setting])
        if agreed:
            self.agree({agreed: digest})
        return digest

    def request(self) -> None:
        """Take in this request, if the run's evidence was made with the same settings."""
        wanted = dict(self.settings.evidence_values)
        if (
            self.settings.engine == "auto"
            and self.manifest.evidence["engine"] not in _REMOTE
        ):
            del wanted["engine"]
        if self.reading("samples"):
            wanted["decode"] = None if self.recording else self._scope
        self.agree(wanted)
        self.agree({"source": self.source("target")}, "target")
        self.record_replaced()
        self.manifest.settings = self.settings.model_dump(mode="json")

    def record_replaced(self) -> None:
        """Record what this request takes away from a run that has answered."""
        manifest = self.manifest
        if not (manifest.plan and self.settings.replace):
            return
        scored = manifest.made.get("scores", manifest.plan).get("attacks", ())
        names = [attack.name for attack in self.attacks]
        now = json.loads(json.dumps(asdict(self.plan)))
        before = {name: decision_of(manifest).get(name) for name in now}
        gone = [name for name in scored if name not in names]
        if gone or now != before:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            record = {
                "at": at,
                "attacks_taken_away": gone,
                "before": before,
                "now": now,
            }
            manifest.replaced.append(record)

    @property
    def _scope(self) -> DecodeScope:
        whole = any(attack.whole_candidates for attack in self.reading("samples"))
        return "whole" if whole else "matched"

    def budget(
        self,
        view: View,
        max_model_len: int,
        max_attempts: int = MOST_ATTEMPTS,
        *,
        resumes: bool = True,
    ) -> Budget:
        how = view.decode
        return Budget(
            scope=how.scope or self.manifest.evidence.get("decode") or self._scope,
            max_length=max_model_len if how.scope else self.settings.max_length,
            max_model_len=max_model_len,
            max_attempts=min(max_attempts, how.max_attempts),
            spare=how.spare,
            most_new=how.most_new,
            resumes=resumes,
        )

    def source(self, model: str) -> dict[str, str | None]:
        """Say which model it is: name, revision, and its digest where it runs here."""
        if model not in _MODEL_SETTINGS:
            made: dict[str, str | None] = self.manifest.models[model]["source"]
            return made
        setting, revision_setting = _MODEL_SETTINGS[model]
        name = str(getattr(self.settings, setting))
        revision = (
            getattr(self.settings, revision_setting) if revision_setting else None
        )
        digest = None
        if model != "target" or self.settings.engine not in _REMOTE:
            try:
                asked = "fills" if model == "masked" else "logprobs"
                digest = self.identity(name, revision, asked).digest
            except SettingsError as error:
                said = str(error).removeprefix("model: ")
                raise SettingsError(f"{setting}: {said}") from error
        return {"name": name, "revision": revision, "digest": digest}

    def identity(
        self, name: str, revision: str | None, asked: str = "logprobs"
    ) -> ModelIdentity:
        """Identify a model once: checking its weights takes seconds."""
        key = name, revision, asked
        if key not in self._identities:
            self._identities[key] = identify_model(*key)
        return self._identities[key]

    def engine(
        self, kind: EvidenceKind, columns: Iterable[str] = (), model: str = "target"
    ) -> tuple[str, str]:
        name = self.settings.engine
        if kind == "samples" and model == "target":
            if name in _REMOTE:
                return name, "asked for"
            if name == "auto" and (known := self.manifest.evidence.get("engine")):
                return known, self.manifest.engine_choice
        own = engine_types().get(
            self.manifest.models.get("target", {}).get(f"{kind} engine", "")
        )
        place, elsewhere = self._place(model), self.settings.executor is not None
        if (
            name == "auto"
            and own
            and why_not(own.name, kind, frozenset(columns)) is None
        ):
            if model != "target":
                return own.name, "as the target, so that their answers compare"
            if own.start and own.obstacle(elsewhere) is None:
                return own.name, "as before"
        # An endpoint gives those of its own model only
        asked = "auto" if name in _REMOTE else name
        reads = {view for each in self.attacks for view in each.reads_of(kind)}
        points = kind == "logprobs" and views.PROBE in reads
        return choose_engine(
            asked,
            kind,
            frozenset(columns),
            model=place,
            elsewhere=elsewhere,
            gpus=self.settings.tensor_parallel_size,
            at_points=points,
        )

    def spec(
        self,
        model: str,
        kind: EvidenceKind,
        columns: frozenset[str] = frozenset(),
        same: str | None = None,
    ) -> tuple[EngineSpec, str]:
        """Say what is to be started and why; ``same`` is an engine that is there already."""
        settings, fills = self.settings, kind == "fills"
        if same is not None:
            engine, why = same, "it gave the log-probabilities"
        elif fills:
            engine, why = "masked", "it fills gaps"
        else:
            engine, why = self.engine(kind, columns, model)
        arguments = {} if fills else dict(settings.engine_arg)
        # Which the arguments were not meant for
        if engine == "transformers" != settings.engine:
            arguments = {
                k: v
                for k, v in arguments.items()
                if k not in RESOURCES - {"batch_size"}
            }
        if model != "target":
            arguments.pop("max_model_len", None)
            placebo = self.placebo if model == "reference" else None
            columns &= engine_columns(filter(None, [placebo]))
        drawn = settings.model_dump(include={"temperature", "top_k", "top_p"})
        spec = EngineSpec(
            engine=engine,
            kind=kind,
            model=self._place(model),
            revision=self.manifest.models[model]["source"]["revision"],
            dtype="float32" if fills else settings.dtype,
            tensor_parallel_size=1 if fills else settings.tensor_parallel_size,
            decoding=Decoding(**drawn),
            columns=columns,
            logits_bytes=settings.logits_memory and settings.logits_memory << 20,
            engine_args=arguments,
        )
        return spec, why

    def _place(self, model: str) -> str:
        if model in _MODEL_SETTINGS:
            return str(getattr(self.settings, _MODEL_SETTINGS[model][0]))
        return str(self.run.folder / str(self.source(model)["name"]))
