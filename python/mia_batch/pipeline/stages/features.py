"""The stage that makes features of samples, and where the parts of both lie."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Self

import polars as pl

from mia_batch.attacks.attack import CONTINUATION
from mia_batch.errors import DamagedTableError
from mia_batch.evidence.parts import BLOCK_TARGETS, RECORDED_BLOCK_TARGETS, Parts, PromptUnits
from mia_batch.features import BESIDE, build_features, groups_of, inputs_of
from mia_batch.inference.memory import VERBATIM_GROUP
from mia_batch.kernels import GROUPS, RarityTable, WordRule
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.sessions import spread
from mia_batch.pipeline.stages.prompts import prompt_parts
from mia_batch.pipeline.stages.rarity import rarity_of, weighed_views
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.views import views_of
from mia_batch.prompts.views import View
from mia_batch.schemas import Features, Samples
from mia_batch.tables import scan, sink_all
from mia_batch.targets import Preset, TargetLookup

_LOOKED_UP = ("target_id", "n_words", "role", "member")
_PARTS_AT_ONCE = 8  # texts that repeat themselves are many times as large as their files
_ROWS_AT_ONCE = 1 << 14  # short texts are many in a small file
_BYTES_AT_ONCE = 4 << 20


def sample_parts(audit: Audit, view: View) -> Parts:
    """Name the parts of a view's samples; those of the features have the same names."""
    recorded = audit.settings.samples_from is not None
    return Parts(
        folder=audit.run.path("samples"),
        schema=Samples,
        model=view.model,
        view=view.name,
        block_targets=RECORDED_BLOCK_TARGETS if recorded else BLOCK_TARGETS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureWriter:
    """Stores the features of a view's samples."""

    folder: Path
    words: WordRule
    preset: Preset
    text_length: int | None
    groups: list[str]

    @classmethod
    def of(cls, audit: Audit, view: View) -> Self:
        """Write what the run's attacks read."""
        settings = audit.settings
        return cls(
            folder=audit.run.path("features"),
            words=settings.word_rule,
            preset=_preset(audit, view),
            text_length=settings.text_length,
            groups=audit.manifest.made["features"]["groups"],
        )

    def write(
        self,
        parts: Mapping[str, pl.DataFrame],
        prompts: pl.DataFrame,
        rarity: RarityTable | None = None,
    ) -> None:
        """Store the features of parts of samples, by file name; ``prompts`` has their texts."""
        features = build_features(
            pl.concat(parts.values()),
            prompts,
            words=self.words,
            preset=self.preset,
            text_length=self.text_length,
            groups=self.groups,
            rarity=rarity,
        )
        ends = accumulate(samples.height for samples in parts.values())
        rows = {
            self.folder / name: features[end - samples.height : end]
            for (name, samples), end in zip(parts.items(), ends, strict=True)
        }
        sink_all(rows, Features)


def _preset(audit: Audit, view: View) -> Preset:
    """Only continuations are cut as the SaMIA authors' code cuts them."""
    return audit.settings.preset if view.name == "continuation" else "default"


class FeaturesStage(Stage):
    """Make the features of parts of samples that have none, several at once.

    An earlier call stopped in between, or other attacks need other features.
    """

    name = "features"

    part = "scores"
    makes = ("features",)

    def follows(self, lost: Collection[Path]) -> list[Path]:
        """List those whose samples are not there, or are lost."""
        folder = self.audit.run.path("samples")
        kept = {path.name for path in folder.glob("*.parquet") if path not in lost}
        return [path for path in self.files() if path.name not in kept]

    def prepare(self) -> None:
        """Decide which groups of features the run has: those of its attacks, and those it had.

        Continuations are always searched for verbatim runs. Where the groups are others than
        before, the parts are removed, to be made again.
        """
        audit = self.audit
        reading = audit.reading("samples")
        columns = {column for attack in reading for column in attack.columns}
        continued = any(CONTINUATION in attack.reads for attack in reading)
        always = [VERBATIM_GROUP] if continued else []
        had = audit.manifest.made.get("features", {}).get("groups", [])
        known = {*GROUPS, *BESIDE}
        groups = sorted({*groups_of(columns), *always, *known.intersection(had)})
        if groups != had or "features" not in audit.manifest.made:
            self.remove(self.files())
            audit.manifest.made["features"] = {"groups": groups}
            audit.save()

    def run(self) -> None:
        """Make what is missing."""
        weighed = [view.key for view in weighed_views(self.audit)]
        self._drop_outdated(weighed)
        for view in views_of(self.audit, "samples"):
            self._make(view, weighed=view.key in weighed)

    def _drop_outdated(self, weighed: list[tuple[str, str]]) -> None:
        """Remove what was weighed by another table of rarity."""
        audit = self.audit
        made, rarity = audit.manifest.made["features"], audit.manifest.made.get("rarity")
        if not weighed or made.get("rarity") == rarity:
            return
        for model, view in weighed:
            folder = audit.run.path("features")
            parts = Parts(folder=folder, schema=Features, model=model, view=view, block_targets=1)
            self.remove(parts.paths())
        made["rarity"] = rarity
        audit.save()

    def _make(self, view: View, *, weighed: bool) -> None:
        audit, folder = self.audit, self.audit.run.path("features")
        parts = sample_parts(audit, view)
        missing = [part for part in parts.paths() if not (folder / part.name).exists()]
        if not missing:
            return
        audit.observer.stage(f"making the features of {len(missing):,} parts of samples")
        rarity = rarity_of(audit, view) if weighed else None
        prompts = PromptUnits(audit.run.path("targets"), prompt_parts(audit, view), view)
        make = _Maker(parts, prompts, FeatureWriter.of(audit, view), rarity)
        with spread(audit) as later:
            rows = parts.block_targets * view.n * view.samples  # most of a part
            for group in _grouped(missing, min(_PARTS_AT_ONCE, max(_ROWS_AT_ONCE // rows, 1))):
                later(make, group)


@dataclass(frozen=True)
class _Maker:
    """Makes the features of parts of samples; before it is first called, it can be pickled."""

    samples: Parts
    prompts: PromptUnits
    writer: FeatureWriter
    rarity: RarityTable | None

    def __call__(self, group: list[Path]) -> None:
        of_samples, of_prompts = inputs_of(self.writer.preset)
        rows = pl.collect_all([scan(part, Samples).select(of_samples) for part in group])
        names = pl.concat(part["target_id"] for part in rows)
        places = dict.fromkeys(map(self.samples.targets_of, group))
        targets = self._targets.of(names, places)
        # Samples of texts that the input no longer has stay, and have no features.
        own = pl.col("target_id").is_in(targets["target_id"].implode())
        samples = {part.name: each.filter(own) for part, each in zip(group, rows, strict=True)}
        names = pl.concat(part["target_id"] for part in samples.values())
        asked = self.prompts.of(targets, places, of_prompts)
        if not names.is_in(asked["target_id"].implode()).all():
            folder = self.prompts.parts.folder
            raise DamagedTableError(
                f"{folder} lacks prompts of samples; give the audit's command again"
            )
        self.writer.write(samples, asked, self.rarity)

    @cached_property
    def _targets(self) -> TargetLookup:
        return TargetLookup(self.prompts.targets, [*_LOOKED_UP, *self.prompts.view.columns])


def _grouped(parts: list[Path], most: int) -> Iterator[list[Path]]:
    """Put small parts together: queries and calls of the kernels cost as much for few rows."""
    group: list[Path] = []
    size = 0
    for part in parts:
        group.append(part)
        size += part.stat().st_size
        if size >= _BYTES_AT_ONCE or len(group) >= most:
            yield group
            group, size = [], 0
    if group:
        yield group
