"""Sentences about the yardstick, from rows of findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.inference.plan import VerdictPlan

__all__ = ["absence_sentences", "yardstick_sentences"]


def yardstick_sentences(findings: pl.DataFrame, plan: VerdictPlan) -> Iterator[str]:
    """Say what came out, and what scored high, of the passages of each level."""
    rows = findings.filter(check="yardstick")
    if back := _counts(rows, "n_given_back", "n_continued"):
        yield (
            "Passages of the yardstick that the model gives back under these settings (20 words in "
            f"a row, or all that follow): {back}."
        )
    if above := _counts(rows, "n_above", "n_scored"):
        yield (
            f"Passages of the yardstick that score above {1 - plan.fpr:.0%} of the texts outside "
            f"the training data ({plan.primary}): {above}."
        )


def absence_sentences(findings: pl.DataFrame, plan: VerdictPlan) -> Iterator[str]:
    """Say with which probability one text or group more would have been named."""
    rows = findings.filter(check="absence")
    what = "text" if plan.level == "target" else "group"
    if found := [
        f"{row['subject']}: {row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        for row in rows.drop_nulls("value").iter_rows(named=True)
    ]:
        yield (
            f"Had one more {what} been learnt as well as the passages of a level of the yardstick, "
            f"this audit would have reported it with probability (95 % interval): "
            f"{'; '.join(found)}. That holds if the passages of a level are alike, and like the "
            "audited texts but for what was learnt."
        )
    for row in rows.filter(pl.col("value").is_null()).iter_rows(named=True):
        yield (
            f"How likely a {what} learnt as well as {row['subject']} is to be reported is unknown: "
            f"{row['reason']}."
        )


def _counts(rows: pl.DataFrame, hits: str, of: str) -> str:
    """List what was counted at each level; empty where nothing was."""
    found = rows.filter(statistic=hits).select("subject", hits="value")
    both = found.join(rows.filter(statistic=of), on="subject", maintain_order="left")
    each = both.select("subject", "hits", "value").iter_rows()
    return "; ".join(f"{level}: {n:,.0f} of {total:,.0f}" for level, n, total in each)
