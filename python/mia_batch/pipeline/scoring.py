"""From samples to features, scores and metrics."""

from __future__ import annotations

from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch import tables
from mia_batch.attacks import find_unscored, score
from mia_batch.evidence.parts import scan_logprobs, scan_samples
from mia_batch.features import build_features, groups_of, inputs_of
from mia_batch.inference.plan import preregister
from mia_batch.kernels import GROUPS, fields
from mia_batch.pipeline.background import in_background
from mia_batch.pipeline.halves import Halves
from mia_batch.pipeline.verdicts import evaluate, verdict_plan
from mia_batch.schemas import Features, Samples, Scores, Targets, Unscored
from mia_batch.settings import VerdictSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from mia_batch.attacks import Attack
    from mia_batch.evidence.blocks import Parts
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.observer import Observer
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = ["choose_features", "make_missing_features", "score_run", "write_features"]

_PARTS_AT_ONCE = 8  # texts that repeat themselves are many times as large as their files
_BYTES_AT_ONCE = 4 << 20


def choose_features(attacks: list[Attack], manifest: Manifest, run: Run) -> None:
    """Decide which groups of features the run has: those of its attacks, and those it had before.

    Parameters
    ----------
    attacks
        What will be computed.
    manifest
        The run's manifest; the groups are recorded in it. Where they are not those that the parts
        were made with, the parts are removed, to be made again.
    run
        The run, held.
    """
    columns = {column for attack in attacks for column in attack.columns}
    groups = sorted({*groups_of(columns), *(had for had in manifest.features if had in GROUPS)})
    if groups != manifest.features:
        for part in run.features_folder.glob("*.parquet"):
            part.unlink()
        manifest.features = groups
        manifest.write(run)


def write_features(
    settings: Settings,
    manifest: Manifest,
    run: Run,
    parts: Mapping[str, pl.DataFrame],
    targets: pl.DataFrame,
) -> None:
    """Store the features of some parts of samples.

    Parameters
    ----------
    settings
        Preset, word rule and nominal text length.
    manifest
        Knows the groups of features.
    run
        The run, held.
    parts
        The rows of each part, by its file name.
    targets
        At least the targets of these rows.
    """
    features = build_features(
        pl.concat(parts.values()),
        targets,
        words=settings.word_rule,
        preset=settings.preset,
        text_length=settings.text_length,
        groups=manifest.features,
    )
    ends = accumulate(samples.height for samples in parts.values())
    rows = {
        run.features_folder / name: features[end - samples.height : end]
        for (name, samples), end in zip(parts.items(), ends, strict=True)
    }
    tables.sink_all(rows, Features)


def make_missing_features(
    settings: Settings, manifest: Manifest, run: Run, parts: Parts, observer: Observer
) -> None:
    """Make the features of parts of samples that have none, several at once.

    An earlier call stopped in between, or other attacks need other features.

    Parameters
    ----------
    settings
        Preset, word rule and nominal text length.
    manifest
        Knows the groups of features.
    run
        The run, held.
    parts
        The run's parts of samples.
    observer
        Is told of the work, if there is any.
    """
    missing = [part for part in parts.paths() if not (run.features_folder / part.name).exists()]
    if not missing:
        return
    observer.stage(f"making the features of {len(missing):,} parts of samples")
    of_samples, of_targets = inputs_of(settings.preset)
    halves = Halves(run.targets_path, of_targets)

    def make(group: list[Path]) -> None:
        rows = pl.collect_all([tables.scan(part, Samples).select(of_samples) for part in group])
        samples = dict(zip((part.name for part in group), rows, strict=True))
        names = pl.concat(part["target_id"] for part in rows)
        targets = halves.of(names, dict.fromkeys(map(parts.targets_of, group)))
        write_features(settings, manifest, run, samples, targets)

    with in_background() as later:
        for group in _grouped(missing):
            later(make, group)


def _grouped(parts: list[Path]) -> Iterator[list[Path]]:
    """Put small parts together: queries and calls of the kernels cost as much for few rows."""
    group: list[Path] = []
    size = 0
    for part in parts:
        group.append(part)
        size += part.stat().st_size
        if size >= _BYTES_AT_ONCE or len(group) == _PARTS_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def score_run(settings: Settings, attacks: list[Attack], manifest: Manifest, run: Run) -> None:
    """Write scores, missing scores and metrics, unless those that are there are up to date."""
    made_from = _made_from(settings, attacks, manifest, run)
    tables_there = (run.scores_path, run.unscored_path, run.metrics_path, run.verdicts_path)
    if manifest.scored == made_from and all(path.exists() for path in tables_there):
        return
    plan = verdict_plan(settings, [attack.name for attack in attacks])
    rests_on = {
        "samples": settings.samples,
        "input": manifest.input["sha256"],
        **manifest.input["helping"],
    }
    if not manifest.plan:
        manifest.plan = preregister(plan, None if run.scores_path.exists() else rests_on)
    manifest.scored = {}
    manifest.write(run)  # killed from here on, they are made again
    within = pl.col("sample_index") < settings.samples
    targets = tables.scan(run.targets_path, Targets)
    features = _features(manifest, run).filter(within)
    logprobs = None
    if any(attack.evidence == "logprobs" for attack in attacks):
        logprobs = scan_logprobs(run.logprobs_folder)
    frames = score(features, targets, attacks, logprobs=logprobs)
    tables.sink_frames(frames, run.scores_path, Scores)
    scores = tables.scan(run.scores_path, Scores)
    samples = scan_samples(run.samples_folder).filter(within)
    unscored = find_unscored(scores, samples, targets, attacks, logprobs=logprobs)
    tables.sink(unscored, run.unscored_path, Unscored)
    evaluate(settings, attacks, plan, run, preregistered=manifest.plan, rests_on=rests_on)
    manifest.scored = made_from
    manifest.write(run)


def _features(manifest: Manifest, run: Run) -> pl.LazyFrame:
    """Features of all samples; of none they have the columns that they would have."""
    features = tables.scan(run.features_folder, Features)
    if any(run.features_folder.glob("*.parquet")):
        return features
    return features.with_columns(
        pl.lit(None, field.dtype).alias(field.name) for field in fields(manifest.features).fields
    )


def _made_from(
    settings: Settings, attacks: list[Attack], manifest: Manifest, run: Run
) -> dict[str, Any]:
    folders = (run.features_folder, run.logprobs_folder)
    parts = sorted(part.name for folder in folders for part in folder.glob("*.parquet"))
    return {
        "attacks": [attack.name for attack in attacks],
        "samples": settings.samples,
        "input": {name: manifest.input[name] for name in ("sha256", "columns", "helping")},
        "verdicts": settings.model_dump(mode="json", include=set(VerdictSettings.model_fields)),
        "parts": sha256("\n".join(parts).encode()).hexdigest(),
    }
