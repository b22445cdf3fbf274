"""A condition of the gate, and what the conditions of all folders share.

A pass needs a number with its whole interval on the right side. A number that is
withheld, absent or without an interval is no pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
import polars.selectors as cs

__all__ = [
    "INTERVAL",
    "Condition",
    "Judges",
    "Outcome",
    "judge_areas",
    "judge_p_values",
    "leave_finite",
    "withhold",
]

Outcome = Literal["pass", "fail", "withheld"]
INTERVAL = "the upper end of its 95 % interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition, and what a run says about it.

    Attributes
    ----------
    condition
        Its name, as the option is called.
    threshold
        What the option gives.
    outcome
        ``"pass"``, ``"fail"``, or ``"withheld"``: the run has no number that could say.
    value, low, high
        The number, and its interval where it has one.
    subject
        What it is about, such as the attack of the largest AUC.
    reason
        Why the number is withheld, or what else is to be known of it.
    power
        What the run could have found; ``"unknown"`` where nobody knows.
    """

    condition: str
    threshold: float
    outcome: Outcome
    value: float | None = None
    low: float | None = None
    high: float | None = None
    subject: str | None = None
    reason: str | None = None
    power: str = "unknown"

    def describe(self) -> str:
        """Write it as a sentence."""
        name = f"--{self.condition} {self.threshold:g}"
        subject = f" of {self.subject}" if self.subject else ""
        if self.value is None:
            return f"{name}: withheld, {self.reason}"
        number = f"{self.value:.4g}"
        if self.low is not None and self.high is not None:
            number += f" (95 % interval {self.low:.3g} to {self.high:.3g})"
        text = f"{name}: {self.outcome}, {number}{subject}"
        if self.reason:
            text += f"; {self.reason}"
        if self.outcome == "pass":
            text += f"; power: {self.power}"
        return text


def withhold(name: str, threshold: float, reason: str) -> Condition:
    return Condition(
        condition=name, threshold=threshold, outcome="withheld", reason=reason
    )


Judges = dict[str, Callable[[float], Condition]]
"""What judges a folder by each condition that asks something of it."""


def judge_areas(name: str, limit: float, rows: pl.DataFrame) -> Condition:
    """Judge the largest upper end of AUCs: all of them have to be below the limit."""
    rows = leave_finite(rows)
    unknown = rows.filter(pl.col("value").is_null() | pl.col("high").is_null())
    whole = rows.drop_nulls(["value", "high"])
    if whole.is_empty():
        reason = next(iter(unknown["reason"].drop_nulls()), "there is no AUC")
        return withhold(name, limit, reason)
    highest = whole.sort("high", descending=True, maintain_order=True)
    row = highest.row(0, named=True)
    judged: dict[str, Any] = {
        "condition": name,
        "threshold": limit,
        **{key: row[key] for key in ("value", "low", "high")},
        "subject": row["attack"],
    }
    if row["high"] >= limit:
        reason = None
        if row["value"] < limit:
            reason = f"{INTERVAL} is not below, so that more texts may decide"
        return Condition(**judged, outcome="fail", reason=reason)
    if unknown.height:
        attack, reason = unknown.select("attack", "reason").row(0)
        return withhold(
            name, limit, f"{attack} has no interval ({reason or 'no reason is given'})"
        )
    return Condition(
        **judged,
        outcome="pass",
        power=(
            f"an AUC of {row['high']:.3g} or more of any of {rows.height:,} attacks is"
            " excluded with 97.5 % confidence, of other attacks nothing is known"
        ),
    )


def judge_p_values(
    limit: float, rows: pl.DataFrame, column: str, absent: str
) -> Condition:
    """Judge the smallest of p-values, all of which have to be there."""
    if rows.is_empty():
        return withhold("p-above", limit, absent)
    rows = leave_finite(rows)
    known = rows.drop_nulls(column).sort(column, maintain_order=True)
    fails = known.height > 0 and known[column][0] <= limit
    missing = rows.filter(pl.col(column).is_null())
    if missing.height and not fails:
        subject, reason = missing.select("subject", "reason").row(0)
        return withhold("p-above", limit, f"{subject} has no p-value: {reason}")
    return Condition(
        condition="p-above",
        threshold=limit,
        outcome="fail" if fails else "pass",
        value=known[column][0],
        subject=known["subject"][0],
    )


def leave_finite(table: pl.DataFrame) -> pl.DataFrame:
    """Make null of what is no finite number, which would be below any threshold."""
    is_finite = cs.float().is_finite().fill_null(value=False)
    return table.with_columns(pl.when(is_finite).then(cs.float()))
