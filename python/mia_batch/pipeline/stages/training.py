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

from mia_batch.errors import SettingsError
from mia_batch.evidence.parts import Missing, scan_parts
from mia_batch.evidence.request import forecast
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import identify_model, weights_source
from mia_batch.pipeline import costs, sessions
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.evidence import (
    LEARNT,
    LogprobsStage,
    RowUnits,
    ask_samples,
    assign_halves,
    read_setting_corpus,
    list_texts,
)
from mia_batch.pipeline.stages.questions import (
    list_models,
    prompt_parts,
    sample_parts,
)
from mia_batch.plugins import extra
from mia_batch.prompts import first_tokens
from mia_batch.recipes import RECIPES, Recipe
from mia_batch.schemas import Prompts, Samples
from mia_batch.settings import Settings, endpoint_tokenizer
from mia_batch.tables import is_followed, sink
from mia_batch.views import SHADOW, RunModel, View, build_view

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
        audit, settings = self.audit, self.audit.settings
        if self._is_wanted:
            files = read_setting_corpus(audit, "prompts_from").files
            described = {
                "prompts_from": audit.digest_input("prompts_from", files),
                "prompt_tokens": settings.prompt_tokens,
                "generation_tokens": settings.generation_tokens,
            }
            audit.agree(described)
            self._check_prompts()

    def n_missing(self) -> int:
        return self._missing().count().left

    def run(self) -> None:
        audit = self.audit
        if not self._is_wanted:
            return
        view = self._view
        for block in Missing(
            RowUnits(self._prompts), prompt_parts(audit, view)
        ).blocks():
            sink(
                view.fill_prompts(block.units),
                audit.run.path("prompts") / block.part_name,
                Prompts,
            )
        missing = self._missing()
        if not missing.count().left:
            return
        audit.begin_change()
        drawn = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}  # equation 7
        cut = [
            name
            for name, value in drawn.items()
            if getattr(audit.settings, name) != value
        ]
        if cut:
            audit.observer.stage(
                f"generations are drawn with another {' and '.join(cut)} than the"
                " target's own distribution: a reference tuned on them may hide what"
                " the target remembers; temperature 1, top_k 0 and top_p 1 are that"
                " distribution"
            )
        for name, text in self._cost(missing):
            audit.observer.stage(f"{name}: {text}")
        ask_samples(audit, "target", "generating", {view: missing})

    def remaining(self) -> Iterator[tuple[str, str]]:
        settings = self.audit.settings
        if self._is_wanted:
            self._check_prompts()
            left = self.n_missing() * self._view.samples
            most = left * settings.generation_tokens
            yield "generations", f"{left:,} texts, at most {most:,} tokens"
            yield from self._cost(self._missing())

    def _cost(self, missing: Missing) -> Iterator[tuple[str, str]]:
        audit = self.audit
        if costs.is_asked_remotely(audit, "target"):
            measure, budget = sessions.forecast_reading(audit, "target")
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

    def _missing(self) -> Missing:
        audit, view = self.audit, self._view
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
        """Cut as many texts as there are generations to their first tokens; about no target."""
        audit, settings = self.audit, self.audit.settings
        if costs.is_asked_remotely(audit, "target"):
            tokenizer = endpoint_tokenizer(settings)
        else:
            tokenizer = Tokenizer.load(settings.model, settings.revision)
        texts = read_setting_corpus(audit, "prompts_from").documents.select("text")
        found = first_tokens(
            texts,
            n=settings.generations,
            n_tokens=settings.prompt_tokens,
            tokenizer=tokenizer,
        )
        each = ceil(settings.generations / max(1, found.height))
        chosen = found.head(ceil(settings.generations / each)).with_row_index(
            "target_row"
        )
        return chosen.cast({"target_row": pl.UInt32})


def read_generations(audit: Audit) -> list[str]:
    """Return what the target said, each after its prompt; empty answers are left out."""
    key = ("target", "generation")
    samples = scan_parts(audit.run.path("samples"), Samples, key)
    asked = scan_parts(audit.run.path("prompts"), Prompts, key).select(
        "target_id", "context"
    )
    said = samples.filter(pl.col("candidate").str.contains(r"\S")).join(
        asked, on="target_id"
    )
    rows = said.sort("target_id", "sample_index").head(audit.settings.generations)
    text = pl.coalesce("prompt", "context") + pl.col("candidate")
    return rows.select(text=text).collect(engine="streaming")["text"].to_list()


# A model of the run's own: what it is made of, whether it can be, what it takes.

_CANDIDATE = "candidate"
_HELD_OUT = 0.1  # of texts that are not the audit's
_FEWEST = 2  # texts
_COMPARED = 100  # texts on which two tokenizers are compared
_NAME_DIGITS = 16  # of the digest of what a model is made of


class TunedModel:
    """One model that is tuned from the target's base, if a text needs its log-probabilities."""

    def __init__(self, audit: Audit, model: str) -> None:
        self.audit = audit
        self.model = model
        self._named = RunModel.parse(model)
        self._is_shadow = self._named.role == SHADOW
        self._asked = LogprobsStage(audit, model)

    def prepare(self) -> None:
        """Refuse another way of making a model that the run has; what failed may be changed."""
        if not self._known:
            self.audit.manifest.models.pop(self.model, None)
        self._agree(recipe=asdict(self.recipe))

    def validate(self) -> None:
        """Refuse, before a model is asked, what the run's model was not made of or cannot be."""
        audit, tuned = self.audit, extra("models", "tuned")
        base, revision = self._base
        try:
            digest = identify_model(base, revision).digest
        except SettingsError as error:
            said = str(error).removeprefix("model: ")
            raise SettingsError(f"reference_model: {said}") from error
        self._agree(base={"name": base, "revision": revision, "digest": digest})
        if self.model == _CANDIDATE:
            files = read_setting_corpus(audit, "candidate_from").files
            self._agree(texts=audit.digest_input("candidate_from", files))
        if self._known:
            return
        if (reason := tuned.why_no_finetuning()) is not None:
            raise SettingsError(reason)
        tuned.check_base(base, revision, self.recipe)
        self._check_tokens()
        if self.model == _CANDIDATE and (n := len(self._texts)) < _FEWEST:
            raise SettingsError(
                f"candidate_from: there are {n} texts in it; give at least {_FEWEST}"
            )

    def _agree(self, **described: object) -> None:
        self.audit.agree(described, self.model)

    @property
    def is_wanted(self) -> bool:
        """Whether it is asked about a text, or was made of others than it would be now."""
        there = self._known and not self._asked.count_prompts().left
        return not (there and self._is_of_these_texts)

    def making(self) -> TrainingConfig:
        base, revision = self._base
        making: TrainingConfig = extra("models", "tuned").TrainingConfig(
            base=base, revision=revision, texts=self._texts, recipe=self.recipe
        )
        return making

    def record(self, making: TrainingConfig, made: TrainedModel) -> None:
        audit = self.audit
        name = made.path.relative_to(audit.run.folder).as_posix()
        digest = identify_model(str(made.path), None).digest
        if self._known and self._known["source"]["digest"] != digest:
            self._asked.forget_all()
        audit.manifest.models[self.model] |= {
            "source": {"name": name, "revision": None, "digest": digest},
            "made_from": making.made_from,
            "n_texts": len(making.texts),
            "losses": made.losses,
        }
        audit.save()

    def remaining(self) -> Iterator[tuple[str, str]]:
        """Say how long training is, and what it takes; of shadow models once for all."""
        if self._is_shadow and self._named.number:
            return
        said = self.model != SELF_PROMPT or not GenerationsStage(self.audit).n_missing()
        if (
            self._known
            and said
            and not self._asked.has_new_texts()
            and self._is_of_these_texts
        ):
            return
        (base, revision), n_models = self._base, self.audit.settings.shadows or 1
        n_models = n_models if self._is_shadow else 1
        name = f"{n_models} shadow models" if self._is_shadow else f"model {self.model}"
        each = " each" if n_models > 1 else ""
        steps = f"{n_models * self.recipe.steps(self.n_texts):,} steps"
        yield name, f"{base} tuned on {self.n_texts:,} texts{each}: {steps}"
        yield (
            f"{name}, size",
            f"{extra('models', 'tuned').describe_size(base, revision, self.recipe)}{each}",
        )

    @property
    def _known(self) -> dict[str, Any]:
        """What the run says of the model; empty where it has not made it."""
        known = self.audit.manifest.models.get(self.model, {})
        return known if "source" in known else {}

    @property
    def _is_of_these_texts(self) -> bool:
        """Whether it was tuned on what the target has said, if on that."""
        if self.model != SELF_PROMPT:
            return True
        return bool(
            self.making().made_from["texts"] == self._known["made_from"]["texts"]
        )

    @property
    def recipe(self) -> Recipe:
        settings = self.audit.settings
        return replace(
            RECIPES["reference"],
            method=settings.tuning,
            epochs=settings.tuning_epochs,
            learning_rate=settings.tuning_rate,
            batch_size=settings.tuning_batch,
            max_tokens=settings.tuning_tokens,
            rank=settings.tuning_rank,
            held_out=0.0 if self._is_shadow else _HELD_OUT,
            seed=(settings.seed + self._named.number) % 2**31,
        )

    @property
    def _base(self) -> tuple[str, str | None]:
        """The reference model, which is asked for as the target's base, else what is known."""
        audit, settings = self.audit, self.audit.settings
        if settings.reference_model is not None:
            return weights_source(settings.reference_model, settings.reference_revision)
        if costs.is_asked_remotely(audit, "target"):
            raise SettingsError(
                f"the model {self.model!r} is tuned from the target's base, which an"
                " endpoint does not give; give it as reference_model="
            )
        return weights_source(settings.model, settings.revision)

    @property
    def _texts(self) -> list[str]:
        if self.model == SELF_PROMPT:
            return read_generations(self.audit)
        if self.model == _CANDIDATE:
            return list_texts(read_setting_corpus(self.audit, "candidate_from"))
        return (
            assign_halves(self.audit, self.model)
            .filter("learnt", "trained")["target"]
            .to_list()
        )

    @property
    def n_texts(self) -> int:
        if self.model == SELF_PROMPT:
            return self.audit.settings.generations
        if self.model == _CANDIDATE:
            return len(self._texts)
        table = self.audit.open_targets().filter(pl.col("role").is_in(LEARNT))
        return int(table.select(pl.col("target").count() // 2).collect().item())

    def _check_tokens(self) -> None:
        """Refuse a base that reads other tokens: probabilities per token would not compare."""
        audit, settings = self.audit, self.audit.settings
        if costs.is_asked_remotely(audit, "target") or settings.reference_model is None:
            return
        own = Tokenizer.load(settings.model, settings.revision)
        base = Tokenizer.load(*self._base, setting="reference_model")
        there = audit.open_targets().select("target").drop_nulls()
        texts = there.head(_COMPARED).collect()["target"].to_list()
        if own.encode_prompts(texts) != base.encode_prompts(texts):
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

    def __init__(self, audit: Audit, models: Iterable[str]) -> None:
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
        audit, folder = self.audit, self.audit.run.folder / "models"
        models = {
            name: model for name, model in self._models.items() if model.is_wanted
        }
        if models:
            audit.begin_change()
            folder.mkdir(exist_ok=True)
            self._make(models, folder)
        for work in folder.glob(".*.work"):
            shutil.rmtree(work, ignore_errors=True)

    def _make(self, models: dict[str, TunedModel], folder: Path) -> None:
        say = self.audit.observer.stage
        if len(models) > 1:
            steps = sum(model.recipe.steps(model.n_texts) for model in models.values())
            say(f"{len(models)} models to tune: {steps:,} steps")
        begun: dict[str, TrainingConfig] = {}

        def wanted() -> Iterator[TrainingJob]:
            for name, model in models.items():
                begun[name] = making = model.making()
                n, steps = len(making.texts), making.recipe.steps(len(making.texts))
                say(
                    f"model {name}: {making.base} tuned on {n:,} texts, {steps:,} steps"
                )
                yield name, making, folder / making.digest[:_NAME_DIGITS]

        with closing(
            train_models(self.audit.settings, self.audit.run.folder, wanted(), say)
        ) as made:
            for name, there in made:
                models[name].record(begun.pop(name), there)


# Where models are tuned: one after another in this process, or on the machines of a
# cluster.


def train_models(
    settings: Settings,
    folder: Path,
    jobs: Iterator[TrainingJob],
    say: Callable[[str], None],
) -> Generator[tuple[str, TrainedModel]]:
    """Train models, several at once on Ray if the settings ask for it; iterate as each is there."""
    if settings.executor is not None:
        if not is_followed(folder / "run.json"):
            yield from extra("executors", settings.executor).trained(
                settings, folder, jobs, say
            )
            return
        say(
            "models are tuned one after another: no worker sees the folder of a run in"
            " a store"
        )
    for name, config, path in jobs:
        report = partial(report_on_model, say, name)
        yield name, extra("models", "tuned").train_or_load(config, path, report)


def report_on_model(say: Callable[[str], None], name: str, sentence: str) -> None:
    say(f"{name}: {sentence}")
