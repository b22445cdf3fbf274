"""An audit at work: its request, run folder and manifest, which all stages share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import polars as pl

from mia_batch.attacks import Attack
from mia_batch.attacks.attack import CONTINUATION, PROBE, TOKEN
from mia_batch.corpus import (
    SourceFile,
    combine_digests,
    describe_addresses,
    digest_files,
)
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.evidence.collect import FREQUENCY
from mia_batch.evidence.endpoint.batch import BatchFiles
from mia_batch.evidence.endpoint.wire import NO_TOKENS, Tokens
from mia_batch.evidence.engines.registry import (
    choose_engine,
    engine_types,
    list_foreign_arguments,
    why_not,
)
from mia_batch.evidence.parts import Shard
from mia_batch.evidence.process import KeptEngine
from mia_batch.evidence.recorded_logprobs import LogprobRecording
from mia_batch.evidence.replay import Recording
from mia_batch.evidence.request import (
    MOST_ATTEMPTS,
    Budget,
    DecodeScope,
    Decoding,
    EngineSpec,
    EvidenceKind,
)
from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.e_values import RoundsTest
from mia_batch.inference.findings import DecisionRule
from mia_batch.models.formats import find_format
from mia_batch.models.weights import ModelIdentity
from mia_batch.observer import Observer
from mia_batch.pipeline.corpora import Corpora, open_corpora
from mia_batch.pipeline.folder import (
    AuditFolder,
    Manifest,
    agree,
    holds_answers,
    list_live_shards,
)
from mia_batch.pipeline.request import (
    AuditRequest,
    list_columns_needed,
    read_decision,
    settle,
    settle_rescoring,
)
from mia_batch.schemas import Targets
from mia_batch.settings import (
    Settings,
    endpoint_settings,
    endpoint_tokenizer,
)
from mia_batch.tables import scan
from mia_batch.views import View, find_view_type

_MODEL_SETTINGS = {
    "target": ("model", "revision"),
    "reference": ("reference_model", "reference_revision"),
    "masked": ("masked_model", None),
}
"""The settings of a model's name and of its revision."""


def _begins_anew(settings: Settings, begun_run: Manifest) -> bool:
    """Return whether a run holds nothing but another request, to which no answer came."""
    is_same = begun_run.settings == settings.model_dump(mode="json")
    is_alone = settings.shard is None and "masked" not in begun_run.models
    return is_alone and not is_same and not holds_answers(settings.folder, begun_run)


@dataclass
class Audit:
    """One audit at work.

    Attributes
    ----------
    request
        What is to be done; it changes only where an endpoint cannot do what was asked.
    run
        The folder that it works in.
    observer
        Is shown what it does.
    manifest
        What ``run.json`` says, or will say.
    askable_targets
        ``target_id`` of the texts that may be asked now; None: all.
    turn
        Held while what all shards share is made or stored.
    kept_engine
        The engine of the run's own models, between two of them.
    begins_anew
        Whether the folder has an earlier request, to which no answer came.
    awaits_engine
        Whether the target's engine is kept for a later stage.
    most_paid
        What each part that a dry run foresees can cost at an endpoint.
    most_paid_if_left
        The same of what is asked as far as the money lasts.
    batch
        Files by which an endpoint is asked; None: requests are sent.
    """

    request: AuditRequest
    run: AuditFolder
    observer: Observer
    manifest: Manifest = field(default_factory=Manifest)
    askable_targets: pl.Series | None = None
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    kept_engine: KeptEngine = field(default_factory=KeptEngine)
    begins_anew: bool = False
    awaits_engine: bool = False
    most_paid: list[Tokens] = field(default_factory=list)
    most_paid_if_left: Tokens = NO_TOKENS
    batch: BatchFiles | None = None
    _identities: dict[Any, ModelIdentity] = field(
        init=False, default_factory=dict, repr=False
    )

    @classmethod
    def begin(cls, settings: Settings, observer: Observer) -> Audit:
        """Check all that can be checked before a model's libraries are loaded."""
        request = settle(settings)
        audit = cls(request, AuditFolder(request.settings.folder), observer)
        begun_run = Manifest.load(request.settings.folder)
        if begun_run is not None:
            audit.begins_anew = _begins_anew(request.settings, begun_run)
        if begun_run is not None and not audit.begins_anew:
            audit.manifest = begun_run
            return audit
        engine, reason = audit.find_engine("samples")
        if request.settings.source == "endpoint":
            endpoint_settings(request.settings)
            endpoint_tokenizer(request.settings)
        audit.manifest = Manifest(
            evidence=request.settings.evidence_values | {"engine": engine},
            engine_choice=reason,
            models={"target": {"source": audit.find_source("target")}},
        )
        if request.settings.source == "engine":
            # Refuses what the engine cannot be started with, while there is no folder
            audit.build_spec("target", "samples", started_engine=engine)
        return audit

    @classmethod
    def reopen(cls, run: AuditFolder, settings: Settings, observer: Observer) -> Audit:
        """Open a finished run to score it anew."""
        manifest = run.manifest
        return cls(settle_rescoring(settings, manifest), run, observer, manifest)

    # What was asked for.

    @property
    def settings(self) -> Settings:
        return self.request.settings

    @property
    def attacks(self) -> list[Attack]:
        return list(self.request.attacks)

    @property
    def rule(self) -> DecisionRule:
        return self.request.rule

    @property
    def recording(self) -> Recording | LogprobRecording | None:
        """What another program computed of the target model; None: it is asked."""
        return self.request.recording or self.request.logprobs.get("target")

    @cached_property
    def shard(self) -> Shard | None:
        return Shard.parse(self.settings.shard) if self.settings.shard else None

    @property
    def planned_attacks(self) -> list[Attack]:
        """The attacks of the plan, by which the answer is given; others were added later."""
        planned_names = {*self.manifest.plan.get("attacks", ())}
        if self.rule.primary not in planned_names or self.manifest.replaced:
            return self.attacks
        return [attack for attack in self.attacks if attack.name in planned_names]

    @property
    def later_attacks(self) -> list[str]:
        """Names of the attacks that were added to those of the plan."""
        planned_names = {attack.name for attack in self.planned_attacks}
        return [
            attack.name for attack in self.attacks if attack.name not in planned_names
        ]

    @cached_property
    def placebo(self) -> Attack | None:
        """The primary attack on the reference model, which cannot know the audited texts."""
        settings = self.settings
        can_compare = settings.reference_model and settings.non_members
        if not can_compare or not self.attacks or self.recording is not None:
            return None
        if self.rule.adjustment == "e-bh":
            return None
        primary = next(
            attack for attack in self.attacks if attack.name == self.rule.primary
        )
        if primary.evidence == "scores" or FREQUENCY in primary.columns:
            return None
        for model, view in (*primary.reads, *primary.logprobs):
            if model != "target" or not find_view_type(view).suits_placebo:
                return None
        return replace(
            primary,
            name=f"placebo_of_{primary.name}",
            reads=tuple(("reference", view) for _, view in primary.reads),
            logprobs=tuple(("reference", view) for _, view in primary.logprobs),
        )

    @property
    def attacks_and_placebo(self) -> list[Attack]:
        """The attacks for which models are asked."""
        if self.placebo is None:
            return self.attacks
        return [*self.attacks, self.placebo]

    def list_attacks_on(self, kind: EvidenceKind) -> list[Attack]:
        """Return the attacks, with the placebo, that read one kind of evidence."""
        return [
            attack for attack in self.attacks_and_placebo if attack.list_reads(kind)
        ]

    @property
    def continues_texts(self) -> bool:
        return any(
            CONTINUATION in attack.reads for attack in self.list_attacks_on("samples")
        )

    @property
    def reads_tokens(self) -> bool:
        """Whether models are asked for single tokens, which a nudge may help."""
        return any(
            TOKEN in attack.list_reads("samples") for attack in self.attacks_and_placebo
        )

    # Texts.

    @cached_property
    def corpora(self) -> Corpora:
        return open_corpora(self.settings)

    @property
    def _has_targets(self) -> bool:
        """Whether the targets table is there, made of these texts."""
        fingerprint = self.manifest.made.get("targets")
        if fingerprint is None:
            return False
        return bool(fingerprint == self.corpora.fingerprint(self.settings))

    def open_targets(self) -> pl.LazyFrame:
        if self._has_targets:
            return self.run.scan("targets")
        return self.corpora.targets(self.settings)

    def open_targets_in_order(self) -> pl.LazyFrame:
        """Open the targets in the order of asking, as far as it has been drawn."""
        if self._has_targets:
            return scan(self.run.order, Targets)
        return self.corpora.targets(self.settings)

    def build_rounds_test(self) -> RoundsTest | None:
        """Return the test of groups that stop when they are decided, if the rule says so."""
        if self.rule.adjustment != "e-bh":
            return None
        sets = read_comparison_sets(self.open_targets())
        if not (sets.targets.size and sets.nulls.size):
            raise SettingsError(
                "stop_when_decided= compares groups with others that are known to be"
                " outside the training data; give non_members="
            )
        return RoundsTest(sets, self.rule)

    # The manifest, which shards share.

    @contextmanager
    def changing_manifest(self) -> Iterator[None]:
        """Change the manifest: shards do so in turns, and each from what all have stored."""
        is_shared = self.shard is not None
        with self.turn:
            stored = Manifest.load(self.run.folder) if is_shared else None
            if stored is not None and stored.stored != self.manifest.stored:
                self.manifest = stored
            yield
            if is_shared and not self.manifest.custody:
                self.save()

    @property
    def has_other_shards(self) -> bool:
        return self.shard is not None and bool(
            list_live_shards(self.run.folder, self.shard)
        )

    def refuse_other_shards(self, why: str) -> None:
        """Raise `RunFolderError` if other shards are at work, who read what is to be removed."""
        if self.has_other_shards:
            raise RunFolderError(
                f"{why}, while other shards are at work in {self.run.folder}; wait for"
                " their end"
            )

    def save(self) -> None:
        """Store the manifest of a run that is not finished: it has no root."""
        self.manifest.custody = {}
        with self.turn:
            self.manifest.write(self.run.folder)

    def begin_change(self) -> None:
        """Take the root away from a finished run before its tables change."""
        if self.manifest.custody:
            self.save()

    def agree(self, values: Mapping[str, Any], model: str | None = None) -> None:
        """Record what changes evidence, or identifies a model; refuse all that differs."""
        if model is None:
            agree(self.manifest.evidence, values, self.run.folder, "")
            return
        recorded = self.manifest.models.setdefault(model, {})
        agree(recorded, values, self.run.folder, f" of model {model!r}")

    def digest_input(
        self, setting: str, files: Iterable[SourceFile], agreed_as: str = ""
    ) -> str:
        """Record the files of a setting; evidence that is made from them agrees on a name."""
        files = tuple(files)
        stamps = describe_addresses(files)
        if stamps:
            self.manifest.addresses[setting] = stamps
        self.manifest.inputs[setting] = digest_files(files)
        digest = combine_digests(self.manifest.inputs[setting])
        if agreed_as:
            self.agree({agreed_as: digest})
        return digest

    def record_request(self) -> None:
        """Record this request, if the run's evidence was made with the same settings."""
        evidence = dict(self.settings.evidence_values)
        is_started_here = self.manifest.source == "engine"
        if self.settings.engine == "auto" and is_started_here:
            del evidence["engine"]
        if self.list_attacks_on("samples"):
            evidence["decode"] = None if self.recording else self._decode_scope
        self.agree(evidence)
        self.agree({"source": self.find_source("target")}, "target")
        self.record_replaced()
        self.manifest.settings = self.settings.model_dump(mode="json")

    def record_replaced(self) -> None:
        """Record what this request takes away from a run that has answered."""
        manifest = self.manifest
        if not (manifest.plan and self.settings.replace):
            return
        scored = manifest.made.get("scores", manifest.plan).get("attacks", ())
        names = [attack.name for attack in self.attacks]
        removed = [name for name in scored if name not in names]
        rule = json.loads(json.dumps(asdict(self.rule)))
        rule_before = {name: read_decision(manifest).get(name) for name in rule}
        if removed or rule != rule_before:
            record = {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "attacks_taken_away": removed,
                "before": rule_before,
                "now": rule,
            }
            manifest.replaced.append(record)

    # Models and engines.

    @property
    def _decode_scope(self) -> DecodeScope:
        attacks = self.list_attacks_on("samples")
        return "whole" if any(each.whole_candidates for each in attacks) else "matched"

    def build_budget(
        self,
        view: View,
        max_model_len: int,
        max_attempts: int = MOST_ATTEMPTS,
        *,
        resumes: bool = True,
    ) -> Budget:
        """Return how far a view's answers are decoded."""
        decode = view.decode
        scope = (
            decode.scope or self.manifest.evidence.get("decode") or self._decode_scope
        )
        return Budget(
            scope=scope,
            max_length=max_model_len if decode.scope else self.settings.max_length,
            max_model_len=max_model_len,
            max_attempts=min(max_attempts, decode.max_attempts),
            spare=decode.spare,
            most_new=decode.most_new,
            resumes=resumes,
        )

    def asks_endpoint(self, model: str) -> bool:
        """Return whether a model of the run is asked at an endpoint."""
        return self.manifest.source == "endpoint" and model == "target"

    def find_source(self, model: str) -> dict[str, str | None]:
        """Return which model it is: name, revision, and its digest where it runs here."""
        if model not in _MODEL_SETTINGS:
            source: dict[str, str | None] = self.manifest.models[model]["source"]
            return source
        name_setting, revision_setting = _MODEL_SETTINGS[model]
        name = str(getattr(self.settings, name_setting))
        revision = (
            getattr(self.settings, revision_setting) if revision_setting else None
        )
        digest = None
        is_opened_here = model != "target" or self.settings.source == "engine"
        if is_opened_here and model not in self.request.logprobs:
            kind = "fills" if model == "masked" else "logprobs"
            try:
                digest = self.identify(name, revision, kind).digest
            except SettingsError as error:
                reason = str(error).removeprefix("model: ")
                raise SettingsError(f"{name_setting}: {reason}") from error
        return {"name": name, "revision": revision, "digest": digest}

    def identify(
        self, name: str, revision: str | None, kind: str = "logprobs"
    ) -> ModelIdentity:
        """Identify a model once: checking its weights takes seconds."""
        key = name, revision, kind
        if key not in self._identities:
            self._identities[key] = find_format(name).identify(*key)
        return self._identities[key]

    def find_engine(
        self, kind: EvidenceKind, columns: Iterable[str] = (), model: str = "target"
    ) -> tuple[str, str]:
        """Return the engine that gives one kind of evidence of a model, and why it does."""
        engine, needed = self.settings.engine, frozenset(columns)
        if kind == "samples" and model == "target":
            if self.settings.source != "engine":
                return engine, "asked for"
            recorded = self.manifest.evidence.get("engine")
            if engine == "auto" and recorded:
                return recorded, self.manifest.engine_choice
        is_elsewhere = self.settings.executor is not None
        of_target = engine_types().get(
            self.manifest.models.get("target", {}).get(f"{kind} engine", "")
        )
        place = self._find_place(model)
        is_unable = of_target and why_not(of_target.name, kind, needed, place)
        if engine != "auto" or is_unable:
            of_target = None
        if of_target and model != "target":
            return of_target.name, "as the target, so that their answers compare"
        if of_target and of_target.start and of_target.obstacle(is_elsewhere) is None:
            return of_target.name, "as before"
        views_read = {
            view for attack in self.attacks for view in attack.list_reads(kind)
        }
        return choose_engine(
            # An endpoint answers for its own model only
            engine if self.settings.source == "engine" else "auto",
            kind,
            needed,
            model=place,
            elsewhere=is_elsewhere,
            gpus=self.settings.tensor_parallel_size,
            at_points=kind == "logprobs" and PROBE in views_read,
        )

    def build_spec(
        self,
        model: str,
        kind: EvidenceKind,
        columns: frozenset[str] = frozenset(),
        started_engine: str | None = None,
    ) -> tuple[EngineSpec, str]:
        """Return what is to be started, and why; refuse what the engine cannot do."""
        settings, fills_gaps = self.settings, kind == "fills"
        if started_engine is not None:
            engine, reason = started_engine, "it gave the log-probabilities"
        elif fills_gaps:
            engine, reason = "masked", "it fills gaps"
        else:
            engine, reason = self.find_engine(kind, columns, model)
        if model == "reference" and self.placebo is not None:
            columns &= list_columns_needed([self.placebo])
        elif model != "target":
            columns = frozenset()
        drawn = settings.model_dump(include={"temperature", "top_k", "top_p"})
        spec = EngineSpec(
            engine=engine,
            kind=kind,
            model=self._find_place(model),
            revision=self.manifest.models[model]["source"]["revision"],
            dtype="float32" if fills_gaps else settings.dtype,
            tensor_parallel_size=1 if fills_gaps else settings.tensor_parallel_size,
            decoding=Decoding(**drawn),
            columns=columns,
            logits_bytes=settings.logits_memory and settings.logits_memory << 20,
            engine_args=self._choose_engine_arguments(model, kind, engine),
        )
        engine_types()[engine].check(spec)
        return spec, reason

    def _choose_engine_arguments(
        self, model: str, kind: EvidenceKind, engine: str
    ) -> dict[str, Any]:
        """Return the arguments of ``engine_arg`` that are meant for this engine and model."""
        if kind == "fills":
            return {}
        # What no engine of the run takes is refused by the engine that is started.
        foreign = frozenset[str]()
        if engine != self.settings.engine:
            settings = (self.settings.model, self.settings.reference_model)
            foreign = list_foreign_arguments(engine, filter(None, settings))
        if model != "target":
            foreign |= {"max_model_len"}
        arguments = self.settings.engine_arg.items()
        return {name: value for name, value in arguments if name not in foreign}

    def _find_place(self, model: str) -> str:
        """Return the name or folder by which a model is opened."""
        if model in _MODEL_SETTINGS:
            return str(getattr(self.settings, _MODEL_SETTINGS[model][0]))
        return str(self.run.folder / str(self.find_source(model)["name"]))
