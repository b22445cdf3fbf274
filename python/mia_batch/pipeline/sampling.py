"""Collect the samples that a run lacks, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mia_batch import tables
from mia_batch.evidence.collect import Collector
from mia_batch.evidence.workload import Workload
from mia_batch.pipeline.local import LocalSampling
from mia_batch.pipeline.remote import RemoteSampling
from mia_batch.pipeline.scoring import write_features
from mia_batch.schemas import Samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import polars as pl

    from mia_batch.evidence.blocks import Missing
    from mia_batch.evidence.budget import Budget, DecodeScope
    from mia_batch.evidence.source import Source
    from mia_batch.models.measure import Measure
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.observer import Observer
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = ["Sampling", "add_work", "collect_samples", "sampling_for"]


class Sampling(Protocol):
    """A source that is still to be opened."""

    def measure(self, prefixes: list[str], references: list[str], /) -> list[Measure]:
        """Tell how long the parts of targets are in tokens."""

    @property
    def expected_budget(self) -> Budget:
        """How many tokens to decode, as far as it is known before opening."""

    def describe(self, workload: Workload) -> Iterator[tuple[str, str]]:
        """Yield what is to be said of the work before it begins, as name and text."""

    def opened(
        self, manifest: Manifest, run: Run, observer: Observer
    ) -> AbstractContextManager[tuple[Source, Budget]]:
        """Open the source."""


def sampling_for(settings: Settings, engine: str, scope: DecodeScope) -> Sampling:
    """Choose how samples are had.

    Parameters
    ----------
    settings
        How to sample.
    engine
        The engine, chosen.
    scope
        How far candidates are decoded.

    Returns
    -------
    Sampling
        The source, not opened yet.

    Raises
    ------
    SettingsError
        If what it needs cannot be found.
    """
    if engine == "openai":
        return RemoteSampling(settings, scope)
    return LocalSampling(settings, "vllm" if engine == "vllm" else "transformers", scope)


def add_work(workload: Workload, targets: pl.DataFrame, n_samples: int, sampling: Sampling) -> None:
    """Add targets to what there is to decode.

    Parameters
    ----------
    workload
        The sums.
    targets
        Rows of the targets table that are to be sampled.
    n_samples
        Continuations of each.
    sampling
        Knows lengths and budget.
    """
    prefixes = targets["prefix"].to_list()
    measures = sampling.measure(prefixes, targets["reference"].to_list())
    budget = sampling.expected_budget
    for prefix, measure in zip(prefixes, measures, strict=True):
        workload.add(prefix, measure, n_samples, budget)


def collect_samples(
    settings: Settings, manifest: Manifest, run: Run, missing: Missing, observer: Observer
) -> None:
    """Open the source, sample what is missing, and store each block's samples and features.

    Parameters
    ----------
    settings
        How to sample.
    manifest
        The run's manifest; model, tokenizer and engine are recorded in it.
    run
        The run, held.
    missing
        What there is to sample.
    observer
        Is told of the work, of the engine and of progress.

    Raises
    ------
    SettingsError
        If the model or its tokenizer is not the one that the run's samples came from.
    EngineError
        If the engine cannot start or go on; parts that are complete stay.
    """
    observer.stage("counting what there is to decode")
    sampling = sampling_for(settings, manifest.evidence["engine"], manifest.evidence["decode"])
    workload = Workload()
    for block in missing.blocks():
        add_work(workload, block.targets, block.last - block.first, sampling)
    for name, text in (*workload.lines(), *sampling.describe(workload)):
        observer.stage(f"{name}: {text}")
    decoded = 0

    def sampled(targets: int, tokens: int) -> None:
        nonlocal decoded
        decoded += tokens
        observer.worked(targets, tokens)

    with sampling.opened(manifest, run, observer) as (source, budget):
        collector = Collector(
            source,
            sampling.measure,
            budget,
            words=settings.word_rule,
            run_seed=settings.seed,
            sampled=sampled,
        )
        work = missing.count()
        observer.working("sampling", done=work.done, total=work.done + work.targets)
        try:
            for block, samples in collector.collect(missing.blocks()):
                tables.sink(samples, run.samples_folder / block.part_name, Samples)
                parts = {block.part_name: samples}
                write_features(settings, manifest, run, parts, block.targets)
        finally:
            observer.work_ended()
    observer.stage(workload.outcome(decoded))
