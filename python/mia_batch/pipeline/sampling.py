"""Collect the samples that a run lacks, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch import tables
from mia_batch.evidence import Collector, EngineProcess, Tokenizer, identify_model, missing_blocks
from mia_batch.pipeline.manifest import describe_model
from mia_batch.pipeline.resolve import decode_budget, engine_spec
from mia_batch.pipeline.scoring import write_features
from mia_batch.schemas import Samples

if TYPE_CHECKING:
    from mia_batch.evidence import Work
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.observer import Observer
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = ["collect_samples"]


def collect_samples(
    settings: Settings, manifest: Manifest, run: Run, work: Work, observer: Observer
) -> None:
    """Start the engine, sample what is missing, and store each block's samples and features.

    Parameters
    ----------
    settings
        How to sample.
    manifest
        The run's manifest; model, tokenizer and engine are recorded in it.
    run
        The run, held.
    work
        How much is missing.
    observer
        Is told of the engine and of progress.

    Raises
    ------
    SettingsError
        If the model or its tokenizer is not the one that the run's samples came from.
    EngineError
        If the engine cannot start or go on; parts that are complete stay.
    """
    observer.stage(f"starting {manifest.evidence['engine']}: {manifest.engine_choice}")
    identity = identify_model(settings.model, settings.revision)
    tokenizer = Tokenizer.load(settings.model, settings.revision)
    model = describe_model(settings, identity.digest)
    manifest.agree({"model": model, "tokenizer": tokenizer.digest}, run)
    spec = engine_spec(settings, manifest.evidence["engine"])
    with EngineProcess.start(spec, log=run.engine_log) as engine:
        manifest.started(engine.info, run)
        observer.stage(_engine_sentence(settings, engine))
        collector = Collector(
            engine,
            tokenizer,
            decode_budget(settings, manifest.evidence["decode"], engine.info.max_model_len),
            words=settings.word_rule,
            run_seed=settings.seed,
            sampled=observer.sampled,
        )
        blocks = missing_blocks(run.targets_path, run.samples_folder, settings.samples)
        observer.sampling(done=work.done, total=work.done + work.targets)
        try:
            for block, samples in collector.collect(blocks):
                tables.sink(samples, run.samples_folder / block.part_name, Samples)
                write_features(settings, run, block.part_name, samples, block.targets)
        finally:
            observer.sampling_ended()


def _engine_sentence(settings: Settings, engine: EngineProcess) -> str:
    info = engine.info
    return (
        f"{info.engine} {info.version} runs {settings.model} in {info.dtype} on {info.device}, "
        f"context {info.max_model_len:,} tokens"
    )
