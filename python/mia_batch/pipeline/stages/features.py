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
    """List the views whose samples an attack weighs by the rarity of their words."""
    columns = {field.name for field in RARITY_FIELDS}
    keys: set[tuple[str, str]] = set()
    for attack in audit.list_attacks_on("samples"):
        if columns.intersection(attack.columns):
            keys.update(attack.reads)
    return [view for view in list_views(audit, "samples") if view.key in keys]


def fingerprint_dress(audit: Audit) -> dict[str, Any]:
    """Return what is taken off answers, for fingerprints; nothing where nothing is."""
    rule = audit.manifest.dress.get("rule")
    return {"dress": rule} if rule else {}


def _read_counts(audit: Audit, view: View) -> pl.DataFrame:
    """Read the counts of a view from the table of rarity."""
    is_of_view = (pl.col("model") == view.model) & (pl.col("view") == view.name)
    rows = scan(_get_rarity_path(audit), Rarity).filter(is_of_view)
    counts = rows.select("entry", "count", "n_groups").collect()
    if counts.is_empty() and audit.settings.rarity_from is not None:
        raise SettingsError(
            f"rarity_from: {audit.settings.rarity_from} did not count the view "
            f"{view.name!r}; name a run that computed the same attacks"
        )
    return counts


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
            return {"from": digest(_get_rarity_path(audit))}
        views = list_weighed_views(audit)
        return {
            "views": {view.name: [view.n, view.samples] for view in views},
            "parts": digest_parts(sorted(audit.run.path("samples").glob("*.parquet"))),
            "targets": audit.manifest.made["targets"],
            **fingerprint_dress(audit),
        }

    @property
    def required_tables(self) -> set[str]:
        return set() if self.audit.settings.rarity_from is not None else {*self.makes}

    def prepare(self) -> None:
        is_of_other_run = self.audit.settings.rarity_from is not None
        if is_of_other_run and list_weighed_views(self.audit):
            _check_rarity_from(self.audit)

    def run(self) -> None:
        rarity_from = self.audit.settings.rarity_from
        if rarity_from is not None:
            self.activity = (
                f"taking from {rarity_from} how often the model says each word"
                " elsewhere"
            )
        if list_weighed_views(self.audit):
            super().run()

    def make(self) -> None:
        audit = self.audit
        if audit.settings.rarity_from is not None:
            return
        group = pl.when("counted").then("group")
        groups = group_targets(audit).select(group).to_series()
        index = RowIndex(audit.run.scan("targets").select("target_id"))
        counts = [
            _count(audit, view, index, groups) for view in list_weighed_views(audit)
        ]
        sink(pl.concat(counts), audit.run.path("rarity"), Rarity)


def digest_parts(parts: Iterable[Path]) -> str:
    """Compute a digest of the names of part files."""
    return sha256("\n".join(part.name for part in parts).encode()).hexdigest()


def _count(
    audit: Audit, view: View, index: RowIndex, groups: pl.Series
) -> pl.DataFrame:
    """Count in how many groups the model says each n-gram of a view."""
    samples = scan_parts(audit.run.path("samples"), Samples, view.key).filter(
        pl.col("view_index") < view.n,
        pl.col("sample_index") < view.samples,
        pl.col("candidate").is_not_null(),
    )

    def read_batches(*columns: str) -> Iterator[pl.DataFrame]:
        """Iterate over samples of counted targets with their group, as ``row``."""
        batches = samples.select("target_id", *columns).collect_batches(
            chunk_size=_SAMPLES_AT_ONCE, maintain_order=True
        )
        for batch in batches:
            batch_rows, target_rows = index.find(batch["target_id"])
            group = pl.Series("row", groups[target_rows])
            grouped = batch.drop("target_id")[batch_rows].with_columns(group)
            yield grouped.drop_nulls("row")

    rows_by_group = count_rows(read_batches(), index.height)
    n_groups = int(np.count_nonzero(rows_by_group))
    whole = whole_targets(read_batches("candidate"), rows_by_group, ())
    table = RarityTable.count(whole, n_groups=n_groups, words=audit.settings.word_rule)
    return table.rows(*view.key)


def _check_rarity_from(audit: Audit) -> None:
    """Refuse a table of another run that does not count what this run's attacks read."""
    rarity_from = audit.settings.rarity_from
    path = _get_rarity_path(audit)
    if path.resolve() == audit.run.path("rarity").resolve():
        raise SettingsError(
            f"rarity_from= is the run itself, {str(rarity_from)!r}; name another run"
        )
    manifest = Manifest.load(path.parent)
    if manifest is None or not path.exists():
        raise SettingsError(
            f"rarity_from: {rarity_from} is no run with a table of rarity; name one"
        )
    word_rule = manifest.evidence["word_rule"]
    own_rule = audit.settings.word_rule
    if word_rule != own_rule:
        raise SettingsError(
            f"rarity_from: {rarity_from} counted words by {word_rule!r}, not by"
            f" {own_rule!r}; give the same word rule"
        )
    try:
        for view in list_weighed_views(audit):
            _read_counts(audit, view)
    except DamagedTableError as error:
        raise SettingsError(
            f"rarity_from: the table of rarity of {rarity_from} is damaged; give that"
            " run's own command again, which rebuilds it"
        ) from error


def _get_rarity_path(audit: Audit) -> Path:
    rarity_from = audit.settings.rarity_from
    run = audit.run if rarity_from is None else RunFolder(rarity_from)
    return run.path("rarity")


def _choose_counted(audit: Audit) -> pl.Expr | None:
    """Return which targets are counted: those that others are compared with; None for all."""
    # Were the others counted, too, a large group of them would lower the scores of all
    # texts but its own, and so its p-values. In rounds all are, by the windows of the
    # first one.
    if audit.settings.rarity_from is not None:
        return pl.lit(value=False)
    test = audit.build_rounds_test()
    if test is not None:  # later rounds would change the scores of earlier ones
        return pl.col("target_id").is_in(test.may_be_asked(0).implode())
    is_non_member = pl.col("role") == "non_member"
    is_target = pl.col("role") == "target"
    is_unknown = is_target & pl.col("member").is_null()
    is_outside = is_target & ~pl.col("member").fill_null(value=True)
    targets = audit.run.scan("targets").select(
        is_non_member.any(), has_both=(is_unknown.any() & is_outside.any())
    )
    has_non_members, has_both = targets.collect(engine="streaming").row(0)
    if has_non_members:
        return is_non_member
    return is_outside if has_both else None


def group_targets(audit: Audit) -> pl.DataFrame:
    """Return the ``target_id``, number of the ``group`` and whether ``counted`` of each text."""
    # Each text is its own group where none is known to be outside, so that groups are
    # not compared, and where all are of one: a book alone has no elsewhere but its own
    # other texts.
    targets = audit.run.scan("targets")
    is_counted = _choose_counted(audit)
    may_be_apart = is_counted is None
    if is_counted is None:
        is_counted = pl.col("role") != "yardstick"
    texts = targets.select(
        "target_id",
        group=cluster_names(targets).hash(),
        counted=is_counted,
        outside=pl.col("member").eq(other=False),
    )
    has_one_group = pl.col("group").filter("counted").n_unique() == 1
    is_apart = pl.lit(may_be_apart) & (has_one_group | ~pl.col("outside").any())
    first = pl.col("row").first().over("group")
    group = pl.when(is_apart).then("row").otherwise(first)
    numbered = texts.with_row_index("row")
    return numbered.select("target_id", "counted", group=group).collect()


# The stage that makes features of samples, and where the parts of both lie.

_LOOKED_UP = ("target_id", "n_words", "role", "member")
# Texts that repeat themselves are many times as large as their files
_PARTS_AT_ONCE = 8
_ROWS_AT_ONCE = 1 << 14  # short texts are many in a small file
_BYTES_AT_ONCE = 4 << 20


@dataclass(frozen=True, kw_only=True)  # without slots: the targets are looked up once
class FeatureWriter:
    """Makes the features of a view's samples; before it is first called, it can be pickled."""

    folder: Path
    samples: Parts
    prompts: PromptUnits
    options: Mapping[str, Any]  # arguments of `build_features`

    @classmethod
    def build(cls, audit: Audit, view: View, rarity: RarityTable | None = None) -> Self:
        settings = audit.settings
        return cls(
            folder=audit.run.path("features"),
            samples=sample_parts(audit, view),
            prompts=PromptUnits(audit.run.order, prompt_parts(audit, view), view),
            options={
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
        features = build_features(pl.concat(parts.values()), prompts, **self.options)
        ends = accumulate(samples.height for samples in parts.values())
        rows = {
            self.folder / name: features[end - samples.height : end]
            for (name, samples), end in zip(parts.items(), ends, strict=True)
        }
        sink_all(rows, Features)

    def __call__(self, group: list[Path]) -> None:
        """Store the features of parts of samples."""
        sample_columns, prompt_columns = list_inputs(self.options["preset"])
        frames = [scan(part, Samples).select(sample_columns) for part in group]
        rows = pl.collect_all(frames)
        target_ids = pl.concat(frame["target_id"] for frame in rows)
        places = dict.fromkeys(map(self.samples.target_rows, group))
        targets = self._targets.find(target_ids, places)
        # Samples of texts that the input no longer has stay, and have no features.
        has_target = pl.col("target_id").is_in(targets["target_id"].implode())
        samples = {
            part.name: frame.filter(has_target)
            for part, frame in zip(group, rows, strict=True)
        }
        sampled_ids = pl.concat(frame["target_id"] for frame in samples.values())
        prompts = self.prompts.find_prompts(targets, places, prompt_columns)
        if not sampled_ids.is_in(prompts["target_id"].implode()).all():
            folder = self.prompts.parts.folder
            raise DamagedTableError(
                f"{folder} has not the prompts of all samples; give the audit's command"
                " again"
            )
        self.write(samples, prompts)

    @cached_property
    def _targets(self) -> TargetLookup:
        columns = [*_LOOKED_UP, *self.prompts.view.columns]
        return TargetLookup(self.prompts.targets, columns)


class FeaturesStage(Stage):
    """Make the features of parts of samples that have none: stopped before, or other attacks."""

    name = "features"
    phase = "scores"
    activity = "making the features of samples"
    makes = ("features",)

    def list_outdated(self, lost: Collection[Path]) -> list[Path]:
        folder = self.audit.run.path("samples")
        sample_names = {
            path.name for path in folder.glob("*.parquet") if path not in lost
        }
        return [path for path in self.list_files() if path.name not in sample_names]

    def prepare(self) -> None:
        """Decide which groups of features the run has: those of its attacks, and earlier ones."""
        # Continuations are always searched for verbatim runs. Parts of other groups are
        # removed.
        audit = self.audit
        made = audit.manifest.made
        columns: set[str] = set()
        for attack in audit.list_attacks_on("samples"):
            columns.update(attack.columns)
        needed = {*find_groups(columns)}
        if audit.continues_texts or audit.settings.continue_strongest:
            needed.add(VERBATIM_GROUP)
        present = made.get("features", {}).get("groups", [])
        existing = {*GROUPS, *OTHER_GROUPS}.intersection(present)
        groups = sorted(needed | existing)
        if groups != present or "features" not in made:
            self.remove(self.list_files())
            made["features"] = {"groups": groups}
            audit.save()

    def run(self) -> None:
        audit = self.audit
        made = audit.manifest.made
        weighed = list_weighed_views(audit)
        if weighed and made["features"].get("rarity") != made.get("rarity"):
            for view in weighed:  # by another table
                self.remove(sample_parts(audit, view, "features").paths())
            made["features"]["rarity"] = made.get("rarity")
            audit.save()
        keys = {view.key for view in weighed}  # views of one key need not be equal
        for view in list_views(audit, "samples"):
            make_features(audit, view, weighed=view.key in keys)


def make_features(audit: Audit, view: View, *, weighed: bool = False) -> None:
    """Make the features of a view's parts of samples that have none."""
    parts = sample_parts(audit, view)
    folder = audit.run.path("features")
    missing = [part for part in parts.paths() if not (folder / part.name).exists()]
    if not missing:
        return
    noun = "part" if len(missing) == 1 else "parts"
    audit.observer.stage(f"making the features of {len(missing):,} {noun} of samples")
    rarity = None
    if weighed:
        counts = _read_counts(audit, view)
        rarity = RarityTable.from_rows(counts, is_counted=_choose_counted(audit))
    write = FeatureWriter.build(audit, view, rarity)
    most_rows = parts.block_targets * view.n * view.samples  # of a part
    most_parts = min(_PARTS_AT_ONCE, max(_ROWS_AT_ONCE // most_rows, 1))
    with open_background(audit) as later:
        for group in _group_parts(missing, most_parts):
            later(write, group)


def _group_parts(parts: list[Path], most_parts: int) -> Iterator[list[Path]]:
    """Put small parts together: queries and calls of the kernels cost as much for few rows."""
    group: list[Path] = []
    size = 0
    for part in parts:
        group.append(part)
        size += part.stat().st_size
        if size >= _BYTES_AT_ONCE or len(group) >= most_parts:
            yield group
            group = []
            size = 0
    if group:
        yield group
