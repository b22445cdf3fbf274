"""Sentences about texts of unknown membership, from rows of verdicts and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.inference.plan import VerdictPlan

__all__ = [
    "null_audit_sentence",
    "placebo_sentence",
    "plan_sentence",
    "power_sentences",
    "unlabelled_sentences",
    "weights_sentence",
]

_ADJUSTMENTS = {
    "bh": "Benjamini-Hochberg",
    "by": "Benjamini-Yekutieli",
    "wcs": "weighted conformalized selection",
}


def power_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what the planned test can show at best."""
    level, facts = _facts(findings, "power")
    if not facts:
        return
    yield (
        f"the smallest p-value there can be is {facts['smallest_p']['value']:.2g}, "
        f"one in {facts['n_null']['value'] + 1:,.0f}"
    )
    if "needed" not in facts:
        return
    needed, at = facts["needed"]["value"], f"at q = {facts['q']['value']:g}"
    if needed is None:
        yield f"{at} nothing can be reported: give more non-members"
    elif needed == 1:
        yield f"{at} a single {level} that beats every one outside the training data is reported"
    else:
        yield (
            f"{at} at least {needed:,.0f} of {facts['n_tests']['value']:,.0f} {level}s are "
            f"reported or none: {needed:,.0f} that beat every one outside the training data are "
            "enough"
        )


def plan_sentence(findings: pl.DataFrame) -> str | None:
    """Say that answers are exploratory; None where they are those that had been planned."""
    rows = findings.filter(check="plan")
    main = next(rows.filter(statistic="n_changed").iter_rows(named=True), None)
    if main is None or main["verdict"] == "as_planned":
        return None
    if main["verdict"] == "late":
        return f"These answers are exploratory: {main['reason']}."
    changed = rows.filter(statistic="changed")["subject"]
    others = f" Changed since: {', '.join(changed)}." if len(changed) else ""
    return (
        "These answers are exploratory: scores had been made before they were asked for. The plan "
        f"made before is in run.json (primary attack {main['subject']}).{others}"
    )


def null_audit_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say how often audits of texts outside the training data alone report any."""
    level, facts = _facts(findings, "null_audits")
    found = facts.get("share_reporting")
    if found is None:
        return
    if found["value"] is None:
        yield f"The rates were not validated on these non-members: {found['reason']}."
        return
    counts = {name: facts[name]["value"] for name in ("n_audits", "n_tests", "n_null", "q", "fpr")}
    more = ": more than was promised" if found["verdict"] == "too_often" else ""
    yield (
        f"Of {counts['n_audits']:,.0f} audits of non-members, {counts['n_tests']:,.0f} drawn at "
        f"random against {counts['n_null']:,.0f} others, {found['value']:.1%} report any {level} "
        f"({found['low']:.1%} to {found['high']:.1%}; at most {counts['q']:.1%} are promised)"
        f"{more}; {facts['share_below_fpr']['value']:.1%} of their p-values are at most "
        f"{counts['fpr']:g}. That checks the procedure on these scores, not whether the audited "
        "texts are like the non-members."
    )


def weights_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say how many non-members count where they are weighted, or why they cannot be."""
    _, facts = _facts(findings, "weights")
    verdict = facts["n_effective"]["verdict"] if facts else "not_needed"
    if verdict == "used":
        yield (
            "Non-members are weighted by how much they are like the targets without the model: "
            f"{facts['n_null']['value']:,.0f} independent units count as "
            f"{facts['n_effective']['value']:.1f}. p-values then hold if targets and non-members "
            "differ in nothing but what the blind classifiers have learned to see."
        )
    elif verdict == "no_overlap":
        yield f"Weights of the non-members do not help: {facts['n_effective']['reason']}."


def placebo_sentence(findings: pl.DataFrame, verdict: str) -> Iterator[str]:
    """Say what the same test finds on the reference model, if that is ``as_many``, or ``fewer``."""
    level, facts = _facts(findings, "placebo")
    reason = facts.get("n_reported", {}).get("reason")
    if reason is not None and verdict == "fewer":
        yield f"The same test was not made on the reference model: {reason}."
    main = facts.get("collection" if level == "collection" else "n_reported")
    if main is None or main["verdict"] != verdict:
        return
    smallest = facts["smallest_q"]["value"] if "smallest_q" in facts else None
    least = "" if smallest is None else f" (smallest q {smallest:.2g})"
    p = facts["collection"]["p_value"]
    if level != "collection":
        what = f"reports {main['value']:,.0f} of {facts['n_tests']['value']:,.0f} {level}s{least}"
    else:
        what = "has no p-value" if p is None else f"has p = {p:.3g} for all groups together"
    if verdict == "as_many":
        yield (
            f"The same test on the reference model {what}: what is found on the audited model is "
            "no evidence of its memory."
        )
    else:
        yield f"The same test on the reference model (which cannot know these texts) {what}."


def unlabelled_sentences(
    verdicts: pl.LazyFrame, findings: pl.DataFrame, plan: VerdictPlan
) -> Iterator[str]:
    """Say what p-values and estimates show of the attack that the answer rests on."""
    own = verdicts.filter(attack=plan.primary)
    given = [*_reported(findings, plan)]
    whole = own.filter(level="collection").collect()
    tests, rates = (whole.filter(pl.col("estimate").is_null() == test) for test in (True, False))
    given += _of_all(tests.filter(versus="non_members"), plan, "All groups together")
    yield from given
    compared = own.filter(versus="non_members").select((pl.col("n_null") > 0).any())
    if given and compared.collect(engine="streaming").item():
        yield f"The null: {plan.null_set.rstrip('.')}."
    yield from _of_all(tests.filter(versus="controls"), plan, "All canaries")
    for row in rates.iter_rows(named=True):
        yield from _contamination(row)


def _of_all(rows: pl.DataFrame, plan: VerdictPlan, what: str) -> Iterator[str]:
    """Give the answer about a whole collection, or say why there is none if it was asked for."""
    asked = plan.level == "collection" or what == "All canaries"
    later = "" if asked else f"; exploratory, the plan is about each {plan.level}"
    for row in rows.iter_rows(named=True):
        if row["p_value"] is not None:
            yield f"{what}, by {row['attack']}: p = {row['p_value']:.3g} ({row['method']}{later})."
        elif asked:
            yield f"{what}, by {row['attack']}: no p-value ({row['reason']})."


def _reported(findings: pl.DataFrame, plan: VerdictPlan) -> Iterator[str]:
    """Say what is reported at the planned level."""
    level, rows = _facts(findings, "reported")
    if not rows:
        return
    facts = {statistic: row["value"] for statistic, row in rows.items()}
    q, kind = facts["q"], f"{level}s"
    how = (
        f"{plan.primary}, {_ADJUSTMENTS[rows['q']['verdict']]}, against {facts['n_null']:,.0f} "
        "independent units outside the training data"
    )
    if facts["n_reported"]:
        yield (
            f"{facts['n_reported']:,.0f} of {facts['n_tests']:,.0f} {kind} are reported at q = "
            f"{q:g} ({how}): lists made like this are on average at most {100 * q:g} % false."
        )
    else:
        smallest = facts["smallest_q"]
        least = "" if smallest is None else f"; the smallest q is {smallest:.2g}"
        yield (
            f"None of {facts['n_tests']:,.0f} {kind} is reported at q = {q:g} ({how}){least}. "
            "That is no evidence of absence."
        )
    if lost := facts["n_without_p"]:
        reason = rows["n_without_p"]["reason"]
        yield f"Without a p-value: {lost:,.0f} {kind} (mostly: {reason})."
    if alone := facts["n_without_null"]:
        yield f"Nothing to compare with, so never reported: {alone:,.0f} {kind}."


def _contamination(row: dict[str, Any]) -> Iterator[str]:
    limits = f"at {100 * row['confidence']:g} % confidence"
    if row["value"] is not None:
        yield (
            f"Share of members among the targets: {row['value']:.0%}, "
            f"{100 * row['confidence']:g} % interval {row['low']:.0%} to {row['high']:.0%} "
            f"({row['assumption']})."
        )
    elif row["low"]:
        yield (
            f"Share of members among the targets: at least {row['low']:.0%} {limits} "
            f"({row['assumption']})."
        )


def _facts(findings: pl.DataFrame, check: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Find the subject of a check that has one, and its rows by statistic."""
    rows = findings.filter(check=check).rows(named=True)
    return (rows[0]["subject"] if rows else ""), {row["statistic"]: row for row in rows}
