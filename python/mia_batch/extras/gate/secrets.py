"""What the gate asks of `mia-batch secrets`, and of a training with canaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from mia_batch.extras.gate.conditions import Condition, withhold
from mia_batch.extras.secrets.results import LEVEL, count_needed

__all__ = ["judge_secrets"]


def judge_secrets(table: pl.DataFrame, limit: float) -> Condition:
    """Judge how many secrets of the worst model are memorised or given back."""
    name = "secrets-below"
    # A small p-value of a word is no error rate, but no pass either
    is_found = pl.col("verdict").is_in(["memorised", "given back"]) | (
        (pl.col("verdict") == "exploratory") & (pl.col("p_value") <= LEVEL)
    )
    worst = table.group_by("model", maintain_order=True).agg(
        n_found=is_found.sum(),
        n_secrets=pl.len(),
        n_none=(pl.col("verdict") == "none").sum(),
        n_levels=(
            pl.col("p_value").is_not_null() & pl.col("exploratory").is_null()
        ).sum(),
        n_controls=pl.col("n_controls").max(),
    )
    row = worst.sort("n_found", descending=True, maintain_order=True).row(0, named=True)
    judged: dict[str, Any] = {
        "condition": name,
        "threshold": limit,
        "value": float(row["n_found"]),
        "subject": f"{row['n_secrets']:,} secrets asked of {row['model']}",
    }
    if row["n_found"] >= limit:
        return Condition(**judged, outcome="fail")
    for model in worst.iter_rows(named=True):
        reason = _why_secrets_untested(model)
        if reason is not None:
            return withhold(name, limit, f"of {model['model']} {reason}")
    n_needed = count_needed(row["n_levels"], row["n_controls"])
    return Condition(
        **judged,
        outcome="pass",
        power=(
            f"a secret can be called memorised where {n_needed:,} of {row['n_levels']:,}"
            f" are likelier than all of {row['n_controls']:,} controls; how often a"
            " learnt one is, is unknown"
        ),
    )


def _why_secrets_untested(row: Mapping[str, Any]) -> str | None:
    if row["n_none"]:
        return f"{row['n_none']:,} secrets have neither a p-value nor an answer"
    if not row["n_levels"]:
        return "no secret has a p-value that is an error rate"
    if count_needed(row["n_levels"], row["n_controls"]) > row["n_levels"]:
        return (
            f"no secret could be called memorised with {row['n_controls']:,} controls;"
            " give more (--controls)"
        )
    return None
