"""Small tables of scores with roles, for tests of verdicts."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from mia_batch.inference.findings import DecisionRule
from mia_batch.schemas import Role

TYPES: dict[str, pl.DataType | type[pl.DataType]] = {
    "target_id": pl.String,
    "role": Role,
    "document_id": pl.String,
    "group": pl.String,
    "member": pl.Boolean,
    "window_index": pl.UInt32,
    "n_words": pl.UInt32,
    "a_v1": pl.Float64,
}


def rows(
    role: str, scores: Iterable[float | None], **columns: Any
) -> list[dict[str, Any]]:
    return [
        {"role": role, "a_v1": score, "n_words": 100, "window_index": 0} | columns
        for score in scores
    ]


def table(*parts: list[dict[str, Any]]) -> pl.DataFrame:
    """One row per score, named by its index: t0, t1, ..."""
    every = [row for part in parts for row in part]
    blank = dict.fromkeys(TYPES)
    return pl.DataFrame(
        [blank | {"target_id": f"t{index}"} | row for index, row in enumerate(every)],
        schema=TYPES,
    )


def plan(**changes: Any) -> DecisionRule:
    return DecisionRule(
        **{"primary": "a_v1", "level": "target", "null_set": "known"} | changes
    )
