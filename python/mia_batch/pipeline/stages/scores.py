"""The stage that applies attacks to the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import polars as pl

from mia_batch.attacks import find_unscored, score
from mia_batch.attacks.attack import COMBINATION, among
from mia_batch.diagnostics.unscored import count_reasons
from mia_batch.evidence.parts import scan_parts
from mia_batch.features import feature_fields
from mia_batch.inference.sets import combine
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.verdicts import record_plan
from mia_batch.pipeline.stages.views import OF_STAGES, models_of, views_of
from mia_batch.prompts.views import RunModel
from mia_batch.schemas import LogProbs, Scores, Unscored
from mia_batch.tables import sink, sink_frames

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
        audit = self.audit
        folders = (audit.run.path("features"), audit.run.path("logprobs"))
        parts = sorted(part.name for folder in folders for part in folder.glob("*.parquet"))
        formulas = b"".join(attack.expr.meta.serialize() for attack in audit.attacks)
        own = [name for name in models_of(audit) if RunModel.of(name).is_made]
        made = {name: audit.source(name)["digest"] for name in own}
        return {
            "attacks": [attack.name for attack in audit.attacks],
            "formulas": sha256(formulas).hexdigest(),
            "samples": {view.name: [view.n, view.samples] for view in views_of(audit, "samples")},
            "logprobs": {"-".join(view.key): view.n for view in views_of(audit, "logprobs")},
            "targets": audit.manifest.made["targets"],
            **({"seed": audit.settings.seed} if _is_learned(audit) else {}),
            **({"made": made} if made else {}),
            "parts": sha256("\n".join(parts).encode()).hexdigest(),
        }

    def run(self) -> None:
        audit = self.audit
        audit.manifest.failed = _count_failures(audit)
        if self.is_fresh:
            return
        audit.observer.stage(f"scoring {len(audit.attacks)} attacks")
        self.forget()
        record_plan(audit)
        run = audit.run
        targets = run.scan("targets")
        evidence = evidence_of(audit)
        logprobs = evidence.get("logprobs")
        frames = score(evidence["samples"], targets, audit.attacks, logprobs=logprobs)
        sink_frames(frames, run.path("scores"), Scores)
        self._learn()
        self._score_placebo(evidence)
        samples = run.scan("samples").filter(_within(audit))
        asked = asked_targets(audit)
        unscored = find_unscored(
            run.scan("scores"), samples, asked, audit.attacks, logprobs=logprobs
        )
        sink(unscored, run.path("unscored"), Unscored)
        self.done()

    def _learn(self) -> None:
        """Write the scores anew with those that are learned from them, if any are."""
        audit = self.audit
        names = [attack.name for attack in audit.attacks if attack.evidence != "scores"]
        scores = audit.run.scan("scores")
        if _is_learned(audit):
            learned = combine(scores, names, seed=audit.settings.seed)
            column = pl.Series(COMBINATION, learned, nan_to_null=True)
            sink(scores.with_columns(column), audit.run.path("scores"), Scores)

    def _score_placebo(self, evidence: Mapping[str, pl.LazyFrame]) -> None:
        """Write the scores anew with those that the primary attack gives the reference model."""
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
        column = pl.concat(frame[primary.name] for frame in frames).alias(placebo.name)
        path = audit.run.path("scores")
        sink(audit.run.scan("scores").with_columns(column), path, Scores)


def evidence_of(audit: Audit) -> dict[str, pl.LazyFrame]:
    """Open what the attacks read: features of ``samples``, and ``logprobs`` where one reads them.

    A run may have more than its settings ask for.
    """
    evidence = {"samples": _features(audit).filter(_within(audit))}
    if audit.reading("logprobs"):
        wanted = [
            among([view.key]) & (pl.col("view_index") < view.n)
            for view in views_of(audit, "logprobs")
        ]
        rows = scan_parts(audit.run.path("logprobs"), LogProbs)
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


def _features(audit: Audit) -> pl.LazyFrame:
    """Features of all samples; of none they have the columns that they would have."""
    features = audit.run.scan("features")
    groups = audit.manifest.made["features"]["groups"]
    if any(audit.run.path("features").glob("*.parquet")):
        return features
    return features.with_columns(
        pl.lit(None, field.dtype).alias(field.name) for field in feature_fields(groups)
    )


def _count_failures(audit: Audit) -> dict[str, Any]:
    """Count the targets with a failed request, or with more answers of no use than of use.

    ``targets`` that have, ``of`` those that could be sampled, ``again``: those that another try may
    mend, and ``reasons``: how many targets have each, the most frequent first.
    """
    asked = pl.col("n_bytes").is_not_null()
    failed = pl.col("reason").is_not_null()
    drawn = audit.run.scan("samples").filter(~pl.col("view").is_in(list(OF_STAGES)))
    read = audit.run.scan("logprobs").filter(asked, failed)
    kinds = [
        drawn.filter(failed).select("target_id", "reason", mends=pl.col("answer").is_null()),
        read.select("target_id", "reason", mends=pl.lit(value=True)),
    ]
    reasons = pl.concat(kinds).unique().collect(engine="streaming")
    again = reasons.filter("mends")["target_id"].unique()
    of_no_use = pl.col("target_id").is_in(reasons["target_id"].unique().implode())
    shares = drawn.filter(of_no_use).group_by("target_id", "model", "view").agg(failed.mean())
    few = shares.filter(pl.col("reason") > _MOST_LOST).collect(engine="streaming")["target_id"]
    targets = audit.manifest.targets
    return {
        "targets": pl.concat([again, few]).n_unique(),
        "of": 2 * targets["total"] - sum(targets.values()),
        "again": again.len(),
        "reasons": count_reasons(reasons.lazy()),
    }
