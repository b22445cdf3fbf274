"""What the gate asks of a finished audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.extras.gate.conditions import (
    Condition,
    Judges,
    judge_areas,
    judge_p_values,
    withhold,
)
from mia_batch.inference.conformal import Adjustment
from mia_batch.inference.findings import (
    gate_verdict,
    is_closed,
    why_not_continued,
    why_withheld,
)
from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.inference.power import Power, compute_power
from mia_batch.pipeline import Run
from mia_batch.pipeline.custody import refuse_changed
from mia_batch.pipeline.results import check_finished, load_results
from mia_batch.report.sentences import (
    RunResults,
    find_rows,
    find_top_bound,
    find_values,
)

__all__ = [
    "judge_auc",
    "judge_collection",
    "judge_named",
    "judge_words",
    "open_audit",
    "why_worthless",
]


def open_audit(folder: Path) -> tuple[Judges, str]:
    """Open a run that is whole and unchanged: what can be asked of it, and its root."""
    run = Run(folder)
    manifest = check_finished(run, sealed=True)
    refuse_changed(run)
    results = load_results(run)
    attacks = manifest.made["scores"]["attacks"]
    judges: Judges = {
        "auc-below": lambda limit: judge_auc(results, attacks, limit),
        "words-below": lambda limit: judge_words(results, limit),
        "stands-out": lambda limit: judge_named(results, limit),
        "p-above": lambda limit: judge_collection(results, limit),
    }
    worthless = why_worthless(results)
    if worthless is not None:
        judges = {name: partial(withhold, name, reason=worthless) for name in judges}
    return judges, manifest.custody["root"]


def why_worthless(run: RunResults) -> str | None:
    """Explain why no number of an audit says anything; None where they do."""
    reason = why_not_continued(run.findings)
    if reason is not None:
        return reason
    chance = run.findings.filter(check="chance", subject="target", verdict="no_better")
    if chance.height:
        return (
            "the model predicts the texts no better than chance: it is broken, or not"
            " read as it is meant to be"
        )
    return None


def judge_auc(run: RunResults, attacks: Iterable[str], limit: float) -> Condition:
    """Judge the AUC of every attack of an audit."""
    name = "auc-below"
    rows = run.metrics.filter(
        pl.col("attack").is_in([*attacks]),
        pl.col("versus").is_null(),
        metric="roc_auc",
        slice="all",
    )
    if rows.is_empty():
        return withhold(
            name, limit, "the run knows no members and non-members, and has no AUC"
        )
    blind = find_rows(run.findings, "blind_baseline", subject="members")
    if blind and blind["roc_auc"]["verdict"] == "separable":
        return withhold(
            name,
            limit,
            "a classifier that never sees the model tells members from non-members, so"
            " that no AUC is about memory",
        )
    primary = rows.filter(attack=run.rule.primary)["high"].drop_nulls()
    if len(primary) and primary[0] < 0.5:
        return withhold(
            name,
            limit,
            f"{run.rule.primary} points the other way: members score lower than"
            " non-members; are the labels swapped?",
        )
    return judge_areas(name, limit, rows)


def judge_words(run: RunResults, limit: float) -> Condition:
    """Judge the longest passage that came out word for word, as the report counts it."""
    name = "words-below"
    if limit < VERBATIM_WORDS:
        raise SettingsError(
            f"--words-below is {limit:g}, but passages count from {VERBATIM_WORDS} words"
            f" on; give {VERBATIM_WORDS} or more"
        )
    counts = find_values(run.findings, "verbatim", subject="targets")
    n_asked = counts.get("n_texts") or 0
    if not n_asked and not counts.get("n_walked"):
        return withhold(
            name, limit, "the model was not asked to go on with the audited texts"
        )
    rows = run.findings.filter(check="verbatim", statistic="longest")
    value, subject = 0.0, f"{n_asked:,.0f} texts"
    reason: str | None = f"no passage of {VERBATIM_WORDS} words came out"
    if rows.height:
        value, subject, reason = rows["value"][0], rows["subject"][0], None
    return Condition(
        condition=name,
        threshold=limit,
        outcome="pass" if value < limit else "fail",
        value=value,
        subject=subject,
        reason=reason,
    )


def judge_named(run: RunResults, limit: float) -> Condition:
    """Judge how many texts, documents or groups stand out: named ones, or a lower bound."""
    name = "stands-out"
    if is_closed(run.findings):
        reason = why_withheld(run.findings) or "the comparison is withheld"
        return withhold(name, limit, reason)
    reported = find_rows(run.findings, "reported")
    if not reported or reported["n_reported"]["value"] is None:
        return withhold(
            name,
            limit,
            "there are no texts to compare with, so that none can stand out",
        )
    value = {key: row["value"] for key, row in reported.items()}
    noun = str(reported["n_tests"]["subject"]).replace("target", "text")
    judged: dict[str, Any] = {
        "condition": name,
        "threshold": limit,
        "value": value["n_reported"],
        "subject": f"{value['n_tests']:,.0f} {noun}s",
    }
    if value["n_reported"] > limit:
        return Condition(**judged, outcome="fail")
    bound = find_top_bound(run.findings)
    if bound is not None and bound.n_members > limit:
        level = bound.level.replace("target", "text")
        judged |= {
            "value": float(bound.n_members),
            "subject": f"the {bound.n_highest:,} highest-scoring {level}s",
        }
        return Condition(
            **judged,
            outcome="fail",
            reason=f"so many at least, with {100 * bound.confidence:g} % confidence",
        )
    power = compute_power(
        int(value["n_tests"]),
        value["n_null"] or 0,
        value["q"],
        cast("Adjustment", reported["q"]["verdict"]),
    )
    why_none = _why_none_named(run, value, noun, power)
    if why_none is not None:
        return withhold(name, limit, why_none)
    return Condition(
        **judged,
        outcome="pass",
        power=(
            f"with {power.n_null:,.0f} {noun}s to compare with, {power.needed:,} of"
            f" {power.n_tests:,} have to score above all of them so that any is named;"
            " how often a learnt one does is unknown"
        ),
    )


def _why_none_named(
    run: RunResults, reported: Mapping[str, Any], noun: str, power: Power
) -> str | None:
    """Explain why a count of 0 says nothing; None where it says something."""
    n_untested = (reported["n_without_p"] or 0) + (reported["n_without_null"] or 0)
    if n_untested:
        return (
            f"{n_untested:,.0f} of {reported['n_tests']:,.0f} {noun}s have no p-value"
        )
    if not reported["n_null"] or not reported["n_tests"]:
        return f"there are no {noun}s to compare with"
    if power.needed is None:
        return (
            f"with {reported['n_null']:,.0f} {noun}s to compare with, none of"
            f" {reported['n_tests']:,.0f} could be named, whatever the scores; give more"
            " (--non-members)"
        )
    if gate_verdict(run.findings) == "exploratory":
        return "the comparison is exploratory, as the report says"
    return None


def judge_collection(run: RunResults, limit: float) -> Condition:
    """Judge the p-value of all audited texts together, or of canaries."""
    rows = run.verdicts.lazy().filter(
        pl.col("planned"), pl.col("estimate").is_null(), level="collection"
    )
    if is_closed(run.findings):
        reason = why_withheld(run.findings) or "the comparison is withheld"
        return withhold("p-above", limit, reason)
    table = rows.rename({"attack": "subject"}).collect()
    return judge_p_values(limit, table, "p_value", "there is no planned p-value of all")
