"""Small tables of log-probabilities for tests, and their scores by the second implementation."""

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from mia_batch import second
from mia_batch.attacks import families, get
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

_TUNED = (
    *("SPV-MIA", "SPV-MIA without a reference model", "Tuned reference models"),
    *("Base models, token by token", "Shadow models: LiRA and RMIA"),
)
TUNED = [attack.name for name in _TUNED for attack in families()[name]]
"""Attacks on tuned models."""


def table(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of the logprobs table; what a row leaves out is null."""
    usual = dict.fromkeys(SCHEMA) | {
        "target_id": "t",
        "model": "target",
        "view_index": 0,
    }
    return pl.DataFrame([usual | dict(row) for row in rows], schema=SCHEMA)


def raw_scores(
    frame: pl.DataFrame, names: Iterable[str], **options: Any
) -> pl.DataFrame:
    """Values of the expressions, one row per target, as they come."""
    names = [*names]
    rows = with_series(frame.lazy(), map(get, names))
    grouped = rows.group_by("target_id", maintain_order=True)
    found: pl.DataFrame = grouped.agg(
        **{name: get(name).expr for name in names}
    ).collect(**options)
    return found


def scores(frame: pl.DataFrame, names: Iterable[str]) -> list[dict[str, float | None]]:
    """Scores as a run has them: a value that is no finite number is null."""
    value = pl.exclude("target_id").cast(pl.Float64)
    found = raw_scores(frame, names).with_columns(
        pl.when(value.is_finite()).then(value)
    )
    return found.drop("target_id").to_dicts()


class _Run(second.RunFiles):
    """What the second implementation reads of a run: these rows alone, of one text."""

    def __init__(self, rows: list[dict[str, Any]], text: str) -> None:
        self.rows, self.text = rows, text

    def read(self, table: str, *columns: str, **equal: str) -> list[dict[str, Any]]:
        assert (table, columns) == ("targets", ())
        return [{"target": self.text}]

    def evidence(self, table: str, **equal: str) -> list[dict[str, Any]]:
        assert table == "logprobs"
        return [row for row in self.rows if row["view"] == equal["view"]]


def second_scores(
    rows: list[dict[str, Any]], names: Iterable[str], text: str = ""
) -> dict[str, float | None]:
    """Scores of one text by the second implementation."""
    read = second.AuditedText(_Run(rows, text), "t")
    return {name: second.compute_value(read, name) for name in names}
