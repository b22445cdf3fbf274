"""Models that a run makes: generations of the target, shadow models, their training."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from functools import cached_property, partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.corpus.conversations import CONVERSATION
from mia_batch.errors import SettingsError
from mia_batch.evidence.parts import Missing, scan_parts
from mia_batch.evidence.request import forecast
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import identify_model, weights_source
from mia_batch.observer import Observer
from mia_batch.pipeline import costs, sessions
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.evidence import (
    LEARNT,
    LogprobsStage,
    RowUnits,
    ask_samples,
    assign_halves,
    list_texts,
    read_setting_corpus,
)
from mia_batch.pipeline.stages.questions import (
    list_models,
    prompt_parts,
    sample_parts,
)
from mia_batch.plugins import extra
from mia_batch.prompts import build_lessons, first_questions, first_tokens
from mia_batch.recipes import RECIPES, Recipe
from mia_batch.schemas import Prompts, Samples
from mia_batch.settings import Settings, endpoint_tokenizer
from mia_batch.tables import is_followed, sink
from mia_batch.views import (
    SHADOW,
    TARGET,
    RunModel,
    View,
    build_view,
    find_template_source,
)

if TYPE_CHECKING:
    from mia_batch.extras.tune.jobs import TrainedModel, TrainingConfig, TrainingJob

# The stage that lets the target speak: on what it says, a reference model is tuned.

SELF_PROMPT = "self_prompt"  # the model that is tuned on what the target says


class GenerationsStage(Stage):
    """The target goes on with first tokens of public texts: SPV-MIA, section 4.2."""

    name = "generations"
    activity = "generating texts to tune on"
    phase = "models"
    costly_content = "generations"

    def validate(self) -> None:
        if not self._is_wanted:
            return
        audit = self.audit
        files = read_setting_corpus(audit, "prompts_from").files
        values = {
            "prompts_from": audit.digest_input("prompts_from", files),
            "prompt_tokens": audit.settings.prompt_tokens,
            "generation_tokens": audit.settings.generation_tokens,
        }
        audit.agree(values)
        self._check_prompts()

    def count_missing(self) -> int:
        return self._find_missing().count().left

    def run(self) -> None:
        if not self._is_wanted:
            return
        audit = self.audit
        view = self._view
        prompts = Missing(RowUnits(self._prompts), prompt_parts(audit, view))
        for block in prompts.blocks():
            path = audit.run.path("prompts") / block.part_name
            sink(view.fill_prompts(block.units), path, Prompts)
        missing = self._find_missing()
        if not missing.count().left:
            return
        audit.begin_change()
        own_distribution = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}  # equation 7
        changed = [
            name
            for name, value in own_distribution.items()
            if getattr(audit.settings, name) != value
        ]
        if changed:
            audit.observer.stage(
                f"generations are drawn with another {' and '.join(changed)} than the"
                " target's own distribution: a reference tuned on them may hide what"
                " the target remembers; temperature 1, top_k 0 and top_p 1 are that"
                " distribution"
            )
        for name, text in self._forecast_cost(missing):
            audit.observer.stage(f"{name}: {text}")
        ask_samples(audit, TARGET, "generating", {view: missing})

    def remaining(self) -> Iterator[tuple[str, str]]:
        if not self._is_wanted:
            return
        self._check_prompts()
        n_texts = self.count_missing() * self._view.samples
        n_tokens = n_texts * self.audit.settings.generation_tokens
        yield "generations", f"{n_texts:,} texts, at most {n_tokens:,} tokens"
        yield from self._forecast_cost(self._find_missing())

    def _forecast_cost(self, missing: Missing) -> Iterator[tuple[str, str]]:
        audit = self.audit
        if not audit.asks_endpoint("target"):
            return
        measure, budget = sessions.forecast_reading(audit, TARGET)
        workload = forecast(missing.blocks(), measure, budget(self._view))
        for name, text in costs.forecast_cost(audit, workload):
            yield f"generations: {name}", text

    @property
    def _is_wanted(self) -> bool:
        return SELF_PROMPT in list_models(self.audit)

    @property
    def _view(self) -> View:
        view = build_view(self.audit.settings, "target", "generation")
        return replace(view, samples=ceil(view.samples / self._prompts.height))

    def _find_missing(self) -> Missing:
        audit = self.audit
        view = self._view
        return Missing(
            RowUnits(self._prompts),
            sample_parts(audit, view),
            view.samples,
            retry_failed=audit.settings.retry_failed,
            work=sessions.estimate_work(audit, view),
        )

    def _check_prompts(self) -> None:
        if self._prompts.is_empty():
            raise SettingsError(
                "prompts_from: there is no text in it; give at least one"
            )

    @cached_property
    def _prompts(self) -> pl.DataFrame:
        """The first tokens of as many texts as there are generations, of no target."""
        settings = self.audit.settings
        documents = read_setting_corpus(self.audit, "prompts_from").documents
        if settings.conversations == "answers":
            template = None if settings.chat else find_template_source(settings, TARGET)
            beginnings = first_questions(
                documents, n=settings.generations, tokenizer=template
            )
        else:
            beginnings = self._find_first_tokens(documents.select("text"))
        per_prompt = ceil(settings.generations / max(1, beginnings.height))
        n_prompts = ceil(settings.generations / per_prompt)
        prompts = beginnings.head(n_prompts).with_row_index("target_row")
        return prompts.cast({"target_row": pl.UInt32})

    def _find_first_tokens(self, texts: pl.LazyFrame) -> pl.DataFrame:
        settings = self.audit.settings
        if self.audit.asks_endpoint("target"):
            tokenizer = endpoint_tokenizer(settings)
        else:
            tokenizer = Tokenizer.load(settings.model, settings.revision)
        return first_tokens(
            texts,
            n=settings.generations,
            n_tokens=settings.prompt_tokens,
            tokenizer=tokenizer,
        )


def read_generations(audit: Audit) -> pl.DataFrame:
    """Read what the target generated, without empty answers: ``text`` and ``context``.

    Where these are no conversations, a text includes its prompt, and the context is
    empty.
    """
    key = ("target", "generation")
    samples = scan_parts(audit.run.path("samples"), Samples, key)
    prompts = scan_parts(audit.run.path("prompts"), Prompts, key)
    is_text = pl.col("candidate").str.contains(r"\S")
    answers = samples.filter(is_text).join(
        prompts.select("target_id", "context"), on="target_id"
    )
    ordered = answers.sort("target_id", "sample_index")
    rows = ordered.head(audit.settings.generations)
    prompt = pl.coalesce("prompt", "context")
    columns = {"context": pl.lit(""), "text": prompt + pl.col("candidate")}
    if audit.settings.conversations == "answers":
        columns = {"context": pl.col("context"), "text": pl.col("candidate")}
    return rows.select(**columns).collect(engine="streaming")


# A model of the run's own: what it is made of, whether it can be, what it takes.

_CANDIDATE = "candidate"
_HELD_OUT = 0.1  # of texts that are not the audit's
_FEWEST = 2  # texts
_COMPARED = 100  # texts on which two tokenizers are compared
_NAME_DIGITS = 16  # of the digest of what a model is made of


class TunedModel:
    """One model that is tuned from the target's base, if a text needs its log-probabilities."""

    def __init__(self, audit: Audit, model: RunModel) -> None:
        self.audit = audit
        self.model = model
        self._number = model.number
        self._is_shadow = model.role == SHADOW
        self._logprobs = LogprobsStage(audit, model)

    def prepare(self) -> None:
        """Refuse another way of making a model that the run has; what failed may be changed."""
        if not self._record:
            self.audit.manifest.models.pop(self.model, None)
        self._agree(recipe=asdict(self.recipe))

    def validate(self) -> None:
        """Refuse, before a model is asked, what the run's model was not made of or cannot be."""
        audit = self.audit
        tuned = extra("models", "tuned")
        base, revision = self._base
        try:
            digest = identify_model(base, revision).digest
        except SettingsError as error:
            message = str(error).removeprefix("model: ")
            raise SettingsError(f"reference_model: {message}") from error
        self._agree(base={"name": base, "revision": revision, "digest": digest})
        if self.model == _CANDIDATE:
            files = read_setting_corpus(audit, "candidate_from").files
            self._agree(texts=audit.digest_input("candidate_from", files))
        if self._record:
            return
        reason = tuned.why_no_finetuning()
        if reason is not None:
            raise SettingsError(reason)
        tuned.check_base(base, revision, self.recipe)
        self._check_tokens()
        if self.model == _CANDIDATE:
            n = self.n_texts
            if n < _FEWEST:
                raise SettingsError(
                    f"candidate_from: there are {n} texts in it; give at least"
                    f" {_FEWEST}"
                )

    def _agree(self, **values: object) -> None:
        self.audit.agree(values, self.model)

    @property
    def is_wanted(self) -> bool:
        """Return whether it is asked about a text, or was made of others than it would be now."""
        if not self._record or self._logprobs.count_prompts().left:
            return True
        return not self._is_of_these_texts

    def build_config(self) -> TrainingConfig:
        base, revision = self._base
        lessons = self._read_lessons()
        texts, targets = lessons["text"].to_list(), []
        if self._learns_answers:
            texts, targets = lessons["context"].to_list(), texts
        config: TrainingConfig = extra("models", "tuned").TrainingConfig(
            base=base,
            revision=revision,
            texts=texts,
            targets=targets,
            recipe=self.recipe,
        )
        return config

    def record(self, config: TrainingConfig, trained: TrainedModel) -> None:
        """Record the model in the manifest; answers of another one are removed."""
        audit = self.audit
        name = trained.path.relative_to(audit.run.folder).as_posix()
        digest = identify_model(str(trained.path), None).digest
        if self._record and self._record["source"]["digest"] != digest:
            self._logprobs.forget_all()
        audit.manifest.models[self.model] |= {
            "source": {"name": name, "revision": None, "digest": digest},
            "made_from": config.made_from,
            "n_texts": len(config.texts),
            "losses": trained.losses,
        }
        audit.save()

    def remaining(self) -> Iterator[tuple[str, str]]:
        """Iterate over how long training is, and what it takes; of shadow models once for all."""
        if self._is_shadow and self._number:
            return
        if not self._may_train:
            return
        base, revision = self._base
        n_models = (self.audit.settings.shadows or 1) if self._is_shadow else 1
        name = f"{n_models} shadow models" if self._is_shadow else f"model {self.model}"
        each_model = " each" if n_models > 1 else ""
        steps = f"{n_models * self.recipe.steps(self.n_texts):,} steps"
        yield name, f"{base} tuned on {self.n_texts:,} texts{each_model}: {steps}"
        size = extra("models", "tuned").describe_size(base, revision, self.recipe)
        yield f"{name}, size", f"{size}{each_model}"

    @property
    def _may_train(self) -> bool:
        """Return whether it is still to be trained, as far as can be known in a dry run."""
        if self.model == SELF_PROMPT and GenerationsStage(self.audit).count_missing():
            return True
        if not self._record or self._logprobs.has_new_texts():
            return True
        return not self._is_of_these_texts

    @property
    def _record(self) -> dict[str, Any]:
        """The manifest's record of the model; empty where the run has not made it."""
        record = self.audit.manifest.models.get(self.model, {})
        return record if "source" in record else {}

    @property
    def _is_of_these_texts(self) -> bool:
        """Return whether it was tuned on what the target has said, if on that."""
        if self.model != SELF_PROMPT:
            return True
        texts = self.build_config().made_from["texts"]
        return bool(texts == self._record["made_from"]["texts"])

    @property
    def _learns_answers(self) -> bool:
        return self.audit.settings.conversations == "answers"

    @property
    def recipe(self) -> Recipe:
        settings = self.audit.settings
        return replace(
            RECIPES["reference"],
            form="answer" if self._learns_answers else "causal",
            method=settings.tuning,
            epochs=settings.tuning_epochs,
            learning_rate=settings.tuning_rate,
            batch_size=settings.tuning_batch,
            max_tokens=settings.tuning_tokens,
            rank=settings.tuning_rank,
            held_out=0.0 if self._is_shadow else _HELD_OUT,
            seed=(settings.seed + self._number) % 2**31,
        )

    @property
    def _base(self) -> tuple[str, str | None]:
        """The model to tune: the reference model, where one is set, else the target."""
        settings = self.audit.settings
        if settings.reference_model is not None:
            return weights_source(settings.reference_model, settings.reference_revision)
        if self.audit.asks_endpoint("target"):
            raise SettingsError(
                f"the model {self.model!r} is tuned from the target's base, which an"
                " endpoint does not give; give it as reference_model="
            )
        return weights_source(settings.model, settings.revision)

    def _read_lessons(self) -> pl.DataFrame:
        """Read each ``text`` that is learnt, and the ``context`` that stands before it."""
        if self.model == SELF_PROMPT:
            return read_generations(self.audit)
        if self.model == _CANDIDATE:
            corpus = read_setting_corpus(self.audit, "candidate_from")
            if corpus.has_conversations:
                return self._place(corpus.documents.rename({"text": "target"}))
            texts = pl.Series("text", list_texts(corpus), dtype=pl.String)
        else:
            halves = assign_halves(self.audit, self.model)
            learnt = halves.filter("learnt", "trained")
            if self._learns_answers:
                targets = self.audit.run.scan("targets")
                names = learnt.select("target_id").lazy()
                return self._place(names.join(targets, on="target_id", how="left"))
            texts = learnt["target"].alias("text")
        return texts.to_frame().with_columns(context=pl.lit(""))

    def _place(self, answers: pl.LazyFrame) -> pl.DataFrame:
        """Return answers as the target's chat template writes them."""
        has_words = pl.col("target").str.contains(r"\S")
        rows = answers.filter(has_words).select(CONVERSATION, "target")
        template = find_template_source(self.audit.settings, TARGET)
        lessons = build_lessons(rows.collect(engine="streaming"), template)
        return lessons.filter(pl.col("reason").is_null())

    @property
    def n_texts(self) -> int:
        if self.model == SELF_PROMPT:
            return self.audit.settings.generations
        if self.model == _CANDIDATE:
            return self._read_lessons().height
        table = self.audit.open_targets().filter(pl.col("role").is_in(LEARNT))
        return int(table.select(pl.col("target").count() // 2).collect().item())

    def _check_tokens(self) -> None:
        """Refuse a base that reads other tokens: probabilities per token would not compare."""
        audit = self.audit
        settings = audit.settings
        if audit.asks_endpoint("target") or settings.reference_model is None:
            return
        target_tokenizer = Tokenizer.load(settings.model, settings.revision)
        base_tokenizer = Tokenizer.load(*self._base, setting="reference_model")
        targets = audit.open_targets().select("target").drop_nulls()
        texts = targets.head(_COMPARED).collect()["target"].to_list()
        tokens = target_tokenizer.encode_prompts(texts)
        if tokens != base_tokenizer.encode_prompts(texts):
            raise SettingsError(
                f"reference_model: {self._base[0]!r} cuts texts into other tokens than"
                " the target, so that their probabilities do not compare; give the"
                " model that the target was tuned from"
            )


class TuningStage(Stage):
    """Tune the models that texts need, as many at once as there are workers."""

    name = "models"
    activity = "tuning reference models"
    phase = "models"

    def __init__(self, audit: Audit, models: Iterable[RunModel]) -> None:
        super().__init__(audit)
        self._models = {model: TunedModel(audit, model) for model in models}

    def prepare(self) -> None:
        for model in self._models.values():
            model.prepare()

    def validate(self) -> None:
        for model in self._models.values():
            model.validate()

    def remaining(self) -> Iterator[tuple[str, str]]:
        for model in self._models.values():
            yield from model.remaining()

    def run(self) -> None:
        folder = self.audit.run.folder / "models"
        models = {
            name: model for name, model in self._models.items() if model.is_wanted
        }
        if models:
            self.audit.begin_change()
            folder.mkdir(exist_ok=True)
            self._train(models, folder)
        for work in folder.glob(".*.work"):
            shutil.rmtree(work, ignore_errors=True)

    def _train(self, models: dict[RunModel, TunedModel], folder: Path) -> None:
        audit = self.audit
        say = audit.observer.stage
        if len(models) > 1:
            steps = sum(model.recipe.steps(model.n_texts) for model in models.values())
            say(f"{len(models)} models to tune: {steps:,} steps")
        configs: dict[str, TrainingConfig] = {}

        def build_jobs() -> Iterator[TrainingJob]:
            for name, model in models.items():
                config = model.build_config()
                configs[name] = config
                n = len(config.texts)
                steps = config.recipe.steps(n)
                say(
                    f"model {name}: {config.base} tuned on {n:,} texts, {steps:,} steps"
                )
                yield name, config, folder / config.digest[:_NAME_DIGITS]

        training = train_models(
            audit.settings, audit.run.folder, build_jobs(), say, audit.observer
        )
        with closing(training) as trained_models:
            for name, trained in trained_models:
                models[RunModel(name)].record(configs.pop(name), trained)


# Where models are tuned: one after another in this process, or on the machines of a
# cluster.


def train_models(
    settings: Settings,
    folder: Path,
    jobs: Iterator[TrainingJob],
    say: Callable[[str], None],
    observer: Observer | None = None,
) -> Generator[tuple[str, TrainedModel]]:
    """Train models, on Ray if the settings ask for it; iterate over them as they are finished."""
    if settings.executor is not None:
        if not is_followed(folder / "run.json"):
            executor = extra("executors", settings.executor)
            yield from executor.trained(settings, folder, jobs, say)
            return
        say(
            "models are tuned one after another: no worker sees the folder of a run in"
            " a store"
        )
    for name, config, path in jobs:
        report = partial(report_on_model, say, name)
        train = extra("models", "tuned").train_or_load
        yield name, train(config, path, report, observer)


def report_on_model(say: Callable[[str], None], name: str, sentence: str) -> None:
    say(f"{name}: {sentence}")
