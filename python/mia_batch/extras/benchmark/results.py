"""What the tests of a benchmark came to: a table of models and tests, and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from mia_batch.extras.benchmark.exact import Comparison, compare_published
from mia_batch.extras.benchmark.orders import N_CANDIDATES, Units
from mia_batch.extras.benchmark.sets import Benchmark
from mia_batch.schemas import BenchmarkTests
from mia_batch.stats import Floats
from mia_batch.stats.intervals import holm

__all__ = [
    "LEVEL",
    "build_row",
    "build_table",
    "conclusions",
    "explain_missing",
    "pivot",
]

LEVEL = 0.01
"""Error rate of all tests of a table together, by Holm."""


def build_row(
    model: str, benchmark: Benchmark, units: Units, scores: pl.DataFrame, seed: int
) -> dict[str, Any]:
    """Build the row of a model and a test; without a p-value it has the reason."""
    matrix, n_unscored = pivot(scores)
    row: dict[str, Any] = {
        "set": benchmark.record.name,
        "model": model,
        "test": units.test,
        "n_units": matrix.shape[0],
        "n_unscored": n_unscored,
        "exploratory": units.why_exploratory,
        "order_sha256": benchmark.order_sha256,
        "rows_sha256": benchmark.rows_sha256,
    }
    comparison = compare_published(matrix, seed) if matrix.shape[0] else None
    reason = explain_missing(units.noun, units.n_units, scores, comparison)
    if reason is not None or comparison is None:
        return row | {"reason": reason}
    return row | {
        "n_first": comparison.n_first,
        "difference": comparison.statistic,
        "smallest_p": comparison.smallest,
        "p_value": comparison.p_value,
    }


def pivot(scores: pl.DataFrame) -> tuple[Floats, int]:
    """Lay scores out, a row a unit, the published one first; leave out units that lack one."""
    n_alternatives = scores.group_by("unit", maintain_order=True).agg(
        scores="score", is_whole=pl.col("score").is_not_null().all()
    )
    whole = n_alternatives.filter("is_whole")["scores"].to_list()
    width = max(map(len, whole), default=0)
    matrix = np.full((len(whole), width), np.nan)
    for number, values in enumerate(whole):
        matrix[number, : len(values)] = values
    return matrix, n_alternatives.height - len(whole)


def explain_missing(
    noun: str, n_units: int, scores: pl.DataFrame, comparison: Comparison | None
) -> str | None:
    """Explain why there is no p-value; None where there is one."""
    reasons = scores["reason"].drop_nulls()
    if comparison is None:
        cause = reasons.value_counts(sort=True)["reason"][0] if len(reasons) else ""
        return f"no {noun} could be compared: {cause or 'none has alternatives'}"
    if 2 * comparison.n_units < n_units:
        cause = reasons.value_counts(sort=True)["reason"][0] if len(reasons) else ""
        return (
            f"only {comparison.n_units:,} of {n_units:,} {noun}s could be"
            f" compared: {cause}"
        )
    if comparison.smallest > LEVEL:
        return (
            f"{comparison.n_units:,} {noun}s allow no p-value below"
            f" {comparison.smallest:.2g}"
        )
    return None


def build_table(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Build the table, with Holm's adjustment over all p-values that are a level."""
    table = pl.DataFrame([*rows], schema_overrides=_SCHEMA)
    columns = [
        pl.col(name) if name in table.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in _SCHEMA.items()
        if name not in ("p_adjusted", "verdict")
    ]
    table = table.select(columns)
    is_level = pl.col("p_value").is_not_null() & pl.col("exploratory").is_null()
    flags = table.select(is_level).to_series()
    p_values = table["p_value"].filter(flags).to_numpy().astype(np.float64)
    adjusted = np.full(table.height, np.nan)
    adjusted[flags.to_numpy()] = holm(p_values)
    return (
        table.with_columns(
            p_adjusted=pl.Series(adjusted, dtype=pl.Float64).fill_nan(None)
        )
        .with_columns(verdict=_JUDGE.cast(_SCHEMA["verdict"]))
        .select(*_SCHEMA)
    )


_SCHEMA = BenchmarkTests.create_empty().schema
_JUDGE = (
    pl.when(pl.col("reason").is_not_null())
    .then(pl.lit("none"))
    .when(pl.col("exploratory").is_not_null())
    .then(pl.lit("exploratory"))
    .when(pl.col("p_adjusted") <= LEVEL)
    .then(pl.lit("seen"))
    .otherwise(pl.lit("not shown"))
)

_SHOWN = {
    "rows": (
        "the published order of rows is likelier than shuffled ones by {:.2f} nats a"
        " shard"
    ),
    "options": (
        "the published order of options is likelier than others by {:.2f} nats a row"
    ),
    "rewritten": "published numbers are likelier than others by {:.2f} nats a question",
    "next-row": "the next row is chosen for {:.0%} of answers more than the others",
}
_NAMES = {
    "rows": "the order of rows",
    "options": "the order of options",
    "rewritten": "the numbers",
    "next-row": "which row is next",
}


def conclusions(table: pl.DataFrame) -> Iterator[str]:
    """Iterate over what may be said of each model and test."""
    for row in table.iter_rows(named=True):
        subject = f"{row['model']}, {_NAMES[row['test']]} of {row['set']}"
        if row["verdict"] == "none":
            yield f"{subject}: no p-value, for {row['reason']}."
            continue
        p_value = f"p = {row['p_value']:.2g}"
        if row["p_adjusted"] is not None:
            p_value += f", {row['p_adjusted']:.2g} of all tests together"
        figure = row["difference"]
        if row["test"] == "next-row":
            figure /= N_CANDIDATES
        figures = f"{_SHOWN[row['test']].format(figure)} ({p_value})"
        if row["verdict"] == "exploratory":
            yield f"{subject}: exploratory, {figures}; {row['exploratory']}."
        elif row["verdict"] == "seen":
            yield (
                f"{subject}: {figures}. The model has seen it, unless something else"
                " makes the published order the likelier one."
            )
        else:
            yield (
                f"{subject}: nothing shows that the model has seen it ({p_value}); that"
                " does not show that it has not."
            )
