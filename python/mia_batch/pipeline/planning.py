"""What a run would do, without doing it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.evidence.workload import Workload
from mia_batch.pipeline.choosing import chosen_attacks, scoring, scoring_engine
from mia_batch.pipeline.corpora import check_paths, open_corpora
from mia_batch.pipeline.replaying import describe_recording, open_recording, recorded_settings
from mia_batch.pipeline.resolve import chosen_engine, decode_scope, target_plan
from mia_batch.pipeline.sampling import add_work, sampling_for
from mia_batch.pipeline.verdicts import plan_power, verdict_plan
from mia_batch.pipeline.views import count_texts
from mia_batch.report import preflight_sentences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.attacks import Attack
    from mia_batch.pipeline.sampling import Sampling
    from mia_batch.settings import Settings

__all__ = ["Plan", "plan"]

_ROWS_AT_ONCE = 4096


@dataclass(slots=True, kw_only=True)
class Plan:
    """What a run would do.

    Attributes
    ----------
    engine, why
        The engine that would run, and the reason.
    attacks
        Names of the attacks.
    documents, targets
        How many there are.
    refused
        By reason, how many targets would not be sampled.
    texts
        How many targets have a text.
    workload
        What would be decoded.
    described
        What is to be said of the samples, as name and text.
    """

    engine: str
    why: str
    attacks: tuple[str, ...]
    documents: int
    targets: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    texts: int = 0
    workload: Workload = field(default_factory=Workload)
    described: tuple[tuple[str, str], ...] = ()

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the plan's facts as name and text."""
        yield "engine", f"{self.engine} ({self.why})"
        yield "attacks", ", ".join(self.attacks)
        yield "documents", f"{self.documents:,}"
        yield "targets", f"{self.targets:,}"
        for reason, count in self.refused.most_common():
            yield "not sampled", f"{count:,}: {reason}"
        yield from self.described


def plan(settings: Settings) -> Plan:
    """Work out what a run with these settings would do; nothing is written.

    Parameters
    ----------
    settings
        The settings.

    Returns
    -------
    Plan
        Targets and decode budget.

    Raises
    ------
    RequestError
        If the input or a setting is wrong.
    """
    recording = open_recording(settings)
    if recording is not None:
        settings = recorded_settings(settings, recording)
    attacks = chosen_attacks(settings)
    decided = verdict_plan(settings, [attack.name for attack in attacks])
    check_paths(settings)
    engine, why = chosen_engine(settings)
    by_sampling = [attack for attack in attacks if attack.evidence == "samples"]
    sampling = None
    if by_sampling and recording is None:
        sampling = sampling_for(settings, engine, decode_scope(by_sampling))
    corpora = open_corpora(settings)
    planned = Plan(
        engine=engine,
        why=why,
        attacks=tuple(attack.name for attack in attacks),
        documents=corpora.input.n_documents,
    )
    targets = corpora.targets(target_plan(settings))
    there = pl.col("target").is_not_null()
    columns = targets.select("prefix", "reference", "reason", there=there)
    for rows in columns.collect_batches(chunk_size=_ROWS_AT_ONCE):
        _count(planned, rows, sampling, settings.samples)
    lines: tuple[tuple[str, str], ...] = ()
    if sampling is not None:
        lines = (*planned.workload.lines(), *sampling.describe(planned.workload))
    if recording is not None:
        lines = (("samples", f"{settings.samples:,} a target"), *describe_recording(recording))
    power = preflight_sentences(plan_power(targets, decided))
    planned.described = (
        *lines,
        *_describe_scoring(settings, attacks, planned.texts),
        *(("power", sentence) for sentence in power),
    )
    return planned


def _describe_scoring(
    settings: Settings, attacks: list[Attack], texts: int
) -> Iterator[tuple[str, str]]:
    """Say which engine gives log-probabilities, and in how many forward passes."""
    by_scoring = [attack for attack in attacks if attack.evidence == "logprobs"]
    if not by_scoring:
        return
    if settings.engine == "openai":
        yield "scoring engine", "openai (asked for)"
    else:
        engine, why = scoring_engine(settings, scoring(by_scoring, settings))
        yield "scoring engine", f"{engine} ({why})"
    for (role, view), n in count_texts(settings, by_scoring).items():
        yield f"{role} {view}", f"{n * texts:,} forward passes"


def _count(planned: Plan, rows: pl.DataFrame, sampling: Sampling | None, n_samples: int) -> None:
    planned.targets += rows.height
    planned.texts += int(rows["there"].sum())
    planned.refused.update(rows["reason"].drop_nulls().to_list())
    if sampling is not None:
        kept = rows.filter(pl.col("reason").is_null())
        add_work(planned.workload, kept, n_samples, sampling)
