"""Features of samples, and how often the model says each n-gram, by which some are weighed."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from mia_batch.attacks.apply import count_rows, whole_targets
from mia_batch.errors import DamagedTableError, SettingsError
from mia_batch.evidence.parts import Parts, PromptUnits, scan_parts
from mia_batch.features import OTHER_GROUPS, build_features, find_groups, list_inputs
from mia_batch.inference.memory import VERBATIM_GROUP
from mia_batch.kernels import GROUPS, RARITY_FIELDS, Rarity, RarityTable
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.folder import Manifest, RunFolder
from mia_batch.pipeline.sessions import open_background
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.questions import list_views, prompt_parts, sample_parts
from mia_batch.schemas import Features, Samples
from mia_batch.tables import RowIndex, digest, scan, sink, sink_all
from mia_batch.targets import TargetLookup, cluster_names
from mia_batch.views import View

# How often the model says each n-gram, over the texts of the run.

_SAMPLES_AT_ONCE = 65536


def list_weighed_views(audit: Audit) -> list[View]:
    columns = {field.name for field in RARITY_FIELDS}
    reads = {
        key
        for attack in audit.list_attacks_on("samples")
        if columns.intersection(attack.columns)
        for key in attack.reads
    }
    return [view for view in list_views(audit, "samples") if view.key in reads]


def fingerprint_dress(audit: Audit) -> dict[str, Any]:
    """Say what is taken off answers, for fingerprints; nothing where nothing is."""
    rule = audit.manifest.dress.get("rule")
    return {"dress": rule} if rule else {}


def _rows(audit: Audit, view: View) -> pl.DataFrame:
    rows = scan(_path(audit), Rarity)
    rows = rows.filter(pl.col("model") == view.model, pl.col("view") == view.name)
    found = rows.select("entry", "count", "n_groups").collect()
    if found.is_empty() and audit.settings.rarity_from is not None:
        raise SettingsError(
            f"rarity_from: {audit.settings.rarity_from} did not count the view "
            f"{view.name!r}; name a run that computed the same attacks"
        )
    return found


class RarityStage(Stage):
    """Count, of every view that an attack weighs, in how many groups the model says an n-gram."""

    name = "rarity"
    phase = "scores"
    activity = "counting how often the model says each word elsewhere"
    makes = ("rarity",)
    reads = ("samples",)

    def fingerprint(self) -> dict[str, Any]:
        audit = self.audit
        if audit.settings.rarity_from is not None:
            return {"from": digest(_path(audit))}
        return {
            "views": {
                view.name: [view.n, view.samples] for view in list_weighed_views(audit)
            },
            "parts": digest_parts(sorted(audit.run.path("samples").glob("*.parquet"))),
            "targets": audit.manifest.made["targets"],
            **fingerprint_dress(audit),
        }

    @property
    def required_tables(self) -> set[str]:
        return set() if self.audit.settings.rarity_from is not None else {*self.makes}

    def prepare(self) -> None:
        if self.audit.settings.rarity_from is not None and list_weighed_views(
            self.audit
        ):
            _check_other(self.audit)

    def run(self) -> None:
        if (other := self.audit.settings.rarity_from) is not None:
            self.activity = (
                f"taking from {other} how often the model says each word elsewhere"
            )
        if list_weighed_views(self.audit):
            super().run()

    def make(self) -> None:
        audit = self.audit
        if audit.settings.rarity_from is None:
            groups = (
                group_targets(audit)
                .select(pl.when("counted").then("group"))
                .to_series()
            )
            index = RowIndex(audit.run.scan("targets").select("target_id"))
            counted = [
                _count(audit, view, index, groups) for view in list_weighed_views(audit)
            ]
            sink(pl.concat(counted), audit.run.path("rarity"), Rarity)


def digest_parts(parts: Iterable[Path]) -> str:
    return sha256("\n".join(part.name for part in parts).encode()).hexdigest()


def _count(
    audit: Audit, view: View, index: RowIndex, groups: pl.Series
) -> pl.DataFrame:
    samples = scan_parts(audit.run.path("samples"), Samples, view.key).filter(
        pl.col("view_index") < view.n,
        pl.col("sample_index") < view.samples,
        pl.col("candidate").is_not_null(),
    )

    def rows(*columns: str) -> Iterator[pl.DataFrame]:
        wanted = samples.select("target_id", *columns)
        for batch in wanted.collect_batches(
            chunk_size=_SAMPLES_AT_ONCE, maintain_order=True
        ):
            which, found = index.find(batch["target_id"])
            group = pl.Series("row", groups[found])
            yield batch.drop("target_id")[which].with_columns(group).drop_nulls("row")

    to_come = count_rows(rows(), index.height)
    n_groups, words = int(np.count_nonzero(to_come)), audit.settings.word_rule
    whole = whole_targets(rows("candidate"), to_come, ())
    return RarityTable.count(whole, n_groups=n_groups, words=words).rows(*view.key)


def _check_other(audit: Audit) -> None:
    """Refuse a table of another run that does not count what this run's attacks read."""
    other, path, own = (
        audit.settings.rarity_from,
        _path(audit),
        audit.settings.word_rule,
    )
    if path.resolve() == audit.run.path("rarity").resolve():
        raise SettingsError(
            f"rarity_from= is the run itself, {str(other)!r}; name another run"
        )
    if (made := Manifest.load(path.parent)) is None or not path.exists():
        raise SettingsError(
            f"rarity_from: {other} is no run with a table of rarity; name one"
        )
    if (rule := made.evidence["word_rule"]) != own:
        raise SettingsError(
            f"rarity_from: {other} counted words by {rule!r}, not by {own!r}; give the"
            " same word rule"
        )
    try:
        for view in list_weighed_views(audit):
            _rows(audit, view)
    except DamagedTableError as error:
        raise SettingsError(
            f"rarity_from: the table of rarity of {other} is damaged; give that run's"
            " own command again, which rebuilds it"
        ) from error


def _path(audit: Audit) -> Path:
    other = audit.settings.rarity_from
    return (audit.run if other is None else RunFolder(other)).path("rarity")


def _counted(audit: Audit) -> pl.Expr | None:
    """Tell which targets are counted: those that others are compared with; None = all."""
    # Were the others counted, too, a large group of them would lower the scores of all
    # texts but its own, and so its p-values. In rounds all are, by the windows of the
    # first one.
    if audit.settings.rarity_from is not None:
        return pl.lit(value=False)
    if (
        test := audit.build_rounds_test()
    ) is not None:  # later rounds would change the scores of earlier ones
        return pl.col("target_id").is_in(test.may_be_asked(0).implode())
    role, member = pl.col("role"), pl.col("member")
    non_member, target = role == "non_member", role == "target"
    unknown = target & member.is_null()
    outside = target & ~member.fill_null(value=True)
    targets = audit.run.scan("targets")
    kinds = targets.select(non_member.any(), asked=(unknown.any() & outside.any()))
    given, asked = kinds.collect(engine="streaming").row(0)
    return non_member if given else outside if asked else None


def group_targets(audit: Audit) -> pl.DataFrame:
    """Give the ``target_id``, number of the ``group`` and whether ``counted`` of each text."""
    # Each text is its own group where none is known to be outside, so that groups are
    # not compared, and where all are of one: a book alone has no elsewhere but its own
    # other texts.
    targets = audit.run.scan("targets")
    counted = _counted(audit)
    names = targets.select(
        "target_id",
        group=cluster_names(targets).hash(),
        counted=pl.col("role") != "yardstick" if counted is None else counted,
        outside=pl.col("member").eq(other=False),
    )
    first = pl.col("row").first().over("group")
    alone = (pl.col("group").filter("counted").n_unique() == 1) | ~pl.col(
        "outside"
    ).any()
    apart = pl.lit(counted is None) & alone
    group = pl.when(apart).then("row").otherwise(first)
    return (
        names.with_row_index("row")
        .select("target_id", "counted", group=group)
        .collect()
    )


# The stage that makes features of samples, and where the parts of both lie.

_LOOKED_UP = ("target_id", "n_words", "role", "member")
_PARTS_AT_ONCE = (
    8  # texts that repeat themselves are many times as large as their files
)
_ROWS_AT_ONCE = 1 << 14  # short texts are many in a small file
_BYTES_AT_ONCE = 4 << 20


@dataclass(frozen=True, kw_only=True)  # without slots: the targets are looked up once
class FeatureWriter:
    """Makes the features of a view's samples; before it is first called, it can be pickled."""

    folder: Path
    samples: Parts
    prompts: PromptUnits
    how: Mapping[str, Any]  # arguments of `build_features`

    @classmethod
    def build(cls, audit: Audit, view: View, rarity: RarityTable | None = None) -> Self:
        settings = audit.settings
        return cls(
            folder=audit.run.path("features"),
            samples=sample_parts(audit, view),
            prompts=PromptUnits(audit.run.order, prompt_parts(audit, view), view),
            how={
                "words": settings.word_rule,
                # Only continuations are cut as the SaMIA authors' code cuts them.
                "preset": settings.preset if view.name == "continuation" else "default",
                "text_length": settings.text_length,
                "groups": audit.manifest.made["features"]["groups"],
                "rarity": rarity,
            },
        )

    def write(self, parts: Mapping[str, pl.DataFrame], prompts: pl.DataFrame) -> None:
        """Store the features of parts of samples, by file name; ``prompts`` has their texts."""
        features = build_features(pl.concat(parts.values()), prompts, **self.how)
        ends = accumulate(samples.height for samples in parts.values())
        rows = {
            self.folder / name: features[end - samples.height : end]
            for (name, samples), end in zip(parts.items(), ends, strict=True)
        }
        sink_all(rows, Features)

    def __call__(self, group: list[Path]) -> None:
        sample_columns, prompt_columns = list_inputs(self.how["preset"])
        rows = pl.collect_all(
            [scan(part, Samples).select(sample_columns) for part in group]
        )
        names = pl.concat(part["target_id"] for part in rows)
        places = dict.fromkeys(map(self.samples.targets_of, group))
        targets = self._targets.of(names, places)
        # Samples of texts that the input no longer has stay, and have no features.
        own = pl.col("target_id").is_in(targets["target_id"].implode())
        samples = {
            part.name: each.filter(own) for part, each in zip(group, rows, strict=True)
        }
        names = pl.concat(part["target_id"] for part in samples.values())
        asked = self.prompts.of(targets, places, prompt_columns)
        if not names.is_in(asked["target_id"].implode()).all():
            folder = self.prompts.parts.folder
            raise DamagedTableError(
                f"{folder} has not the prompts of all samples; give the audit's command"
                " again"
            )
        self.write(samples, asked)

    @cached_property
    def _targets(self) -> TargetLookup:
        return TargetLookup(
            self.prompts.targets, [*_LOOKED_UP, *self.prompts.view.columns]
        )


class FeaturesStage(Stage):
    """Make the features of parts of samples that have none: stopped before, or other attacks."""

    name = "features"
    phase = "scores"
    activity = "making the features of samples"
    makes = ("features",)

    def list_outdated(self, lost: Collection[Path]) -> list[Path]:
        folder = self.audit.run.path("samples")
        kept = {path.name for path in folder.glob("*.parquet") if path not in lost}
        return [path for path in self.list_files() if path.name not in kept]

    def prepare(self) -> None:
        """Decide which groups of features the run has: those of its attacks, and earlier ones."""
        # Continuations are always searched for verbatim runs. Parts of other groups are
        # removed.
        audit = self.audit
        reading = audit.list_attacks_on("samples")
        columns = {column for attack in reading for column in attack.columns}
        continued = audit.continues_texts or audit.settings.continue_strongest
        always = [VERBATIM_GROUP] if continued else []
        before = audit.manifest.made.get("features", {}).get("groups", [])
        known = {*GROUPS, *OTHER_GROUPS}
        groups = sorted({*find_groups(columns), *always, *known.intersection(before)})
        if groups != before or "features" not in audit.manifest.made:
            self.remove(self.list_files())
            audit.manifest.made["features"] = {"groups": groups}
            audit.save()

    def run(self) -> None:
        audit, made = self.audit, self.audit.manifest.made
        weighed = list_weighed_views(audit)
        keys = {view.key for view in weighed}  # views of one key need not be equal
        if weighed and made["features"].get("rarity") != made.get("rarity"):
            for view in weighed:  # by another table
                self.remove(sample_parts(audit, view, "features").paths())
            made["features"]["rarity"] = made.get("rarity")
            audit.save()
        for view in list_views(audit, "samples"):
            make_features(audit, view, weighed=view.key in keys)


def make_features(audit: Audit, view: View, *, weighed: bool = False) -> None:
    parts, folder = sample_parts(audit, view), audit.run.path("features")
    missing = [part for part in parts.paths() if not (folder / part.name).exists()]
    if not missing:
        return
    audit.observer.stage(f"making the features of {len(missing):,} parts of samples")
    rarity = None
    if weighed:
        rarity = RarityTable.from_rows(_rows(audit, view), is_counted=_counted(audit))
    make = FeatureWriter.build(audit, view, rarity)
    rows = parts.block_targets * view.n * view.samples  # most of a part
    with open_background(audit) as later:
        for group in _grouped(
            missing, min(_PARTS_AT_ONCE, max(_ROWS_AT_ONCE // rows, 1))
        ):
            later(make, group)


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
