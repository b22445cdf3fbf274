"""Samples from a recording in place of an engine."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

from mia_batch import tables
from mia_batch.attacks import defaults
from mia_batch.evidence.replay import Recording
from mia_batch.pipeline.background import in_background
from mia_batch.pipeline.scoring import write_features
from mia_batch.schemas import Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from mia_batch.evidence.blocks import Block, Missing
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.observer import Observer
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = ["describe_recording", "open_recording", "recorded_settings", "replay_samples"]


def open_recording(settings: Settings) -> Recording | None:
    """Open the recording that the settings name.

    Parameters
    ----------
    settings
        The settings.

    Returns
    -------
    Recording or None
        Null where samples come from an engine.

    Raises
    ------
    CorpusError
        If it cannot be read or a row is wrong.
    """
    if settings.samples_from is None:
        return None
    return Recording.open(settings.samples_from, candidate_column=settings.candidate_column)


def recorded_settings(settings: Settings, recording: Recording) -> Settings:
    """Fill in what a recording decides where the request does not.

    Parameters
    ----------
    settings
        The settings of the request.
    recording
        The recording.

    Returns
    -------
    Settings
        As many samples as were recorded; the whole SaMIA family where candidates count as whole.
    """
    filled: dict[str, object] = {}
    if "samples" not in settings.model_fields_set:
        filled["samples"] = recording.most_samples()
    if (
        settings.attacks is None
        and settings.preset == "default"
        and not recording.has_finish_reason
    ):
        filled["attacks"] = (*defaults("default"), *defaults("samia"))
    return settings.model_copy(update=filled)


def describe_recording(recording: Recording) -> Iterator[tuple[str, str]]:
    """Say what a recording holds.

    Parameters
    ----------
    recording
        The recording.

    Yields
    ------
    tuple[str, str]
        Name and text.
    """
    yield "recorded", f"{recording.counts.rows:,} continuations, by {recording.key}"
    if not recording.has_finish_reason:
        yield "finish_reason", "not recorded: candidates count as whole"


def replay_samples(
    settings: Settings,
    recording: Recording,
    manifest: Manifest,
    run: Run,
    missing: Missing,
    observer: Observer,
) -> None:
    """Store the recorded samples that a run lacks, and their features.

    Parameters
    ----------
    settings
        The word rule.
    recording
        Where the samples come from.
    manifest
        The run's manifest; the recording and what was used of it are put down in it.
    run
        The run, held.
    missing
        What there is to sample.
    observer
        Is told of the recording and of progress.

    Raises
    ------
    SettingsError
        If the run's samples came from another recording, documents are no targets, or no row of
        the recording names a target.
    """
    manifest.agree({"recording": recording.digest()}, run)
    work = missing.count()
    if not work.targets:
        return
    for name, text in describe_recording(recording):
        observer.stage(f"{name}: {text}")
    blocks = recording.collect(run.targets_path, missing.blocks(), run.folder, settings.word_rule)
    observer.working("sampling", done=work.done, total=work.done + work.targets)

    def store(block: Block, samples: pl.DataFrame) -> None:
        name = block.part_name
        tables.sink(samples, run.samples_folder / name, Samples)
        write_features(settings, manifest, run, {name: samples}, block.targets)

    try:
        with closing(blocks), in_background() as later:
            for number, (block, samples) in enumerate(blocks):
                if number == 0:  # from here on the recording is known to be of this corpus
                    manifest.write(run)
                later(store, block, samples)
                observer.worked(block.targets.height, int(samples["n_tokens"].sum()))
    finally:
        observer.work_ended()
    manifest.engine = {"engine": "replay", "counts": asdict(recording.counts)}
    counted = ", ".join(f"{count:,} {name}" for name, count in asdict(recording.counts).items())
    observer.stage(f"recording: {counted}")
