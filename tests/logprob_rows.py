"""Small tables of log-probabilities for tests."""

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from mia_batch.attacks import get
from mia_batch.attacks.from_logprobs import with_series
from mia_batch.schemas import LogProbs

_FLOATS = (
    "logprob",
    "vocabulary_mean",
    "vocabulary_variance",
    "top_logprob",
    "support_mass",
    "log_inverse_frequency",
)

LISTS = ("token_ids", *_FLOATS, "rank")

SCHEMA = LogProbs.create_empty().schema


def table(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of the logprobs table; what a row leaves out is null."""
    usual = dict.fromkeys(SCHEMA) | {"target_id": "t", "model": "target", "view_index": 0}
    return pl.DataFrame([usual | dict(row) for row in rows], schema=SCHEMA)


def raw_scores(frame: pl.DataFrame, names: Iterable[str], **options: Any) -> pl.DataFrame:
    """Values of the expressions, one row per target, as they come."""
    names = [*names]
    rows = with_series(frame.lazy(), map(get, names))
    grouped = rows.group_by("target_id", maintain_order=True)
    found: pl.DataFrame = grouped.agg(**{name: get(name).expr for name in names}).collect(**options)
    return found


def scores(frame: pl.DataFrame, names: Iterable[str]) -> list[dict[str, float | None]]:
    """Scores as a run has them: a value that is no finite number is null."""
    value = pl.exclude("target_id").cast(pl.Float64)
    found = raw_scores(frame, names).with_columns(pl.when(value.is_finite()).then(value))
    return found.drop("target_id").to_dicts()
