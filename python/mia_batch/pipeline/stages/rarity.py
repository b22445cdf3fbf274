"""The stage that counts how often the model says each n-gram, over the texts of the run."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mia_batch.attacks.apply import count_rows, whole_targets
from mia_batch.errors import DamagedTableError, SettingsError
from mia_batch.evidence.parts import scan_parts
from mia_batch.kernels import RARITY_FIELDS, Rarity, RarityTable
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.manifest import Manifest
from mia_batch.pipeline.run import Run
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.views import views_of
from mia_batch.prompts.views import View
from mia_batch.schemas import Samples
from mia_batch.tables import RowIndex, scan, sink
from mia_batch.targets import cluster_names

_NUMBER = ("view_index", "sample_index")
_SAMPLES_AT_ONCE = 65536


def weighed_views(audit: Audit) -> list[View]:
    """Return the views of samples that are weighed for an attack."""
    columns = {field.name for field in RARITY_FIELDS}
    weighing = [each for each in audit.reading("samples") if columns.intersection(each.columns)]
    reads = {key for attack in weighing for key in attack.reads}
    return [view for view in views_of(audit, "samples") if view.key in reads]


def rarity_of(audit: Audit, view: View) -> RarityTable:
    """Read the table that a view is weighed by."""
    return RarityTable.stored(_rows(audit, view), counted=_counted(audit))


def _rows(audit: Audit, view: View) -> pl.DataFrame:
    rows = scan(_path(audit), Rarity)
    rows = rows.filter(pl.col("model") == view.model, pl.col("view") == view.name)
    found = rows.select("entry", "count", "n_groups").collect()
    if found.is_empty() and audit.settings.rarity_from is not None:
        raise SettingsError(
            f"setting 'rarity_from': {audit.settings.rarity_from} did not count the view "
            f"{view.name!r}; name a run that computed the same attacks"
        )
    return found


class RarityStage(Stage):
    """Count, of every view that an attack weighs, in how many groups the model says an n-gram."""

    name = "rarity"

    part = "scores"
    makes = ("rarity",)
    reads = ("samples",)

    def fingerprint(self) -> dict[str, Any]:
        """Say what is counted: the samples of each view, or another run's table."""
        audit = self.audit
        if audit.settings.rarity_from is not None:
            return {"from": sha256(_path(audit).read_bytes()).hexdigest()}
        parts = "\n".join(sorted(part.name for part in audit.run.path("samples").glob("*.parquet")))
        return {
            "views": {view.name: [view.n, view.samples] for view in weighed_views(audit)},
            "parts": sha256(parts.encode()).hexdigest(),
            "targets": audit.manifest.made["targets"],
        }

    def prepare(self) -> None:
        """Look whether another run's table can be used."""
        if self.audit.settings.rarity_from is not None and weighed_views(self.audit):
            self._check_other()

    def run(self) -> None:
        """Count anew unless the table is up to date."""
        audit = self.audit
        views = weighed_views(audit)
        if not views or (self.is_fresh and _path(audit).exists()):
            return
        self.forget()
        if audit.settings.rarity_from is None:
            audit.observer.stage("counting how often the model says each word elsewhere")
            groups = _groups(audit)
            index = RowIndex(audit.run.scan("targets").select("target_id"))
            counted = [self._count(view, index, groups) for view in views]
            sink(pl.concat(counted), audit.run.path("rarity"), Rarity)
        self.done()

    def _count(self, view: View, index: RowIndex, groups: pl.Series) -> pl.DataFrame:
        folder = self.audit.run.path("samples")
        samples = scan_parts(folder, Samples, view.key).filter(
            pl.col("view_index") < view.n,
            pl.col("sample_index") < view.samples,
            pl.col("candidate").is_not_null(),
        )

        def rows(*columns: str) -> Iterator[pl.DataFrame]:
            wanted = samples.select("target_id", *columns)
            for batch in wanted.collect_batches(chunk_size=_SAMPLES_AT_ONCE, maintain_order=True):
                which, found = index.find(batch["target_id"])
                group = pl.Series("row", groups[found])
                yield batch.drop("target_id")[which].with_columns(group).drop_nulls("row")

        to_come = count_rows(rows(), index.height)
        n_groups = int(np.count_nonzero(to_come))
        whole = whole_targets(rows("candidate"), to_come, ())
        words = self.audit.settings.word_rule
        table = RarityTable.count(whole, n_groups=n_groups, words=words)
        return table.rows(*view.key)

    def _check_other(self) -> None:
        settings = self.audit.settings
        given = str(settings.rarity_from)
        if _path(self.audit).resolve() == self.audit.run.path("rarity").resolve():
            raise SettingsError(
                f"setting 'rarity_from' is the run itself, {given!r}; name another run"
            )
        made = Manifest.of(_path(self.audit).parent)
        if made is None or not _path(self.audit).exists():
            raise SettingsError(
                f"setting 'rarity_from': {given} is no run with a table of rarity; name one"
            )
        if made.evidence["word_rule"] != settings.word_rule:
            raise SettingsError(
                f"setting 'rarity_from': {given} counted words by {made.evidence['word_rule']!r}, "
                f"not by {settings.word_rule!r}; give the same word rule"
            )
        try:
            for view in weighed_views(self.audit):
                _rows(self.audit, view)
        except DamagedTableError as error:
            raise SettingsError(
                f"setting 'rarity_from': the table of rarity of {given} is damaged; give that "
                "run's own command again, which rebuilds it"
            ) from error


def _path(audit: Audit) -> Path:
    other = audit.settings.rarity_from
    run = audit.run if other is None else Run(other)
    return run.path("rarity")


def _counted(audit: Audit) -> pl.Expr | None:
    """Tell which targets are counted: those that others are compared with; None = all.

    Were the others counted, too, a large group of them would say nearly every word. That would
    lower the scores of all texts but its own, and so its p-values. In rounds all are, by the
    windows of the first one: as many of each group.
    """
    if audit.settings.rarity_from is not None:
        return pl.lit(value=False)
    if (test := audit.rounds()) is not None:  # later rounds would change the scores of earlier ones
        return pl.col("target_id").is_in(test.may_be_asked(0).implode())
    role, member = pl.col("role"), pl.col("member")
    non_member, target = role == "non_member", role == "target"
    unknown = target & member.is_null()
    outside = target & ~member.fill_null(value=True)
    targets = audit.run.scan("targets")
    kinds = targets.select(non_member.any(), asked=(unknown.any() & outside.any()))
    given, asked = kinds.collect(engine="streaming").row(0)
    if given:
        return non_member
    return outside if asked else None


def _groups(audit: Audit) -> pl.Series:
    """Return the number of each target's group, null where it is not counted.

    It is that of the first target in it; texts belong together as in tests. Each text is a group of
    its own where none is known to be outside, so that groups are not compared, and where all are
    of one group: a book alone has no elsewhere but its own other texts.
    """
    targets = audit.run.scan("targets")
    counted = _counted(audit)
    names = targets.select(
        group=cluster_names(targets).hash(),
        counted=pl.col("role") != "yardstick" if counted is None else counted,
        outside=pl.col("member").eq(other=False),
    )
    first = pl.col("row").first().over("group")
    alone = (pl.col("group").filter("counted").n_unique() == 1) | ~pl.col("outside").any()
    apart = pl.lit(counted is None) & alone
    group = pl.when("counted").then(pl.when(apart).then("row").otherwise(first))
    return names.with_row_index("row").select(group).collect().to_series()
