from __future__ import annotations

from math import nan
from statistics import stdev

import numpy as np
import polars as pl
import pytest

from mia_batch.inference.conformal import score_errors, standard_errors


def test_standard_errors_by_hand():
    values = np.array([[1, 2, 6], [4, nan, 8], [4, nan, nan], [nan, nan, nan], [2, 2, 2]])
    made = standard_errors(values)
    assert made[:2].tolist() == pytest.approx([stdev([1, 2, 6]) / 3**0.5, stdev([4, 8]) / 2**0.5])
    assert np.isnan(made[2:4]).all()
    assert made[4] == 0


def test_standard_errors_are_those_of_repeated_draws():
    rng = np.random.default_rng(11)
    draws = rng.exponential(size=(4000, 10))
    variance = np.mean(standard_errors(draws) ** 2)
    assert variance == pytest.approx(0.1, rel=0.05)
    assert variance == pytest.approx(draws.mean(axis=1).var(), rel=0.08)


def test_scores_have_errors_where_they_are_means_of_two_samples_or_more():
    scores = pl.DataFrame({"target_id": list("abcd"), "score": [2.0, 3.0, 5.0, None]})
    values = pl.DataFrame(
        [
            *(("a", index, value) for index, value in enumerate([1.0, 3.0])),
            *(("b", index, value) for index, value in enumerate([1.0, 2.0, 3.0])),  # the maximum
            ("c", 4, 5.0),
            *(("d", index, None) for index in range(2)),
        ],
        schema={"target_id": pl.String, "sample_index": pl.UInt32, "value": pl.Float64},
        orient="row",
    )
    made = score_errors(values, scores)
    assert made["target_id"].to_list() == list("abcd")
    assert made["standard_error"].to_list() == [1.0, None, None, None]
