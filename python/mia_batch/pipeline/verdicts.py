"""From targets and scores to findings, metrics and verdicts."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch import tables
from mia_batch.attacks import score_by
from mia_batch.diagnostics.preflight import check_targets
from mia_batch.diagnostics.unscored import uneven_findings
from mia_batch.errors import SettingsError
from mia_batch.inference.findings import (
    finding_rows,
    plan_findings,
    reported_findings,
    role_counts,
    role_findings,
)
from mia_batch.inference.plan import VerdictPlan
from mia_batch.inference.power import power_findings
from mia_batch.inference.sampling_error import score_errors
from mia_batch.inference.verdicts import verdicts
from mia_batch.metrics.measure import measure
from mia_batch.report import sentences
from mia_batch.schemas import (
    Blind,
    Features,
    Findings,
    Metrics,
    Scores,
    Targets,
    Unscored,
    Verdicts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mia_batch.attacks import Attack
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = [
    "conclusions",
    "evaluate",
    "plan_power",
    "plan_verdicts",
    "preflight",
    "what_it_rests_on",
]

_PRIMARY = ("samia_matched_v1", "min_k_plus_plus_20_v1")
_LABELLED_FALSE = "texts of the input that are labelled member = false"
_MOST_ERRORS = 20_000  # targets and non-members whose sampling error is measured
_FROM_SCORES = ("plan", "reported", "uneven_scores")


def plan_verdicts(settings: Settings, attacks: Sequence[str]) -> VerdictPlan:
    """Say what the run is to decide and how.

    The primary attack is the one asked for, else the first of `samia_matched_v1` and
    `min_k_plus_plus_20_v1` that is computed, else the first attack.
    """
    primary = settings.primary or next((name for name in _PRIMARY if name in attacks), attacks[0])
    if primary not in attacks:
        msg = f"setting 'primary' is {primary!r}, which is not computed; name it in 'attacks' too"
        raise SettingsError(msg)
    same = settings.model_dump(include={field.name for field in fields(VerdictPlan)} - {"primary"})
    null_set = settings.non_members_known or _LABELLED_FALSE
    return VerdictPlan(primary=primary, null_set=null_set, **same)


def what_it_rests_on(settings: Settings, corpora: Mapping[str, Any]) -> dict[str, int | str]:
    """Name the number of samples and the SHA-256 of each text file, as ``run.json`` has them."""
    return {"samples": settings.samples, "input": corpora["sha256"], **corpora["helping"]}


def preflight(run: Run, plan: VerdictPlan, *, seed: int) -> None:
    """Write what the targets tell before any engine starts: findings, blind scores and metrics."""
    targets = tables.scan(run.targets_path, Targets)
    checked = check_targets(targets, seed=seed)
    rows = [role_findings(targets), checked.findings, plan_power(targets, plan)]
    tables.sink(checked.blind_scores, run.blind_path, Blind)
    tables.sink(checked.blind_metrics, run.blind_metrics_path, Metrics)
    tables.sink(pl.concat(rows), run.findings_path, Findings)


def plan_power(targets: pl.LazyFrame, plan: VerdictPlan) -> pl.DataFrame:
    """Find what the planned test can show at best; nothing without texts to compare."""
    roles = role_counts(role_findings(targets))
    if not (roles["n_unknown"] and roles["n_nulls"]):
        return finding_rows("power", [])
    keys = targets.select(name for name in Scores.column_names() if name in Targets.column_names())
    return power_findings(keys.collect(engine="streaming").lazy(), plan)


def evaluate(
    settings: Settings,
    attacks: Sequence[Attack],
    plan: VerdictPlan,
    run: Run,
    *,
    preregistered: Mapping[str, Any],
    rests_on: Mapping[str, int | str],
) -> None:
    """Write metrics, verdicts, and findings anew: those of `preflight` and what scores add."""
    before = tables.scan(run.findings_path, Findings).collect()
    before = before.filter(~pl.col("check").is_in(_FROM_SCORES))
    planned = plan_findings(plan, preregistered, rests_on)
    scores, primary_first = tables.scan(run.scores_path, Scores), [plan.primary]
    names = [attack.name for attack in attacks]
    primary_first += (name for name in names if name != plan.primary)
    metrics = measure(
        scores,
        names,
        blind_scores=tables.scan(run.blind_path, Blind),
        blind_metrics=tables.scan(run.blind_metrics_path, Metrics).collect(),
        preset=settings.preset,
        slice_by=settings.slice_by,
        primary=plan.primary,
        seed=settings.seed,
    )
    tables.sink(metrics, run.metrics_path, Metrics)
    made = _verdicts(settings, attacks, plan, run, before)
    if planned["verdict"].item(0) != "as_planned":
        made = (rows.with_columns(planned=False) for rows in made)
    tables.sink_frames(made, run.verdicts_path, Verdicts)
    reported = reported_findings(tables.scan(run.verdicts_path, Verdicts), plan)
    uneven = uneven_findings(scores, primary_first, tables.scan(run.unscored_path, Unscored))
    tables.sink(pl.concat([before, planned, uneven, reported]), run.findings_path, Findings)


def conclusions(run: Run, settings: Settings) -> Iterator[str]:
    """Say what may be concluded from a finished run, warnings first."""
    plan = plan_verdicts(settings, run.manifest["scored"]["attacks"])
    verdicts = tables.scan(run.verdicts_path, Verdicts)
    return sentences(run.metrics, verdicts, run.findings, plan)


def _verdicts(
    settings: Settings, attacks: Sequence[Attack], plan: VerdictPlan, run: Run, found: pl.DataFrame
) -> Iterator[pl.DataFrame]:
    """Yield the verdicts table, the primary attack's targets with their sampling error."""
    yield Verdicts.create_empty()
    roles = role_counts(found)
    if not (roles["n_nulls"] or roles["n_canaries"]):
        return
    scores = tables.scan(run.scores_path, Scores)
    primary = next(attack for attack in attacks if attack.name == plan.primary)
    errors = None
    if roles["n_nulls"] and primary.evidence == "samples":
        errors = _sampling_errors(settings.samples, primary, run)
    names = [attack.name for attack in attacks]
    warns = found.filter(check="blind_baseline", subject="calibration", verdict="separable")
    for rows in verdicts(scores, names, plan, blind_warns=not warns.is_empty()):
        yield rows if errors is None else _with_errors(rows, errors, plan.primary)


def _with_errors(rows: pl.DataFrame, errors: pl.DataFrame, primary: str) -> pl.DataFrame:
    found = rows.select("key").join(
        errors, left_on="key", right_on="target_id", how="left", maintain_order="left"
    )
    own = (pl.col("attack") == primary) & (pl.col("level") == "target")
    return rows.with_columns(standard_error=pl.when(own).then(found["standard_error"]))


def _sampling_errors(samples: int, attack: Attack, run: Run) -> pl.DataFrame:
    """Measure the sampling error of the first targets and non-members by ``target_id``."""
    table = tables.scan(run.scores_path, Scores)
    scores = (
        table.filter(pl.col("role").is_in(["target", "non_member"]))
        .select("target_id", score=attack.name)
        .bottom_k(_MOST_ERRORS, by="target_id")
        .collect(engine="streaming")
        .sort("target_id")
    )
    of_these = pl.col("target_id").is_in(scores["target_id"].implode())
    features = tables.scan(run.features_folder, Features).filter(
        of_these, pl.col("sample_index") < samples
    )
    alone = score_by(features, attack, "target_id", "sample_index").sort(
        "target_id", "sample_index"
    )
    return score_errors(alone.collect(engine="streaming"), scores)
