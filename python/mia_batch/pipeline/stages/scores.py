"""The stage that applies attacks to the evidence, and the one that sums up what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import polars as pl

from mia_batch import schemas
from mia_batch.attacks import find_unscored, score
from mia_batch.attacks.attack import COMBINATION, REFERENCE_TEXT, TEXT, among
from mia_batch.diagnostics.unscored import count_reasons
from mia_batch.evidence.parts import scan_parts
from mia_batch.features import feature_fields
from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.memory import (
    common_targets,
    verbatim_findings,
    verbatim_runs,
    without_common,
)
from mia_batch.inference.rollup import perplexities, rollup
from mia_batch.inference.sets import combine
from mia_batch.metrics.measure import curves
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.extraction import passages_of
from mia_batch.pipeline.stages.features import parts_digest
from mia_batch.pipeline.stages.verdicts import blind_warns, record_plan
from mia_batch.pipeline.stages.views import STAGE_VIEWS, models_of, views_of
from mia_batch.prompts.views import RunModel
from mia_batch.tables import digest, sink, sink_frames

_MOST_LOST = 0.5  # of the answers about a target
_NOT_ASKED = "not asked: its group was decided before, or has more windows than are compared"


class ScoresStage(Stage):
    """Apply the attacks, and say why scores are missing."""

    name = "scores"
    part = "scores"
    makes = ("scores", "unscored")
    reads = ("samples", "features", "logprobs")

    def fingerprint(self) -> dict[str, Any]:
        """Attacks, texts, and the parts of evidence that the scores are made from."""
        audit, run = self.audit, self.audit.run
        formulas = b"".join(attack.expr.meta.serialize() for attack in audit.attacks)
        own = [name for name in models_of(audit) if RunModel.of(name).is_made]
        made = {name: audit.source(name)["digest"] for name in own}
        parts = [p for name in ("features", "logprobs") for p in run.path(name).glob("*.parquet")]
        return {
            "attacks": [attack.name for attack in audit.attacks],
            "formulas": sha256(formulas).hexdigest(),
            "samples": {view.name: [view.n, view.samples] for view in views_of(audit, "samples")},
            "logprobs": {"-".join(view.key): view.n for view in views_of(audit, "logprobs")},
            "targets": audit.manifest.made["targets"],
            **({"seed": audit.settings.seed} if _is_learned(audit) else {}),
            **({"made": made} if made else {}),
            "parts": parts_digest(sorted(parts, key=lambda part: part.name)),
        }

    def run(self) -> None:
        self.audit.manifest.failed = _count_failures(self.audit)
        self.doing = f"scoring {len(self.audit.attacks)} attacks"
        super().run()

    def make(self) -> None:
        audit, run = self.audit, self.audit.run
        record_plan(audit)
        evidence = evidence_of(audit)
        logprobs = evidence.get("logprobs")
        targets = run.scan("targets")
        frames = score(evidence["samples"], targets, audit.attacks, logprobs=logprobs)
        sink_frames(frames, run.path("scores"), schemas.Scores)
        if _is_learned(audit):
            names = [attack.name for attack in audit.attacks if attack.evidence != "scores"]
            learned = combine(run.scan("scores"), names, seed=audit.settings.seed)
            self._add(pl.Series(COMBINATION, learned, nan_to_null=True))
        self._score_placebo(evidence)
        samples, asked = run.scan("samples").filter(_within(audit)), asked_targets(audit)
        unscored = find_unscored(
            run.scan("scores"), samples, asked, audit.attacks, logprobs=logprobs
        )
        sink(unscored, run.path("unscored"), schemas.Unscored)

    def _add(self, column: pl.Series) -> None:
        """Write the scores anew with another column."""
        run = self.audit.run
        sink(run.scan("scores").with_columns(column), run.path("scores"), schemas.Scores)

    def _score_placebo(self, evidence: Mapping[str, pl.LazyFrame]) -> None:
        """Add the scores that the primary attack gives the reference model."""
        audit, placebo = self.audit, self.audit.placebo
        if placebo is None:
            return
        primary = next(attack for attack in audit.attacks if attack.name == audit.plan.primary)
        other = {
            kind: rows.filter(model="reference").with_columns(model=pl.lit("target"))
            for kind, rows in evidence.items()
        }
        targets = audit.run.scan("targets")
        frames = score(other["samples"], targets, [primary], logprobs=other.get("logprobs"))
        self._add(pl.concat(frame[primary.name] for frame in frames).alias(placebo.name))


def evidence_of(audit: Audit) -> dict[str, pl.LazyFrame]:
    """Open what the attacks read; a run may have more than its settings ask for.

    Where there is no sample the features have the columns that they would have.
    """
    features = audit.run.scan("features")
    if not any(audit.run.path("features").glob("*.parquet")):
        features = features.with_columns(
            pl.lit(None, field.dtype).alias(field.name)
            for field in feature_fields(audit.manifest.made["features"]["groups"])
        )
    evidence = {"samples": features.filter(_within(audit))}
    if audit.reading("logprobs"):
        wanted = [
            among([view.key]) & (pl.col("view_index") < view.n)
            for view in views_of(audit, "logprobs")
        ]
        rows = scan_parts(audit.run.path("logprobs"), schemas.LogProbs)
        evidence["logprobs"] = rows.filter(pl.any_horizontal(wanted))
    return evidence


def asked_targets(audit: Audit) -> pl.LazyFrame:
    """Open the targets; where groups stop when decided, with a reason for what was not asked."""
    targets = audit.run.scan("targets")
    if audit.plan.adjustment != "e-bh":
        return targets
    rows = [audit.run.scan(kind).select("target_id") for kind in ("samples", "logprobs")]
    asked = pl.concat(rows).unique().collect(engine="streaming").to_series()
    reason = pl.when(~pl.col("target_id").is_in(asked.implode())).then(pl.lit(_NOT_ASKED))
    return targets.with_columns(reason=pl.coalesce("reason", reason))


def _is_learned(audit: Audit) -> bool:
    return any(attack.evidence == "scores" for attack in audit.attacks)


def _within(audit: Audit) -> pl.Expr:
    """Whether a sample is one that the settings ask for."""
    wanted = [
        (pl.col("view") == view.name)
        & (pl.col("view_index") < view.n)
        & (pl.col("sample_index") < view.samples)
        for view in views_of(audit, "samples")
    ]
    return pl.any_horizontal(pl.lit(value=False), *wanted)


def _count_failures(audit: Audit) -> dict[str, Any]:
    """Count the ``targets`` with a failed request, or with more answers of no use than of use.

    ``of`` those that could be sampled; ``again``: those that another try may mend.
    """
    asked = pl.col("n_bytes").is_not_null()
    failed = pl.col("reason").is_not_null()
    drawn = audit.run.scan("samples").filter(~pl.col("view").is_in(list(STAGE_VIEWS)))
    read = audit.run.scan("logprobs").filter(asked, failed)
    kinds = [
        drawn.filter(failed).select("target_id", "reason", mends=pl.col("answer").is_null()),
        read.select("target_id", "reason", mends=pl.lit(value=True)),
    ]
    reasons = pl.concat(kinds).unique().collect(engine="streaming")
    again = reasons.filter("mends")["target_id"].unique()
    useless = pl.col("target_id").is_in(reasons["target_id"].unique().implode())
    shares = drawn.filter(useless).group_by("target_id", "model", "view").agg(failed.mean())
    few = shares.filter(pl.col("reason") > _MOST_LOST).collect(engine="streaming")["target_id"]
    targets = audit.manifest.targets
    return {
        "targets": pl.concat([again, few]).n_unique(),
        "of": 2 * targets["total"] - sum(targets.values()),
        "again": again.len(),
        "reasons": count_reasons(reasons.lazy()),
    }


class SummaryStage(Stage):
    """Make the tables that a report shows as they are: of documents and groups, and curves."""

    name = "summary"
    part = "answers"
    makes = ("rollup", "curves", "perplexities")
    reads = ("scores",)
    doing = "summing up documents and groups"

    def fingerprint(self) -> dict[str, Any]:
        """Verdicts, with all they are made from, features, what was extracted, and controls."""
        made, found = self.audit.manifest.made, {}
        for name in ("extracted_documents", "controls"):
            path = self.audit.run.path(name)
            found[name] = digest(path) if path.exists() else None
        return {
            "form": 4,  # of both tables
            "verdicts": made.get("verdicts"),
            "features": made.get("features"),
            "extracted": found["extracted_documents"],
            "controls": found["controls"],
        }

    @property
    def needed(self) -> set[str]:
        without = TEXT not in {view.key for view in views_of(self.audit, "logprobs")}
        return {*self.makes} - ({"perplexities"} if without else set())

    def make(self) -> None:
        audit, run, plan = self.audit, self.audit.run, self.audit.plan
        controls = run.scan("controls") if run.path("controls").exists() else None
        findings = self._roll_up(controls)
        targets, scores = asked_targets(audit), run.scan("scores")
        # Passages that came out are named by their documents.
        name = pl.coalesce("document_id", "target_id")
        passages = passages_of(audit).lazy()
        named = passages.join(
            run.scan("targets").select("target_id", name=name),
            on="target_id",
            maintain_order="left",
        )
        runs = verbatim_runs(targets, run.scan("features"), audit.settings.continuations)
        verbatim = verbatim_findings(
            runs,
            read_comparison_sets(scores, named=False),
            named.collect(),
            None if controls is None else controls.collect(),
        )
        rows = pl.concat([findings.filter(pl.col("check") != "verbatim"), verbatim])
        sink(rows, run.path("findings"), schemas.Findings)
        if plan.adjustment == "e-bh":  # what is scored depends on scores: its curves mean nothing
            sink(schemas.Curves.create_empty(), run.path("curves"), schemas.Curves)
        else:
            frames = curves(targets, scores, audit.attacks, plan.primary, evidence_of(audit))
            sink_frames(frames, run.path("curves"), schemas.Curves)
        if "perplexities" in self.needed:
            reads = {view.key for view in views_of(audit, "logprobs")}
            folder = run.path("logprobs")
            reference: pl.LazyFrame = schemas.LogProbs.create_empty(lazy=True)
            if REFERENCE_TEXT in reads:
                reference = scan_parts(folder, schemas.LogProbs, REFERENCE_TEXT)
            table = perplexities(scan_parts(folder, schemas.LogProbs, TEXT), reference)
            sink(table, run.path("perplexities"), schemas.Perplexities)

    def _roll_up(self, controls: pl.LazyFrame | None) -> pl.DataFrame:
        """Write the table of documents and groups; return the findings that it rests on."""
        audit, run = self.audit, self.audit.run
        extracted: pl.LazyFrame = schemas.ExtractedDocuments.create_empty(lazy=True)
        if run.path("extracted_documents").exists():
            extracted = run.scan("extracted_documents")
        if controls is not None and run.path("extraction").exists():
            common = common_targets(controls)
            extracted = without_common(extracted, run.scan("extraction"), common)
        findings = run.scan("findings").collect()
        rows = rollup(
            asked_targets(audit),
            run.scan("scores"),
            run.scan("features"),
            run.scan("verdicts"),
            audit.plan,
            extracted=extracted,
            candidates=run.scan("samples"),
            samples=audit.settings.continuations,
            words=audit.settings.word_rule,
            blind_warns=blind_warns(findings),
            findings=findings,
            controls=controls,
        )
        sink(rows, run.path("rollup"), schemas.Rollup)
        return findings
