"""Asks a model about secrets: by the stages of audits, in a run folder of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.evidence.parts import scan_parts
from mia_batch.extras.secrets.questions import Questions
from mia_batch.observer import Observer
from mia_batch.pipeline.audits import forecast_alone, run_alone
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.evidence import (
    EvidenceStage,
    LogprobsStage,
    SamplesStage,
    write_prompts,
)
from mia_batch.pipeline.stages.targets import TargetsStage
from mia_batch.schemas import LogProbs, Samples
from mia_batch.settings import NO_YARDSTICK, Settings, load_settings
from mia_batch.tables import write_table
from mia_batch.views import QUESTION, TARGET, Decode, View, ViewType

__all__ = ["Answers", "ask", "forecast"]

_SCORED, _CONTINUED = "score", "continue"  # what a target's text begins with
_NOT_SCORED = "it is continued, not scored"
_NOT_CONTINUED = "it is scored, not continued"
_NO_ECHO = "does not echo log-probabilities"
_BOUNDED = "the endpoint gives only an upper bound of a token's probability"
_UNSCORED = "a token of it has no log-probability"
_GIVEN = ViewType(build=lambda _: {}, prompt_unit="text")
_QUESTION = ViewType(
    build=lambda _: {}, prompt_unit="context", abilities=frozenset({QUESTION})
)
_SPARE_TOKENS = 16  # what may stand before a secret in an answer
_MOST_TOKENS = 512


class Answers(NamedTuple):
    """What a model gave.

    Attributes
    ----------
    scores
        ``key`` of a text, ``score``: log2 of its probability after its context, and
        ``reason`` where there is none. Empty where no probabilities were asked for.
    continuations
        ``key`` of a context, ``is_drawn``, ``candidate``, and ``reason`` where there
        is none.
    """

    scores: pl.DataFrame
    continuations: pl.DataFrame


def ask(
    questions: Questions,
    settings: Mapping[str, Any],
    folder: Path,
    observer: Observer,
    **kinds: Any,
) -> Answers:
    """Ask a model all questions, or go on with it.

    ``kinds`` are ``draws``, how many answers are drawn after each context, and
    ``has_scores``, whether log-probabilities are asked for.
    """
    audit, stages = _begin(questions, settings, folder, observer, **kinds)
    try:
        run_alone(audit, stages)
    except SettingsError as error:
        if _NO_ECHO not in str(error):
            raise
        raise SettingsError(
            f"{error}; or ask for answers alone (--answers-only)"
        ) from error
    targets = audit.run.scan("targets").select("target_id", key="target")
    scores = pl.DataFrame(schema=_SCORES)
    tables = []
    for stage in stages:
        if isinstance(stage, LogprobsStage):
            scores = _read_scores(audit, stage, targets)
        elif isinstance(stage, SamplesStage):
            tables += [_read_answers(audit, view, targets) for view in stage.views]
    return Answers(scores, pl.concat(tables))


def forecast(
    questions: Questions,
    settings: Mapping[str, Any],
    folder: Path,
    observer: Observer,
    **kinds: Any,
) -> Iterator[tuple[str, str]]:
    """Iterate over what is left to ask and its cost, as name and text; nothing is asked."""
    audit, stages = _begin(questions, settings, folder, observer, **kinds)
    yield from forecast_alone(audit, stages)


def _begin(
    questions: Questions,
    settings: Mapping[str, Any],
    folder: Path,
    observer: Observer,
    *,
    draws: int,
    has_scores: bool,
) -> tuple[Audit, list[Stage]]:
    run_settings = _build_settings(questions, settings, folder, has_scores=has_scores)
    audit = Audit.begin(run_settings, observer)
    stages: list[Stage] = [TargetsStage(audit)]
    if has_scores:
        score_view = View(
            name="secret",
            make=partial(_give_texts, texts=_list_texts(questions)),
            type=_GIVEN,
        )
        stages.append(_ScoresStage(audit, [score_view]))
    longest = max(len(secret.text.encode()) for secret in questions.secrets)
    decode = Decode(scope="whole", most_new=min(longest + _SPARE_TOKENS, _MOST_TOKENS))
    build_view = partial(
        View,
        make=partial(_give_contexts, contexts=questions.contexts),
        decode=decode,
        type=_QUESTION,
    )
    views = [build_view(name="secret_likeliest", greedy=True)]
    if draws:
        views.append(build_view(name="secret_drawn", samples=draws))
    stages.append(_AnswersStage(audit, views))
    return audit, stages


def _build_settings(
    questions: Questions,
    settings: Mapping[str, Any],
    folder: Path,
    *,
    has_scores: bool,
) -> Settings:
    """Write the keys of all questions, and build the settings of their run."""
    path = folder.with_name(f"{folder.name}.keys.parquet")
    keys = [f"{_CONTINUED} {key}" for key in questions.contexts["key"]]
    if has_scores:
        keys += [f"{_SCORED} {key}" for key in questions.texts["key"].unique().sort()]
    columns = {"text": keys}
    if questions.by_template:  # so that the run reads a template's special tokens
        columns = {"prompt": keys, "answer": keys}
    write_table(pl.DataFrame(columns), path)
    evidence: dict[str, Any] = {"evidence": "samples", "samples": 1}
    if has_scores:
        evidence = {"evidence": "logprobs", "attacks": ("loss_v1",)}
    shared = {"report": False, "yardstick": NO_YARDSTICK, "input": str(path)}
    return load_settings(
        {**shared, **evidence, **settings, "out": str(folder)}, use_config=False
    )


def _list_texts(questions: Questions) -> pl.DataFrame:
    return questions.texts.select("key", "context", "text").unique("key")


def _give_texts(targets: pl.DataFrame, *, texts: pl.DataFrame) -> pl.DataFrame:
    return _join(targets, texts, _SCORED, _NOT_SCORED)


def _give_contexts(targets: pl.DataFrame, *, contexts: pl.DataFrame) -> pl.DataFrame:
    questions = contexts.with_columns(text=pl.lit(" "))
    return _join(targets, questions, _CONTINUED, _NOT_CONTINUED)


def _join(
    targets: pl.DataFrame, questions: pl.DataFrame, prefix: str, missing: str
) -> pl.DataFrame:
    """Return the prompt of each target that is a question; others have the reason."""
    keys = targets.select("target_id", key=pl.col("target").str.strip_prefix(prefix))
    keys = keys.with_columns(pl.col("key").str.strip_chars_start())
    rows = keys.join(questions, on="key", how="left", maintain_order="left")
    is_missing = pl.col("text").is_null()
    return rows.select(
        "target_id",
        "context",
        "text",
        reason=pl.when(is_missing).then(pl.lit(missing)),
    )


class _QuestionsStage(EvidenceStage):
    """A stage with questions of its own."""

    def __init__(self, audit: Audit, views: list[View]) -> None:
        super().__init__(audit, TARGET)
        self._views = views

    @property
    def views(self) -> list[View]:
        return self._views

    def _write_prompts(self) -> None:
        for view in self._views:
            write_prompts(self.audit, view)


class _ScoresStage(_QuestionsStage, LogprobsStage):
    """Log-probabilities of secrets and controls."""

    def _list_columns(self, view: View) -> frozenset[str]:  # noqa: ARG002
        return frozenset()  # nothing beside the log-probabilities

    def run(self) -> None:
        self._write_prompts()
        super().run()


class _AnswersStage(_QuestionsStage, SamplesStage):
    """Continuations of contexts."""

    def run(self) -> None:
        self._write_prompts()
        super().run()


_SCORES: dict[str, Any] = {"key": pl.String, "score": pl.Float64, "reason": pl.String}


def _read_scores(
    audit: Audit, stage: LogprobsStage, targets: pl.LazyFrame
) -> pl.DataFrame:
    (view,) = stage.views
    logprobs = scan_parts(audit.run.path("logprobs"), LogProbs, view.key)
    values = pl.col("logprob").cast(pl.List(pl.Float64))
    is_bounded = pl.col("bounded").fill_null(value=False)
    score = values.list.sum() / log(2)
    has_score = (
        (values.list.len() > 0)
        & values.list.eval(pl.element().is_finite().fill_null(value=False)).list.all()
        & pl.col("reason").is_null()
    )
    why_not = pl.when(is_bounded).then(pl.lit(_BOUNDED)).otherwise(pl.lit(_UNSCORED))
    rows = logprobs.select(
        "target_id",
        score=pl.when(has_score & ~is_bounded).then(score),
        reason=pl.when(~has_score | is_bounded).then(
            pl.coalesce(pl.col("reason"), why_not)
        ),
    )
    return _with_keys(rows, targets, _SCORED).select(*_SCORES)


def _read_answers(audit: Audit, view: View, targets: pl.LazyFrame) -> pl.DataFrame:
    samples = scan_parts(audit.run.path("samples"), Samples, view.key)
    rows = samples.select("target_id", "candidate", "reason")
    keyed = _with_keys(rows, targets, _CONTINUED)
    return keyed.select("key", "candidate", "reason", is_drawn=pl.lit(not view.greedy))


def _with_keys(rows: pl.LazyFrame, targets: pl.LazyFrame, prefix: str) -> pl.DataFrame:
    """Give rows the keys of their questions, and leave out those of other ones."""
    rows_asked = targets.filter(pl.col("key").str.starts_with(prefix))
    keys = rows_asked.with_columns(pl.col("key").str.strip_prefix(f"{prefix} "))
    return rows.join(keys, on="target_id").collect()
