"""What is said of another draw, and when nothing can be."""

from __future__ import annotations

import polars as pl

from mia_batch.inference.second_draw import flip_rate
from tests.unit.inference.scored import plan, rows, table

SCORES = table(rows("target", [0.9, 0.1]), rows("non_member", [0.2] * 19)).rename({"a_v1": "score"})


def values(n_samples):
    """Every sample has its target's score."""
    place = pl.DataFrame({"sample_index": range(n_samples)}, schema={"sample_index": pl.UInt32})
    return SCORES.select("target_id", value="score").join(place, how="cross")


def rate(n_samples, second=None):
    found = flip_rate(SCORES, plan(), values=values(n_samples), second=second)
    return found.select("value", "reason").row(0)


def test_samples_that_agree_flip_nothing():
    assert rate(2) == (0, None)


def test_one_sample_cannot_tell_what_another_would_change():
    share, reason = rate(1)
    assert share is None
    assert reason.startswith("one sample of a text shows no spread")


def test_a_second_draw_by_hand():
    second = SCORES["score"].replace([0.9], [0.15])
    assert rate(1, second) == (0.5, None)


def test_a_second_draw_that_lacks_scores_is_no_answer():
    lacking = SCORES["score"].replace([0.1], [None])
    assert rate(2, lacking) == (None, "1 texts have no score in the second draw")


def test_without_targets_there_is_nothing_to_say():
    nulls = SCORES.filter(role="non_member")
    assert flip_rate(nulls, plan(), values=values(2), second=None).is_empty()
