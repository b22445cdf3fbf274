"""Dataset inference: exact where sets are alike, and only a set that was learnt is found."""

from __future__ import annotations

import numpy as np
import pytest

from mia_batch.inference.findings import read_rows
from mia_batch.inference.sets import DATASET_INFERENCE, infer_dataset
from tests.unit.inference.scored import plan
from tests.unit.inference.test_combination import ATTACKS, scores, texts

PLAN = plan(level="collection")


def inferred(*parts, told_apart=False, of_plan=PLAN):
    return infer_dataset(scores(*parts).lazy(), ATTACKS, of_plan, told_apart=told_apart)


def sets(rng, n=40, shift=0.0, **groups):
    return (
        texts(rng, "target", n, None, shift=shift, **groups),
        texts(rng, "non_member", n, False, **groups),
    )


@pytest.mark.parametrize("groups", [{}, {"windows": 8, "together": 1.0}])
def test_p_values_of_sets_that_are_alike_are_uniform(groups):
    rng, runs = np.random.default_rng(4), 80
    found = [inferred(*sets(rng, **groups)) for _ in range(runs)]
    p = np.array([one.test.p_value for one in found])
    for level in (0.1, 0.5):
        error = np.sqrt(level * (1 - level) / runs)
        assert np.mean(p <= level) == pytest.approx(level, abs=3 * error)
    papers = np.mean([one.paper_p_value <= 0.1 for one in found])
    if groups:  # the paper's test takes windows of a group for independent
        assert papers > 0.1 + 3 * np.sqrt(0.09 / runs)
    else:
        assert papers == pytest.approx(0.1, abs=3 * np.sqrt(0.09 / runs))


def test_a_set_that_was_learnt_is_found():
    rng = np.random.default_rng(5)
    p = [inferred(*sets(rng, shift=0.7)).test.p_value for _ in range(20)]
    assert np.median(p) <= 0.001


def test_a_set_on_which_attacks_score_lower_is_not_taken_for_learnt():
    """By weights of either sign, as in the paper, it is."""
    rng = np.random.default_rng(6)
    found = [inferred(*sets(rng, shift=-0.7)) for _ in range(20)]
    assert np.median([one.paper_p_value for one in found]) <= 0.001
    assert min(one.test.p_value for one in found) >= 0.05
    assert all(min(one.weights.values()) >= 0 for one in found)


def test_sets_that_can_be_told_apart_get_a_reason_and_no_p_value():
    made = inferred(*sets(np.random.default_rng(7), shift=2.0), told_apart=True)
    (row,) = made.verdict().iter_rows(named=True)
    assert (row["attack"], row["level"], row["p_value"]) == (DATASET_INFERENCE, "collection", None)
    assert row["reason"].startswith("targets and non-members can be told apart without the model")
    by_statistic = {row["statistic"]: row for row in made.findings().iter_rows(named=True)}
    assert by_statistic["permutation"]["p_value"] is by_statistic["paper"]["p_value"] is None


def test_too_few_groups_get_a_reason():
    made = inferred(*sets(np.random.default_rng(8), n=15))
    assert made.test is None
    assert "groups of enough windows, 10 are needed" in made.reason


def test_rows_tell_what_was_learned_and_tested():
    made = inferred(*sets(np.random.default_rng(9), shift=1.0))
    (row,) = made.verdict().iter_rows(named=True)
    assert made.test is not None
    assert row["method"] == f"split_{made.test.method}"
    assert not row["planned"]
    facts = made.findings()
    counts = {
        row["statistic"]: row["value"]
        for row in facts.iter_rows(named=True)
        if row["value"] is not None and row["subject"] is None
    }
    assert counts["n_learned"] + counts["n_targets"] + counts["n_null"] == 80
    weights = facts.filter(statistic="weight")
    assert weights["subject"].to_list() == ATTACKS
    assert weights["value"].to_list() == list(made.weights.values())


def test_an_attack_without_scores_has_no_weight():
    frame = scores(*sets(np.random.default_rng(10), shift=1.0)).with_columns(c_v1=None)
    made = infer_dataset(frame.lazy(), ATTACKS, PLAN, told_apart=False)
    assert made.weights["c_v1"] == 0
    assert made.test is not None
    assert made.test.p_value <= 0.01


def test_rows_are_read_in_the_order_asked_for():
    frame = scores(*sets(np.random.default_rng(11), n=5))
    rows = np.array([7, 0, 9, 3])
    assert read_rows(frame.lazy(), ATTACKS, rows).tolist() == [
        list(row) for row in frame.select(ATTACKS)[rows.tolist()].iter_rows()
    ]
