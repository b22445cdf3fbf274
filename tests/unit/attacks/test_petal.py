"""PETAL and other attacks on both tables, by hand and against a reference implementation."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.attacks import find_unscored, get, score
from tests import frames, logprob_rows

FLOOR = 1e-16
# Tenths: points that differ, but by next to nothing, give a line that no two programs agree on.
SIMILARITIES = st.integers(-10, 10).map(lambda tenths: tenths / 10)
LOGPROBS = st.floats(-20, 0, width=32)  # as tables hold them
POINTS = st.lists(st.tuples(SIMILARITIES, SIMILARITIES, LOGPROBS), min_size=2, max_size=6)


def answer(index: int, model: str, **numbers: Any) -> dict[str, Any]:
    place = {"target_id": frames.target_id(0), "sample_index": 0, "view_index": index}
    return {**place, "view": "probe", "model": model, "words_reference": 1, **numbers}


def scored(
    answers: list[dict[str, Any]], of_tokens: list[dict[str, Any]], name: str
) -> float | None:
    features = frames.features(*answers).with_columns(
        pl.Series(column, [float(row.get(column, 0)) for row in answers])
        for column in ("similarity", "rarity_leading")
    )
    rows = [{"target_id": frames.target_id(0), **row} for row in of_tokens]
    table = logprob_rows.table(rows).with_columns(pl.col("target_id").cast(pl.String))
    targets = frames.targets({}).lazy()
    frame = pl.concat(score(features.lazy(), targets, [get(name)], logprobs=table.lazy()))
    found: float | None = frame[name].item()
    return found


def petal(points: list[tuple[float, float, float]]) -> float:
    """As the authors' code computes it: log similarities and a line by least squares."""
    own, surrogate = ([log(max(point[side], FLOOR)) for point in points] for side in (0, 1))
    truth = [point[2] for point in points]
    if np.ptp(surrogate) == 0:
        return float(np.mean(truth))
    slope, intercept = np.polyfit(surrogate, truth, 1)
    return float(np.mean([slope * value + intercept for value in own]))


def of_points(points: list[tuple[float, float, float]], name: str = "petal_v1") -> float | None:
    answers = [
        answer(index, model, similarity=point[side])
        for side, model in enumerate(("target", "reference"))
        for index, point in enumerate(points)
    ]
    of_tokens = [
        {"model": "reference", "view": "probe", "view_index": index, "logprob": [point[2], -1.0]}
        for index, point in enumerate(points)
    ]
    return scored(answers, of_tokens, name)


def test_by_hand():
    """The surrogate's points lie on the line 2 ln(similarity) - 1."""
    points = [(0.5, 1.0, -1.0), (0.25, 0.5, 2 * log(0.5) - 1)]
    assert of_points(points) == pytest.approx(2 * (log(0.5) + log(0.25)) / 2 - 1)
    assert of_points(points, "petal_similarity_v1") == pytest.approx((log(0.5) + log(0.25)) / 2)


@given(POINTS)
def test_it_is_the_line_of_least_squares(points):
    assert of_points(points) == pytest.approx(petal(points), rel=1e-6, abs=1e-6)


def test_points_without_a_log_probability_are_not_fitted():
    points = [(0.5, 1.0, -1.0), (0.25, 0.5, -3.0), (0.1, 0.2, -9.0)]
    answers = [
        answer(index, model, similarity=point[side])
        for side, model in enumerate(("target", "reference"))
        for index, point in enumerate(points)
    ]
    of_tokens = [
        {"model": "reference", "view": "probe", "view_index": index, "logprob": [point[2]]}
        for index, point in enumerate(points[:2])
    ]
    slope = (-1.0 - -3.0) / (0 - log(0.5))
    wanted = -1 + slope * np.mean([log(point[0]) for point in points])
    assert scored(answers, of_tokens, "petal_v1") == pytest.approx(wanted)


def test_hits_and_loss_add_up_by_hand():
    answers = [answer(0, "target", rarity_leading=2.0), answer(1, "target", rarity_leading=0.0)]
    answers += [answer(0, "reference", rarity_leading=50.0)]
    of_tokens = [{"view": "text", "logprob": [None, -1.0, -3.0]}]
    assert scored(answers, of_tokens, "probe_rarity_loss_v1") == 2 / 2 - 4 / 2


def test_what_is_missing_in_either_table_is_said():
    name = "probe_rarity_loss_v1"
    targets = frames.targets({}, {}, {})
    samples = frames.samples(["a"], [{"reason": "no answer"}], ["a"])
    samples = samples.with_columns(view=pl.lit("probe"))
    tokens = logprob_rows.table(
        {"target_id": frames.target_id(number), "view": "text", "reason": reason}
        for number, reason in enumerate(["no tokens", None, None])
    )
    scores = targets.select("target_id", n_samples=pl.lit(1)).with_columns(
        pl.lit(None, pl.Float64).alias(name)
    )
    found = find_unscored(
        scores.lazy(), samples.lazy(), targets.lazy(), [get(name)], logprobs=tokens.lazy()
    ).collect()
    assert found["reason"].to_list() == ["no tokens", "no answer", get(name).undefined]
