"""Answers to which row comes next, whoever asked: how many name each of the four."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import polars as pl

from mia_batch.extras.benchmark.exact import compare_published
from mia_batch.extras.benchmark.results import explain_missing, pivot
from mia_batch.prompts import LABELS, read_choice

__all__ = ["compute_p_value", "count_right", "score_answers"]

_UNREAD = "no answer names one of the four rows"
_ANSWERS: dict[str, pl.DataType] = {
    "unit": pl.UInt32(),
    "candidates": pl.List(pl.UInt8),
    "candidate": pl.String(),
    "reason": pl.String(),
}


def score_answers(answers: pl.DataFrame) -> pl.DataFrame:
    """Count how many answers about each place name each candidate.

    ``answers`` has a row a question: ``unit``, ``candidates`` (which one each letter
    shows), ``candidate`` (the answer) and ``reason`` (why there is none). Returns
    ``unit``, ``alternative``, ``score`` and ``reason``: null and why where no answer
    about the place could be read. Which answers are read depends on what was shown
    alone, not on which of the four was published.
    """
    label = read_choice(pl.col("candidate")).struct.field("choice")
    candidate = pl.col("candidates").list.get(label, null_on_oob=True)
    questions = answers.with_columns(named=candidate)
    numbers = range(len(LABELS))
    counts = [
        (pl.col("named") == number).sum().alias(f"{number}") for number in numbers
    ]
    places = questions.group_by("unit", maintain_order=True).agg(
        *counts,
        n_read=pl.col("named").count(),
        reason=pl.col("reason").drop_nulls().first(),
    )
    rows = places.with_columns(
        alternative=pl.lit([*numbers], pl.List(pl.UInt32)),
        score=pl.concat_list(map(str, numbers)).cast(pl.List(pl.Float64)),
    ).explode("alternative", "score")
    has_answer = pl.col("n_read") > 0
    reason = pl.coalesce("reason", pl.lit(_UNREAD))
    return rows.select(
        "unit",
        "alternative",
        score=pl.when(has_answer).then("score"),
        reason=pl.when(~has_answer).then(reason),
    )


def compute_p_value(answers: Sequence[Mapping[str, Any]], seed: int) -> float:
    """Compute the p-value of answers that another program has; NaN where there is none.

    Each has ``unit``, ``candidates`` and ``candidate``, its text.
    """
    rows = [{name: answer.get(name) for name in _ANSWERS} for answer in answers]
    scores = score_answers(pl.DataFrame(rows, _ANSWERS))
    matrix, n_unscored = pivot(scores)
    comparison = compare_published(matrix, seed)
    n_places = len(matrix) + n_unscored
    if explain_missing("place", n_places, scores, comparison) is not None:
        return nan
    return nan if comparison is None else comparison.p_value


def count_right(answer: Mapping[str, Any]) -> float:
    """Return 1 where an answer names the published next row, else 0."""
    row = {name: answer.get(name) for name in _ANSWERS}
    score = score_answers(pl.DataFrame([row], _ANSWERS))["score"][0]
    return float(score or 0)
