"""Sentences about all attacks or all texts together, from rows of findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["set_sentences"]


def set_sentences(findings: pl.DataFrame) -> Iterator[str]:
    """Say what the combination was learned from, and what dataset inference and CoDeC show."""
    yield from _combination(findings.filter(check="combination"))
    yield from _dataset_inference(
        findings.filter(pl.col("subject").is_null(), check="dataset_inference")
    )
    yield from _codec(findings.filter(check="codec"))


def _codec(rows: pl.DataFrame) -> Iterator[str]:
    shares = [
        f"{row['value']:.0%} of the {row['subject']} "
        + (
            f"(no interval: {row['reason']})"
            if row["low"] is None
            else f"({row['low']:.0%} to {row['high']:.0%})"
        )
        for row in rows.drop_nulls("value").iter_rows(named=True)
    ]
    if shares:
        yield (
            f"Less likely after the shots than alone (CoDeC): {' and '.join(shares)}, 95 % "
            "intervals. Only a difference of the two may come from training."
        )


def _combination(rows: pl.DataFrame) -> Iterator[str]:
    if rows.is_empty():
        return
    n = dict(rows.select("statistic", "value").iter_rows())
    verdict = rows["verdict"][0]
    if verdict == "too_few":
        yield (
            "combination_v1 has no scores: there are texts of fewer than 10 groups of each class "
            "to learn from."
        )
        return
    of = "calibration" if verdict == "calibration" else "known"
    others = "calibration non-members" if verdict == "calibration" else "other texts"
    yield (
        f"combination_v1 was learned from {n['n_members']:,.0f} {of} members and "
        f"{n['n_others']:,.0f} {others}, for each text from those of other groups alone."
    )


def _dataset_inference(rows: pl.DataFrame) -> Iterator[str]:
    if rows.is_empty():
        return
    facts = {row["statistic"]: row for row in rows.iter_rows(named=True)}
    what, found = "All attacks together (dataset inference", facts["permutation"]
    if found["p_value"] is None:
        yield f"{what}): no p-value ({found['reason']})."
        return
    n = {name: facts[name]["value"] for name in ("n_learned", "n_targets", "n_null")}
    yield (
        f"{what}, learned on {n['n_learned']:,.0f} groups, tested on {n['n_targets']:,.0f} others "
        f"against {n['n_null']:,.0f} outside the training data): p = {found['p_value']:.3g}, "
        "exploratory; by the paper's own form, which takes texts of a group for independent, "
        f"p = {facts['paper']['p_value']:.3g}. Both suppose that the sets differ in nothing but "
        "training."
    )
