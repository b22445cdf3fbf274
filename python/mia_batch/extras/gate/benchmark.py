"""What the gate asks of `mia-batch benchmark`."""

from __future__ import annotations

import polars as pl

from mia_batch.extras.gate.conditions import Condition, judge_p_values

__all__ = ["judge_benchmark"]


def judge_benchmark(table: pl.DataFrame, limit: float) -> Condition:
    """Judge the p-values of tests of a benchmark, adjusted where they are a level."""
    subject = pl.format("{}, {} of {}", "model", "test", "set")
    rows = table.with_columns(subject=subject, p=pl.coalesce("p_adjusted", "p_value"))
    return judge_p_values(limit, rows, "p", "the table has no tests")
