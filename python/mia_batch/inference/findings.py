"""Findings about verdicts: what is reported, and whether it is what had been planned."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.schemas import Findings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mia_batch.inference.plan import VerdictPlan

__all__ = [
    "earlier_findings",
    "finding_rows",
    "gate_findings",
    "gate_verdict",
    "plan_findings",
    "reported_findings",
    "role_counts",
    "role_findings",
    "why_withheld",
]

_SCHEMA = Findings.create_empty().schema


def finding_rows(check: str, rows: Iterable[Mapping[str, object]]) -> pl.DataFrame:
    """Make rows of one check; what a row does not name is null."""
    return pl.DataFrame([{"check": check, **row} for row in rows], schema=_SCHEMA)


def role_findings(targets: pl.LazyFrame) -> pl.DataFrame:
    """Rows of check ``roles``: how many texts can be asked about, compared with, or ranked.

    ``n_unknown``: targets of unknown membership; ``n_nulls``: texts known to be outside the
    training data; ``n_canaries``: canaries and their unpublished controls.
    """
    is_target = pl.col("role") == "target"
    counts = targets.select(
        n_unknown=(is_target & pl.col("member").is_null()).sum(),
        n_nulls=((pl.col("role") == "non_member") | (is_target & ~pl.col("member"))).sum(),
        n_canaries=(pl.col("role") == "canary").sum(),
    ).collect(engine="streaming")
    return finding_rows(
        "roles", ({"statistic": column.name, "value": column.item()} for column in counts)
    )


def role_counts(findings: pl.DataFrame) -> Counter[str]:
    """Read the counts of `role_findings` by name."""
    return Counter(dict(findings.filter(check="roles").select("statistic", "value").iter_rows()))


def earlier_findings(earlier: Mapping[str, Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of check ``earlier_runs``: ``n_runs``, and of each run its ``primary`` attack."""
    count = [{"statistic": "n_runs", "value": len(earlier)}] if earlier else []
    tried = ((name, f"{run['primary']}, {run['level']}") for name, run in sorted(earlier.items()))
    rows = ({"subject": name, "statistic": "primary", "verdict": plan} for name, plan in tried)
    return finding_rows("earlier_runs", [*count, *rows])


def plan_findings(
    plan: VerdictPlan, preregistered: Mapping[str, Any], rests_on: Mapping[str, object]
) -> pl.DataFrame:
    """Rows of check ``plan``: verdict ``as_planned``, ``changed`` or ``late`` about the primary.

    ``late``: there were scores before any plan. A row ``changed`` names each text file or number
    of samples or points that is another now.
    """
    main = {"subject": preregistered["primary"], "statistic": "n_changed"}
    before = preregistered["rests_on"]
    if before is None:
        reason = "scores had been made before any plan was recorded"
        return finding_rows("plan", [main | {"verdict": "late", "reason": reason}])
    names = sorted(before.keys() | rests_on.keys())
    changed = [name for name in names if before.get(name) != rests_on.get(name)]
    as_planned = not changed and plan.digest() == preregistered["sha256"]
    main |= {"value": len(changed), "verdict": "as_planned" if as_planned else "changed"}
    return finding_rows(
        "plan", [main, *({"subject": name, "statistic": "changed"} for name in changed)]
    )


def gate_findings(before: pl.DataFrame, *, exploratory: bool) -> pl.DataFrame:
    """Row of check ``gate``: may targets be compared with non-members? None without both.

    Verdict ``open`` where classifiers that never see the model cannot tell them apart;
    ``doubtful`` where that is undecided or unknown; where they can, ``weighted`` if check
    ``weights`` says so, or ``withheld``, or ``exploratory`` if the answers are wanted nevertheless.
    The reason is that for withholding what is not weighted.
    """
    blind = before.filter(check="blind_baseline", subject="targets")
    rows = blind.filter(statistic="roc_auc").select("value", "high", "p_value", "verdict", "reason")
    if rows.is_empty():
        return finding_rows("gate", [])
    row = rows.row(0, named=True)
    closed = "exploratory" if exploratory else "withheld"
    if not before.filter(check="weights", verdict="used").is_empty():
        closed = "weighted"
    verdict = {"not separable": "open", "separable": closed}.get(row["verdict"], "doubtful")
    if verdict == closed:
        strongest = blind.filter(statistic="strongest")["verdict"][0]
        row["reason"] = (
            "withheld: the audited texts and the comparison texts can be told apart without the "
            f"model (AUC {row['value']:.2f} by {strongest}, p = {row['p_value']:.3f})"
        )
    return finding_rows("gate", [row | {"statistic": "roc_auc", "verdict": verdict}])


def gate_verdict(findings: pl.DataFrame) -> str | None:
    """Read the verdict of `gate_findings`; None without targets and non-members."""
    return next(iter(findings.filter(check="gate")["verdict"]), None)


def why_withheld(findings: pl.DataFrame) -> str | None:
    """Say why p-values, lists, bounds and estimates without weights are withheld, if they are."""
    closed = gate_verdict(findings) in ("withheld", "weighted")
    return findings.filter(check="gate")["reason"][0] if closed else None


def reported_findings(verdicts: pl.LazyFrame, plan: VerdictPlan) -> pl.DataFrame:
    """Rows of check ``reported``: what the primary attack shows at the planned level.

    None where the plan is about the collection, or there is nothing of its level. A document
    without a group is a group.
    """
    levels = {"target": ["target"], "group": ["group", "document"]}.get(plan.level, [])
    of_level = (pl.col("level").cast(pl.String).is_in(levels)) & pl.col("estimate").is_null()
    counted = (
        verdicts.filter(of_level, attack=plan.primary, versus="non_members")
        .select(
            n_tests=pl.len(),
            n_reported=(pl.col("q_value") <= plan.q).sum(),
            smallest_q=pl.col("q_value").min(),
            n_null=pl.col("n_null").max(),
            n_without_null=(pl.col("n_null") == 0).sum(),
            n_without_p=pl.col("p_value").null_count(),
            adjustment=pl.col("adjustment").first(),
            reason=pl.col("reason").drop_nulls().mode().sort().first(),
        )
        .collect(engine="streaming")
        .row(0, named=True)
    )
    if not counted["n_tests"]:
        return finding_rows("reported", [])
    adjustment, reason = counted.pop("adjustment"), counted.pop("reason")
    rows = [{"statistic": name, "value": value} for name, value in counted.items()]
    rows[-1]["reason"] = reason  # the most frequent one
    rows.append({"statistic": "q", "value": plan.q, "verdict": adjustment})
    return finding_rows("reported", [row | {"subject": plan.level} for row in rows])
