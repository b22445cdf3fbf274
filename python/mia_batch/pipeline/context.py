"""What the stages of an audit share: settings, attacks, texts, models, the run and its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import polars as pl

from mia_batch.attacks import Attack
from mia_batch.attacks.attack import LOWERCASE, PROBE, TEXT
from mia_batch.corpus import SourceFile, digest_each, digest_of
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.evidence.collect import FREQUENCY
from mia_batch.evidence.engines.registry import choose_engine, engine_types, why_not
from mia_batch.evidence.parts import Shard
from mia_batch.evidence.process import KeptEngine
from mia_batch.evidence.replay import Recording
from mia_batch.evidence.request import Budget, DecodeScope, Decoding, EngineSpec, EvidenceKind
from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.e_values import RoundsTest
from mia_batch.inference.findings import VerdictPlan
from mia_batch.models.weights import identify_model
from mia_batch.observer import Observer
from mia_batch.pipeline.choice import (
    check_together,
    chosen_attacks,
    engine_columns,
    recorded_settings,
    verdict_plan,
)
from mia_batch.pipeline.corpora import (
    Corpora,
    check_paths,
    open_corpora,
    with_windows,
    with_yardstick,
)
from mia_batch.pipeline.manifest import Manifest, others_at_work
from mia_batch.pipeline.run import Run
from mia_batch.prompts.views import View
from mia_batch.settings import Settings, endpoint_settings, endpoint_tokenizer

_REMOTE = ("openai", "replay")
_OF_PLACEBO = (TEXT, LOWERCASE, PROBE)  # any model can be asked for them without more
_OF_MODELS = {
    "target": ("model", "revision"),
    "reference": ("reference_model", "reference_revision"),
    "masked": ("masked_model", None),
}
"""Names of models that settings give, and the settings of source and revision."""


@dataclass
class Audit:
    """One audit at work.

    ``among``: the ``target_id`` of texts that may be asked now; None = all.
    ``turn`` is held while what all shards of a run share is made or stored; a run that has its
    folder alone needs none. ``kept`` is the engine of the run's own models, between two of them.
    ``plan`` says what the run decides and how; an audit that only looks at evidence has none.
    """

    settings: Settings
    observer: Observer
    attacks: list[Attack]
    recording: Recording | None
    run: Run
    manifest: Manifest = field(default_factory=Manifest)
    among: pl.Series | None = None
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    kept: KeptEngine = field(default_factory=KeptEngine)
    plan: VerdictPlan = field(init=False)

    @classmethod
    def begin(cls, settings: Settings, observer: Observer) -> Audit:
        """Check all that can be checked before a model's libraries are loaded."""
        recording = None
        if settings.samples_from is not None:
            recording = Recording.open(
                settings.samples_from, candidate_column=settings.candidate_column
            )
            settings = recorded_settings(settings, recording)
        settings = with_yardstick(with_windows(settings))
        audit = cls(settings, observer, chosen_attacks(settings), recording, Run(settings.folder))
        audit.plan = verdict_plan(settings, [attack.name for attack in audit.attacks])
        check_together(settings, audit.attacks)
        check_paths(settings)
        if (begun := Manifest.of(audit.run.folder)) is not None:
            audit.manifest = begun
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
    def finished(cls, run: Run, settings: Settings, observer: Observer) -> Audit:
        """Take up a run that has its evidence; neither texts nor models are looked at."""
        audit = cls(settings, observer, chosen_attacks(settings), None, run, run.manifest)
        audit.plan = verdict_plan(settings, [attack.name for attack in audit.attacks])
        return audit

    @cached_property
    def corpora(self) -> Corpora:
        """The texts, read and found right."""
        return open_corpora(self.settings)

    def target_table(self) -> pl.LazyFrame:
        """Open the targets: the run's table where it is of these texts, else as it would be."""
        made = self.manifest.made.get("targets")
        if made is not None and made == self.corpora.fingerprint(self.settings):
            return self.run.scan("targets")
        return self.corpora.targets(self.settings)

    def rounds(self) -> RoundsTest | None:
        """Prepare the test of groups that stop when they are decided, if the plan says so."""
        if self.plan.adjustment != "e-bh":
            return None
        sets = read_comparison_sets(self.target_table())
        if not (sets.targets.size and sets.nulls.size):
            raise SettingsError(
                "setting 'stop_when_decided' compares groups with others that are known to be "
                "outside the training data; give 'non_members'"
            )
        return RoundsTest(sets, self.plan)

    @cached_property
    def placebo(self) -> Attack | None:
        """The primary attack on the reference model, which cannot know the audited texts.

        None without reference model or non-members, and where the attack reads other models, or
        what only the target model is asked for.
        """
        given = self.settings.reference_model and self.settings.non_members
        if not (given and self.attacks) or self.recording is not None:
            return None
        if self.plan.adjustment == "e-bh":
            return None
        primary = next(attack for attack in self.attacks if attack.name == self.plan.primary)
        alone = {*primary.reads, *primary.logprobs} <= {*_OF_PLACEBO}
        if not alone or primary.evidence == "scores" or FREQUENCY in primary.columns:
            return None
        reads, logprobs = (
            tuple(("reference", view) for _, view in each)
            for each in (primary.reads, primary.logprobs)
        )
        name = f"placebo_of_{primary.name}"
        return replace(primary, name=name, reads=reads, logprobs=logprobs)

    @property
    def asking(self) -> list[Attack]:
        """The attacks for which models are asked: those of the run, and the placebo."""
        return [*self.attacks, *filter(None, [self.placebo])]

    def reading(self, kind: EvidenceKind) -> list[Attack]:
        """Return the attacks, the placebo too, that read one kind of evidence."""
        return [attack for attack in self.asking if attack.reads_of(kind)]

    @cached_property
    def shard(self) -> Shard | None:
        """The shard whose blocks alone are worked on."""
        return Shard.parse(self.settings.shard) if self.settings.shard else None

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Take turns with other shards, and know what they have stored."""
        with self.turn:
            self.manifest.take_in(self.run.folder)
            yield

    @property
    def has_others(self) -> bool:
        """Whether other shards are at work."""
        return self.shard is not None and bool(others_at_work(self.run.folder, self.shard))

    def refuse_others(self, why: str) -> None:
        """Raise `RunFolderError` if other shards are at work, who read what is to be removed."""
        if self.has_others:
            raise RunFolderError(
                f"{why}, while other shards are at work in {self.run.folder}; wait for their end"
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

    def digest_input(self, setting: str, files: Iterable[SourceFile]) -> str:
        """Hash the files that a setting names, and record the hash of each."""
        self.manifest.inputs[setting] = digest_each(files)
        return digest_of(self.manifest.inputs[setting])

    def request(self) -> None:
        """Take in this request, if the run's evidence was made with the same settings."""
        wanted = dict(self.settings.evidence_values)
        if self.settings.engine == "auto" and self.manifest.evidence["engine"] not in _REMOTE:
            del wanted["engine"]
        if self.reading("samples"):
            wanted["decode"] = None if self.recording else self._scope
        self.manifest.agree(wanted, self.run.folder)
        self.manifest.agree_model("target", {"source": self.source("target")}, self.run.folder)
        self.manifest.settings = self.settings.model_dump(mode="json")

    @property
    def _scope(self) -> DecodeScope:
        """How far candidates must be decoded for the attacks."""
        whole = any(attack.whole_candidates for attack in self.reading("samples"))
        return "whole" if whole else "matched"

    def budget(self, view: View, max_model_len: int, max_attempts: int | None = None) -> Budget:
        """Return the rule for the tokens to decode in a model with this context."""
        how = view.decode
        attempts = [n for n in (max_attempts, how.max_attempts) if n is not None]
        return Budget(
            scope=how.scope or self.manifest.evidence.get("decode") or self._scope,
            max_length=max_model_len if how.scope else self.settings.max_length,
            max_model_len=max_model_len,
            max_attempts=min(attempts, default=None),
            spare=how.spare,
            most_new=how.most_new,
        )

    def source(self, model: str) -> dict[str, str | None]:
        """Say which model it is: name, revision, and its digest where it runs here."""
        if model not in _OF_MODELS:
            made: dict[str, str | None] = self.manifest.models[model]["source"]
            return made
        setting, revision_setting = _OF_MODELS[model]
        name = str(getattr(self.settings, setting))
        revision = getattr(self.settings, revision_setting) if revision_setting else None
        digest = None
        if model != "target" or self.settings.engine not in _REMOTE:
            try:
                asked = "fills" if model == "masked" else "logprobs"
                digest = identify_model(name, revision, asked).digest
            except SettingsError as error:
                raise SettingsError(
                    str(error).replace("setting 'model'", f"setting {setting!r}")
                ) from error
        return {"name": name, "revision": revision, "digest": digest}

    def engine(
        self, kind: EvidenceKind, columns: Iterable[str] = (), model: str = "target"
    ) -> tuple[str, str]:
        """Choose the engine that answers, and say why."""
        name = self.settings.engine
        if kind == "samples" and model == "target":
            if name in _REMOTE:
                return name, "asked for"
            if name == "auto" and (known := self.manifest.evidence.get("engine")):
                return known, self.manifest.engine_choice
        own = self.manifest.models.get("target", {}).get(f"{kind} engine")
        follows = name == "auto" and model != "target" and own in engine_types()
        if follows and why_not(str(own), kind, frozenset(columns)) is None:
            return str(own), "as the target, so that their answers compare"
        # An endpoint gives log-probabilities of its own model only.
        known_name = "auto" if name in _REMOTE else name
        return choose_engine(
            known_name,
            kind,
            frozenset(columns),
            model=self._place(model),
            elsewhere=self.settings.on_cluster,
        )

    def spec(
        self, model: str, kind: EvidenceKind, columns: frozenset[str] = frozenset()
    ) -> tuple[EngineSpec, str]:
        """Say what to start for a model, and why with this engine."""
        settings = self.settings
        source = self.manifest.models[model]["source"]
        arguments = dict(settings.engine_arg)
        engine, why = (
            ("masked", "it fills gaps") if kind == "fills" else self.engine(kind, columns, model)
        )
        if model != "target":
            arguments.pop("max_model_len", None)
            placebo = self.placebo if model == "reference" else None
            columns &= engine_columns(filter(None, [placebo]))
        spec = EngineSpec(
            engine=engine,
            kind=kind,
            model=self._place(model),
            revision=source["revision"],
            dtype=settings.dtype if kind != "fills" else "float32",
            tensor_parallel_size=settings.tensor_parallel_size if kind != "fills" else 1,
            decoding=Decoding(
                temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p
            ),
            columns=columns,
            logits_bytes=settings.logits_memory << 20,
            engine_args=arguments if kind != "fills" else {},
        )
        return spec, why

    def _place(self, model: str) -> str:
        """Tell where a model lies: where a setting says, or in the run's folder."""
        if model in _OF_MODELS:
            return str(getattr(self.settings, _OF_MODELS[model][0]))
        return str(self.run.folder / str(self.source(model)["name"]))
