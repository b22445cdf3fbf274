"""The stage that has a model rewrite texts, for those who audit another with DE-COP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.evidence.parts import scan_parts
from mia_batch.pipeline.stages.features import sample_parts
from mia_batch.pipeline.stages.prompts import prompts_missing, write_prompts
from mia_batch.pipeline.stages.samples import SamplesStage, Store
from mia_batch.pipeline.stages.views import view_of
from mia_batch.prompts.choices import N_PARAPHRASES
from mia_batch.schemas import Paraphrases, Samples, Targets
from mia_batch.tables import sink

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.pipeline.context import Audit
    from mia_batch.prompts.view import View

__all__ = ["RewritingStage"]

_TOO_FEW = "{} of {} answers end and differ from the text and from each other; three are needed"
_PARAPHRASE = pl.col("candidate").str.strip_chars()
_COUNTS = (
    pl.col("finish_reason").ne_missing(pl.lit("length"))
    & (_PARAPHRASE != "")
    & (pl.col("target").str.strip_chars() != _PARAPHRASE)
)
_WORDS = r"\S+"


class RewritingStage(SamplesStage):
    """Texts in other words, as samples, and as a table that an audit takes."""

    def __init__(self, audit: Audit) -> None:
        super().__init__(audit, "target")

    @property
    def _views(self) -> list[View]:
        return [view_of(self.audit, "target", "rewriting")]

    def _store(self, view: View) -> Store:
        return Store(sample_parts(self.audit, view))

    def run(self) -> None:
        """Ask for what is missing, and write the table of all."""
        audit, run = self.audit, self.audit.run
        (view,) = self._views
        write_prompts(audit, view, prompts_missing(audit, view))
        super().run()
        table = _table(run.scan("targets"), scan_parts(run.path("samples"), Samples, view.key))
        rows = table.collect(engine="streaming")
        audit.begin_change()
        sink(rows, self.path, Paraphrases)
        audit.observer.stage(_sentence(rows))

    @property
    def path(self) -> Path:
        """The table of paraphrases."""
        return self.audit.run.path("paraphrases")


def _table(targets: pl.LazyFrame, samples: pl.LazyFrame) -> pl.LazyFrame:
    """Put what was said beside the texts, in their order."""
    asked = targets.select("target_id", "target")
    said = (
        samples.join(asked, on="target_id")
        .sort("target_id", "sample_index")
        .group_by("target_id")
        .agg(
            n=pl.len(),
            refused=pl.col("reason").drop_nulls().first(),
            paraphrases=_PARAPHRASE.filter(_COUNTS).unique(maintain_order=True),
        )
    )
    is_window, n = pl.col("n_windows") > 1, pl.col("paraphrases").list.len()
    number = pl.format("{}#{}", "document_id", "window_index")
    own = targets.select(Targets.column_names())  # further columns may be called as ours
    return own.join(said, on="target_id", how="left", maintain_order="left").select(
        document_id=pl.when(is_window).then(number).otherwise("document_id"),
        text="target",
        member="member",
        group=pl.when(is_window).then(pl.coalesce("group", "document_id")).otherwise("group"),
        paraphrases=pl.when(n > 0).then("paraphrases"),
        paraphrases_reason=pl.when(pl.col("target").is_null())
        .then("reason")
        .when(n < N_PARAPHRASES)
        .then(pl.coalesce("refused", pl.format(_TOO_FEW, n, "n"))),
    )


def _sentence(rows: pl.DataFrame) -> str:
    """Say how many texts can be asked about, and how long what was made of them is."""
    whole = rows.filter(pl.col("paraphrases_reason").is_null())
    said = f"{whole.height:,} of {rows.height:,} texts have three paraphrases"
    if whole.is_empty():
        return said
    words = pl.col("text", "paraphrases").str.count_matches(_WORDS).mean()
    text, made = whole.explode("paraphrases").select(words).row(0)
    return f"{said}, which have {made / text:.2f} times the words of the texts"
