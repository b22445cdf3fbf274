"""From scores and verdicts to the tables that a report shows as they are."""

from __future__ import annotations

from typing import Any

import polars as pl

from mia_batch.attacks.attack import REFERENCE_TEXT, TEXT
from mia_batch.evidence.parts import scan_parts
from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.memory import (
    common_targets,
    verbatim_findings,
    verbatim_runs,
    without_common,
)
from mia_batch.inference.rollup import perplexities, rollup
from mia_batch.metrics.measure import curves
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages.controls import passages_of
from mia_batch.pipeline.stages.scores import asked_targets, evidence_of
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.verdicts import blind_warns
from mia_batch.pipeline.stages.views import views_of
from mia_batch.schemas import Curves, ExtractedDocuments, Findings, LogProbs, Perplexities, Rollup
from mia_batch.tables import digest, sink, sink_frames


class SummaryStage(Stage):
    """Sum up documents and groups, and draw the curves of scores."""

    name = "summary"
    part = "answers"
    makes = ("rollup", "curves", "perplexities")
    reads = ("scores",)

    def fingerprint(self) -> dict[str, Any]:
        """Verdicts, with all they are made from, features, what was extracted, and controls."""
        made = self.audit.manifest.made
        return {
            "form": 4,  # of both tables
            "verdicts": made.get("verdicts"),
            "features": made.get("features"),
            "extracted": self._digest("extracted_documents"),
            "controls": self._digest("controls"),
        }

    @property
    def needed(self) -> set[str]:
        without = TEXT not in {view.key for view in views_of(self.audit, "logprobs")}
        return {*self.makes} - ({"perplexities"} if without else set())

    def _digest(self, table: str) -> str | None:
        path = self.audit.run.path(table)
        return digest(path) if path.exists() else None

    def run(self) -> None:
        if self.is_fresh:
            return
        self.audit.observer.stage("summing up documents and groups")
        self.forget()
        _write(self.audit)
        if "perplexities" in self.needed:
            reads = {view.key for view in views_of(self.audit, "logprobs")}
            folder = self.audit.run.path("logprobs")
            reference: pl.LazyFrame = LogProbs.create_empty(lazy=True)
            if REFERENCE_TEXT in reads:
                reference = scan_parts(folder, LogProbs, REFERENCE_TEXT)
            table = perplexities(scan_parts(folder, LogProbs, TEXT), reference)
            sink(table, self.audit.run.path("perplexities"), Perplexities)
        self.done()


def _write(audit: Audit) -> None:
    run, plan = audit.run, audit.plan
    targets, scores = asked_targets(audit), run.scan("scores")
    extracted: pl.LazyFrame = ExtractedDocuments.create_empty(lazy=True)
    if run.path("extracted_documents").exists():
        extracted = run.scan("extracted_documents")
    findings = run.scan("findings").collect()
    controls = run.scan("controls") if run.path("controls").exists() else None
    if controls is not None and run.path("extraction").exists():
        common = common_targets(controls)
        extracted = without_common(extracted, run.scan("extraction"), common)
    rows = rollup(
        targets,
        scores,
        run.scan("features"),
        run.scan("verdicts"),
        plan,
        extracted=extracted,
        candidates=run.scan("samples"),
        samples=audit.settings.continuations,
        words=audit.settings.word_rule,
        blind_warns=blind_warns(findings),
        findings=findings,
        controls=controls,
    )
    sink(rows, run.path("rollup"), Rollup)
    sets = read_comparison_sets(scores, named=False)
    runs = verbatim_runs(targets, run.scan("features"), audit.settings.continuations)
    verbatim = verbatim_findings(
        runs, sets, _named(audit), None if controls is None else controls.collect()
    )
    rows = pl.concat([findings.filter(pl.col("check") != "verbatim"), verbatim])
    sink(rows, run.path("findings"), Findings)
    if plan.adjustment == "e-bh":  # what is scored depends on scores: its curves mean nothing
        sink(Curves.create_empty(), run.path("curves"), Curves)
        return
    frames = curves(targets, scores, audit.attacks, plan.primary, evidence_of(audit))
    sink_frames(frames, run.path("curves"), Curves)


def _named(audit: Audit) -> pl.DataFrame:
    """Give passages that came out the names of their documents."""
    names = audit.run.scan("targets").select(
        "target_id", name=pl.coalesce("document_id", "target_id")
    )
    return passages_of(audit).lazy().join(names, on="target_id", maintain_order="left").collect()
