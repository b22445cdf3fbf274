"""Asks a model about the units of a test: by the stages of audits, in a run folder of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from mia_batch.evidence.parts import scan_parts
from mia_batch.extras.benchmark.answers import score_answers
from mia_batch.extras.benchmark.orders import Units
from mia_batch.observer import Observer
from mia_batch.pipeline.audits import forecast_alone, run_alone
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.evidence import (
    LogprobsStage,
    PromptsStage,
    SamplesStage,
    write_prompts,
)
from mia_batch.pipeline.stages.targets import TargetsStage
from mia_batch.schemas import LogProbs, Samples
from mia_batch.settings import NO_YARDSTICK, Settings, load_settings
from mia_batch.tables import write_table
from mia_batch.views import QUESTION, TARGET, Decode, View, ViewType, build_view

__all__ = ["ask", "forecast"]

_ATTACK = "loss_v1"  # which reads the log-probabilities of whole texts
_NEXT_ROW = ViewType(
    build=lambda _: {},
    prompt_unit="question",
    abilities=frozenset({QUESTION}),
)
# Of texts beyond the context, which audits can read in pieces
_TOO_LONG = (
    "; --long-texts stride reads it in pieces",
    "; give fewer rows a shard (--shard-rows)",
)


def ask(
    units: Units, settings: Mapping[str, Any], folder: Path, observer: Observer
) -> pl.DataFrame:
    """Ask a model about all alternatives of all units, or go on with it.

    Returns a row for each alternative: ``unit``, ``alternative``, ``score`` and, where
    there is none, ``reason``. Scores are sums of log-probabilities, or of next rows how
    many answers name the alternative.
    """
    audit, stages = _begin(units, settings, folder, observer)
    evidence = stages[-1]
    run_alone(audit, stages)
    if isinstance(evidence, _NextRowsStage):
        return _count_answers(audit, evidence.views[0], units)
    return _sum_logprobs(audit, units)


def forecast(
    units: Units, settings: Mapping[str, Any], folder: Path, observer: Observer
) -> Iterator[tuple[str, str]]:
    """Iterate over what is left to ask and its cost, as name and text; nothing is asked."""
    audit, stages = _begin(units, settings, folder, observer)
    yield from forecast_alone(audit, stages, (_NextRowsStage, PromptsStage))


def _begin(
    units: Units, settings: Mapping[str, Any], folder: Path, observer: Observer
) -> tuple[Audit, list[Stage]]:
    run_settings = _build_settings(units, settings, folder)
    audit = Audit.begin(run_settings, observer)
    if units.test == "next-row":
        return audit, [TargetsStage(audit), _NextRowsStage(audit, TARGET)]
    stages = [TargetsStage(audit), PromptsStage(audit), LogprobsStage(audit, TARGET)]
    return audit, stages


def _build_settings(
    units: Units, settings: Mapping[str, Any], folder: Path
) -> Settings:
    """Write the texts to ask about, each once, and build the settings of their run."""
    path = folder.with_name(f"{folder.name}.texts.parquet")
    texts = units.table.select("text").unique(maintain_order=True)
    write_table(texts, path)
    evidence: dict[str, Any] = {"evidence": "logprobs", "attacks": (_ATTACK,)}
    if units.test == "next-row":
        evidence = {"evidence": "samples", "samples": 1}
    shared = {"report": False, "yardstick": NO_YARDSTICK, "input": str(path)}
    return load_settings(
        {**shared, **evidence, **settings, "out": str(folder)}, use_config=False
    )


# Log-probabilities of whole texts.


def _sum_logprobs(audit: Audit, units: Units) -> pl.DataFrame:
    view = build_view(audit.settings, TARGET, "text")
    targets = audit.run.scan("targets").select("target_id", text="target")
    logprobs = scan_parts(audit.run.path("logprobs"), LogProbs, view.key)
    sums = logprobs.select(
        "target_id", "reason", score=pl.col("logprob").cast(pl.List(pl.Float64))
    )
    sums = sums.with_columns(pl.col("score").list.drop_nulls().list.sum())
    scored = targets.join(sums, on="target_id").drop("target_id").collect()
    table = units.table.join(scored, on="text", how="left", maintain_order="left")
    has_score = pl.col("score").is_finite().fill_null(value=False)
    reason = pl.col("reason").str.replace(*_TOO_LONG, literal=True)
    reason = pl.coalesce(reason, pl.lit("it has no log-probability"))
    return table.select(
        "unit",
        "alternative",
        score=pl.when(has_score, pl.col("reason").is_null()).then("score"),
        reason=pl.when(~has_score | pl.col("reason").is_not_null()).then(reason),
    )


# Answers to questions for the next row.


def _ask_targets(targets: pl.DataFrame) -> pl.DataFrame:
    return targets.select("target_id", context="target", text=pl.lit(" A"))


class _NextRowsStage(SamplesStage):
    """The most likely answer to each question."""

    @property
    def views(self) -> list[View]:
        view = View(
            name="next_row",
            make=_ask_targets,
            greedy=True,
            decode=Decode(scope="whole", most_new=8),
            type=_NEXT_ROW,
        )
        return [view]

    def run(self) -> None:
        write_prompts(self.audit, self.views[0])
        super().run()


def _count_answers(audit: Audit, view: View, units: Units) -> pl.DataFrame:
    targets = audit.run.scan("targets").select("target_id", text="target")
    samples = scan_parts(audit.run.path("samples"), Samples, view.key)
    answers = samples.select("target_id", "reason", "candidate")
    answered = targets.join(answers, on="target_id").drop("target_id").collect()
    table = units.table.join(answered, on="text", how="left", maintain_order="left")
    return score_answers(table)
