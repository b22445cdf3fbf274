"""The stages from samples to features and scores, and scoring of a finished run."""

from __future__ import annotations

from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.attacks import find_unscored, score
from mia_batch.evidence.parts import scan_parts
from mia_batch.features import build_features, groups_of, inputs_of
from mia_batch.kernels import GROUPS, fields
from mia_batch.pipeline.stage import Stage
from mia_batch.pipeline.verdicts import record_plan
from mia_batch.schemas import Features, LogProbs, Samples, Scores, Unscored
from mia_batch.tables import scan, sink, sink_all, sink_frames
from mia_batch.tables.background import in_background
from mia_batch.targets.lookup import TargetLookup

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from mia_batch.attacks import Attack
    from mia_batch.evidence.parts import Parts
    from mia_batch.pipeline.context import Audit

__all__ = ["FeaturesStage", "ScoresStage", "write_features"]

_PARTS_AT_ONCE = 8  # texts that repeat themselves are many times as large as their files
_BYTES_AT_ONCE = 4 << 20


def write_features(audit: Audit, parts: Mapping[str, pl.DataFrame], targets: pl.DataFrame) -> None:
    """Store the features of some parts of samples, by file name; ``targets`` has their texts."""
    settings = audit.settings
    features = build_features(
        pl.concat(parts.values()),
        targets,
        words=settings.word_rule,
        preset=settings.preset,
        text_length=settings.text_length,
        groups=audit.manifest.made["features"]["groups"],
    )
    ends = accumulate(samples.height for samples in parts.values())
    rows = {
        audit.run.path("features") / name: features[end - samples.height : end]
        for (name, samples), end in zip(parts.items(), ends, strict=True)
    }
    sink_all(rows, Features)


class FeaturesStage(Stage):
    """Make the features of parts of samples that have none, several at once.

    An earlier call stopped in between, or other attacks need other features.
    """

    name = "features"

    def __init__(self, audit: Audit, parts: Parts) -> None:
        super().__init__(audit)
        self.parts = parts

    def files(self) -> list[Path]:
        """List all parts."""
        return sorted(self.audit.run.path("features").glob("*.parquet"))

    def follows(self, lost: Collection[Path]) -> list[Path]:
        """List those whose samples are not there, or are lost."""
        folder = self.audit.run.path("samples")
        kept = {path.name for path in folder.glob("*.parquet") if path not in lost}
        return [path for path in self.files() if path.name not in kept]

    def prepare(self) -> None:
        """Decide which groups of features the run has: those of its attacks, and those it had.

        Where they are others than before, the parts are removed, to be made again.
        """
        audit = self.audit
        columns = {column for attack in audit.reading("samples") for column in attack.columns}
        had = audit.manifest.made.get("features", {}).get("groups", [])
        groups = sorted({*groups_of(columns), *(group for group in had if group in GROUPS)})
        if groups != had or "features" not in audit.manifest.made:
            for part in self.files():
                part.unlink()
            audit.manifest.made["features"] = {"groups": groups}
            audit.save()

    def run(self) -> None:
        """Make what is missing."""
        audit, folder = self.audit, self.audit.run.path("features")
        missing = [part for part in self.parts.paths() if not (folder / part.name).exists()]
        if not missing:
            return
        audit.observer.stage(f"making the features of {len(missing):,} parts of samples")
        of_samples, of_targets = inputs_of(audit.settings.preset)
        lookup = TargetLookup(audit.run.path("targets"), of_targets)

        def make(group: list[Path]) -> None:
            rows = pl.collect_all([scan(part, Samples).select(of_samples) for part in group])
            samples = dict(zip((part.name for part in group), rows, strict=True))
            names = pl.concat(part["target_id"] for part in rows)
            targets = lookup.of(names, dict.fromkeys(map(self.parts.targets_of, group)))
            write_features(audit, samples, targets)

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


class ScoresStage(Stage):
    """Apply the attacks, and say why scores are missing."""

    name = "scores"

    def files(self) -> list[Path]:
        """List scores and missing scores."""
        paths = (self.audit.run.path(name) for name in ("scores", "unscored"))
        return [path for path in paths if path.exists()]

    def follows(self, lost: Collection[Path]) -> list[Path]:
        """List the scores where evidence is lost."""
        evidence = [self.audit.run.path(name) for name in ("samples", "features", "logprobs")]
        if any(path.parent in evidence for path in lost):
            return self.files()[:1]
        return []

    def fingerprint(self) -> dict[str, Any]:
        """Attacks, texts, and the parts of evidence that the scores are made from."""
        audit = self.audit
        folders = (audit.run.path("features"), audit.run.path("logprobs"))
        parts = sorted(part.name for folder in folders for part in folder.glob("*.parquet"))
        return {
            "attacks": [attack.name for attack in audit.attacks],
            "formulas": sha256(b"".join(map(_formula, audit.attacks))).hexdigest(),
            "samples": audit.settings.samples,
            "targets": audit.manifest.made["targets"],
            "parts": sha256("\n".join(parts).encode()).hexdigest(),
        }

    def run(self) -> None:
        """Write scores and the reasons of missing ones, unless they are up to date."""
        audit = self.audit
        if self.is_fresh and len(self.files()) == 2:
            return
        audit.observer.stage(f"scoring {len(audit.attacks)} attacks")
        self.forget()
        record_plan(audit)
        run = audit.run
        targets = run.scan("targets")
        within = pl.col("sample_index") < audit.settings.samples
        features = self._features().filter(within)
        logprobs = None
        if audit.reading("logprobs"):
            logprobs = self._logprobs()
        frames = score(features, targets, audit.attacks, logprobs=logprobs)
        sink_frames(frames, run.path("scores"), Scores)
        samples = run.scan("samples").filter(within)
        unscored = find_unscored(
            run.scan("scores"), samples, targets, audit.attacks, logprobs=logprobs
        )
        sink(unscored, run.path("unscored"), Unscored)
        self.done()

    def _features(self) -> pl.LazyFrame:
        """Features of all samples; of none they have the columns that they would have."""
        features = self.audit.run.scan("features")
        groups = self.audit.manifest.made["features"]["groups"]
        if any(self.audit.run.path("features").glob("*.parquet")):
            return features
        return features.with_columns(
            pl.lit(None, field.dtype).alias(field.name) for field in fields(groups).fields
        )

    def _logprobs(self) -> pl.LazyFrame:
        """Log-probabilities of the views that are read, those that a run had before left out."""
        return scan_parts(self.audit.run.path("logprobs"), LogProbs)


def _formula(attack: Attack) -> bytes:
    formula: bytes = attack.expr.meta.serialize()
    return formula
