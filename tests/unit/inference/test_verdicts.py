from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from itertools import product
from math import inf, isnan, nan

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from mia_batch.errors import RequestError, SettingsError
from mia_batch.inference import levels
from mia_batch.inference.estimates import Flagged, contamination_bound
from mia_batch.inference.findings import VerdictPlan, preregister
from mia_batch.inference.verdicts import canary_p_value, canary_ranks, rank_sum_p_value, verdicts
from mia_batch.schemas import Verdicts
from tests.unit.inference.scored import plan, rows, table

ESTIMATES = ["estimate", "value", "low", "high", "confidence", "assumption"]


def made(frame, attacks=("a_v1",), blind_warns=False, **changes):
    parts = list(verdicts(frame.lazy(), attacks, plan(**changes), blind_warns=blind_warns))
    whole = pl.concat(parts)
    Verdicts.validate(whole)
    return whole


def rows_of(frame, level="target", **changes):
    return made(frame, **changes).filter(pl.col("estimate").is_null(), level=level)


def estimates(frame, **changes):
    found = made(frame, **changes).filter(pl.col("estimate").is_not_null())
    assert found["estimate"].unique().to_list() == ["contamination_rate"]
    return {row["method"]: row for row in found.iter_rows(named=True)}


def test_targets_among_non_members():
    frame = table(rows("target", [9, None, 2.5, 0]), rows("non_member", range(1, 5)))
    found = rows_of(frame)
    assert found["key"].to_list() == ["t0", "t1", "t2", "t3"]
    assert found["p_value"].to_list() == [1 / 5, None, 3 / 5, 1]
    assert found["q_value"].to_list() == [4 / 5, None, 1, 1]
    assert found["score"].to_list() == [9, None, 2.5, 0]
    assert found["n_null"].to_list() == [4] * 4
    assert found["reason"].to_list() == [None, "the target has no score", None, None]
    assert found["method"].unique().to_list() == ["conformal"]
    assert found["adjustment"].unique().to_list() == ["bh"]
    assert found["versus"].unique().to_list() == ["non_members"]
    assert found.select(ESTIMATES).null_count().row(0) == (4,) * len(ESTIMATES)


def test_what_is_no_finite_number_is_no_score():
    frame = table(rows("target", [9, inf, nan]), rows("non_member", [1, inf, -inf, None]))
    found = rows_of(frame)
    assert found["p_value"].to_list() == [4 / 5, None, None]


def test_labelled_nulls_get_no_p_value():
    frame = table(
        rows("target", [5]), rows("target", [1, 7], member=False), rows("target", [6], member=True)
    )
    found = rows_of(frame)
    assert found["key"].to_list() == ["t0", "t3"]
    assert found["p_value"].to_list() == [2 / 3, 2 / 3]


def test_sensitivity_bounds_stand_beside_small_p_values():
    found = rows_of(table(rows("target", [99, 5]), rows("non_member", range(39))))
    assert found["sensitivity_bound"].to_list() == [pytest.approx(39 / 19), None]


def test_the_plan_is_marked():
    frame = table(
        *(rows("target", [book, 3], group=f"g{book}") for book in range(2)),
        *(rows("non_member", [book, 1], group=f"n{book}") for book in range(3)),
    ).with_columns(b_v1=-pl.col("a_v1"))
    for level in ("target", "group", "collection"):
        found = made(frame, ["a_v1", "b_v1"], level=level).filter(pl.col("estimate").is_null())
        planned = found.filter("planned").select("attack", "level").unique().rows()
        assert planned == [("a_v1", level)]
        assert found["attack"].unique().sort().to_list() == ["a_v1", "b_v1"]
        assert found["level"].unique().sort().to_list() == ["target", "group", "collection"]


def test_texts_that_share_groups_are_tested_by_groups():
    frame = table(
        rows("target", [9, 2], group="asked"),
        rows("target", [4]),
        rows("non_member", [1, 3, 5], group="n"),
        rows("non_member", [0, 6], document_id="d"),
    )
    found = rows_of(frame)
    shares = np.array([0 + 0, 2 / 3 + 1 / 2, 1 / 3 + 1 / 2])
    assert found["p_value"].to_list() == pytest.approx(((1 + shares) / 3).tolist())
    assert found["n_null"].to_list() == [2] * 3
    assert found["method"].unique().to_list() == ["conformal_groups"]
    assert found["adjustment"].unique().to_list() == ["by"]
    harmonic = 1 + 1 / 2 + 1 / 3
    assert found["q_value"][0] == pytest.approx(min(1, harmonic))


def test_targets_that_share_a_group_are_adjusted_for_it():
    frame = table(rows("target", [9, 2], group="asked"), rows("non_member", [1, 2]))
    found = rows_of(frame)
    assert found["method"].unique().to_list() == ["conformal"]
    assert found["adjustment"].unique().to_list() == ["by"]


def test_groups_are_compared_over_as_many_windows():
    frame = table(
        rows("target", [4, 4, 4], group="b"),
        rows("target", [9], group="c"),
        rows("target", [8, 6], document_id="a"),
        rows("target", [7, None], group="d"),
        rows("target", [7]),
        *(rows("non_member", [book] * 4, group=f"n{book}") for book in range(6)),
        rows("non_member", [50], group="small"),
        rows("non_member", [1, None], group="unscored"),
    )
    found = made(frame, level="group", windows_per_group=2).filter(pl.col("estimate").is_null())
    each = found.filter(pl.col("level").is_in(["group", "document"]))
    assert each.select("level", "key").rows() == [
        ("document", "a"),
        ("group", "b"),
        ("group", "c"),
        ("group", "d"),
        ("document", "t8"),
    ]
    assert each["score"].to_list() == [7, 4, None, None, None]
    assert each["p_value"].to_list() == [2 / 8, 4 / 8, None, None, None]
    assert each["q_value"].to_list() == [1, 1, None, None, None]
    assert each["n_null"].to_list() == [7] * 5
    assert each["method"].unique().to_list() == ["conformal_mean_of_2"]
    assert each["adjustment"].unique().to_list() == ["bh"]
    assert each["reason"].to_list() == [
        None,
        None,
        "the group has 1 of 2 windows",
        "one of the group's windows has no score",
        "the group has 1 of 2 windows",
    ]
    collection = found.filter(level="collection")
    assert collection["key"].to_list() == [None]
    assert collection["method"].to_list() == ["permutation_exact"]
    # Ranks 9, 6.5 and, unscored, 1, of 10; n4 has 6.5 too.
    assert collection["score"].to_list() == [(9 + 6.5 + 1) / 3]


def test_ties_at_random_depend_on_names_and_seed_alone():
    frame = table(rows("target", [1] * 30), rows("non_member", [1] * 30))
    first = rows_of(frame, ties="random").sort("key")
    assert first["p_value"].n_unique() > 5
    turned = rows_of(frame.reverse(), ties="random").sort("key")
    assert_frame_equal(first, turned)
    other = rows_of(frame, ties="random", seed=1).sort("key")
    assert first["p_value"].to_list() != other["p_value"].to_list()
    assert rows_of(frame)["p_value"].unique().to_list() == [1]


def test_ties_of_groups_at_random():
    frame = table(
        *(rows("target", [1, 1], group=f"g{book}") for book in range(9)),
        *(rows("non_member", [1, 1], group=f"n{book}") for book in range(9)),
    )
    assert rows_of(frame, "group", ties="random")["p_value"].n_unique() > 3
    assert rows_of(frame, "group")["p_value"].unique().to_list() == [1]


def test_lengths_are_matched_within_buckets():
    frame = table(
        rows("target", [5], n_words=49),
        rows("target", [5], n_words=50),
        rows("target", [5], n_words=None),
        rows("non_member", [1, 2, 3], n_words=20),
        rows("non_member", [9], n_words=80),
        rows("non_member", [None], n_words=None),
    )
    found = rows_of(frame, length_edges=(50,))
    assert found["p_value"].to_list() == [2 / 5, 3 / 3, None]
    assert found["n_null"].to_list() == [4, 2, 0]
    assert "number of words is unknown" in found["reason"][2]
    assert rows_of(frame)["p_value"].to_list() == [3 / 6] * 3


def test_the_bound_counts_every_target():
    frame = table(rows("target", [*[99] * 30, *[0] * 9, None]), rows("non_member", range(99)))
    row = estimates(frame)["beta_binomial"]
    bound = contamination_bound(Flagged(30, 40), n_null=99, rank=5)
    assert (row["low"], row["high"], row["value"]) == (bound.low, 1, None)
    assert bound.low is not None
    assert bound.low > 0.5
    assert (row["level"], row["key"], row["n_null"]) == ("collection", None, 99)
    assert "exchangeable" in row["assumption"]


def calibrated(n_groups=None):
    """Of 40 targets half beat every null, of calibration members 3 in 4, of non-members none."""

    def grouped(role, scores, **columns):
        parts = []
        for index, score in enumerate(scores):
            named = {} if n_groups is None else {"group": f"{role}{columns}{index}"}
            parts += rows(role, [score] * (1 + (n_groups is not None)), **columns, **named)
        return parts

    n = n_groups or 40
    return table(
        grouped("target", [99] * (n // 2) + [0] * (n - n // 2)),
        grouped("non_member", range(n)),
        grouped("calibration", [99, 99, 99, 0] * (n // 4), member=True),
        grouped("calibration", [0] * n, member=False),
    )


def test_the_rate_where_calibration_data_give_both_rates():
    found = estimates(calibrated())
    assert found["fieller"]["value"] == pytest.approx(0.5 / 0.75)
    assert found["fieller"]["low"] < 0.5 / 0.75 < found["fieller"]["high"]
    assert found["fieller"]["confidence"] == 0.95
    assert "assumes" in found["fieller"]["assumption"]
    assert set(found) == {"fieller", "beta_binomial"}


def test_the_rate_is_refused_where_labels_fail_the_blind_test():
    row = estimates(calibrated(), blind_warns=True)["fieller"]
    assert row["value"] is None
    assert "can be told apart without the model" in row["reason"]


def test_rates_of_groups_need_20_groups():
    enough, few = estimates(calibrated(20)), estimates(calibrated(16))
    assert enough["fieller"]["value"] == pytest.approx(0.5 / 0.75)
    assert enough["beta_binomial"]["n_null"] == 20
    assert enough["beta_binomial"]["low"] > 0
    for row in few.values():
        assert (row["value"], row["low"], row["high"]) == (None, None, None)
        assert row["reason"] == "16 audited groups are too few, 20 are needed"


def test_calibration_of_one_class_gives_no_rate():
    frame = table(
        rows("target", [1, 2]), rows("non_member", [1]), rows("calibration", [1], member=True)
    )
    assert estimates(frame)["fieller"]["reason"] == (
        "0 scored calibration non-member texts are too few, 1 are needed"
    )


def canaries(name, scores, published=0):
    found = rows("canary", scores, group=name, member=False)
    found[published]["member"] = True
    return found


def test_canaries():
    frame = table(
        rows("target", [1]),
        rows("non_member", [2]),
        canaries("b", [3, 5, 1, 2], published=1),
        canaries("a", [3, 5, 4]),
        canaries("c", [None, 5]),
    )
    found = made(frame).filter(versus="controls")
    assert found.select("level", "key", "n_null").rows() == [
        ("group", "a", 2),
        ("group", "b", 3),
        ("group", "c", 1),
        ("collection", None, 6),
    ]
    assert found["p_value"][:3].to_list() == [1, 1 / 4, None]
    assert found["reason"][2] == "the published text has no score"
    # Ranks 1 of 3, 4 of 4 and, unscored, 1 of 2.
    draws = product((1, 2, 3), (1, 2, 3, 4), (1, 2))
    assert found["p_value"][3] == pytest.approx(sum(sum(draw) >= 6 for draw in draws) / 24)
    assert found["method"][3] == "canary_rank_sum_of_3"
    assert found["planned"].all()


def test_canaries_need_no_other_texts():
    found = made(table(canaries("a", [3, 1, 2])))
    assert found.select("key", "p_value", "method").rows() == [("a", 1 / 3, "canary_rank")]


@pytest.mark.parametrize(
    ("members", "message"),
    [([True, True, False], "2 published texts and 1 unp"), ([True], "1 published texts and 0 unp")],
)
def test_sets_that_are_not_whole_are_refused(members, message):
    parts = [rows("canary", [1], group="a", member=member) for member in members]
    with pytest.raises(RequestError, match=f"the canary set 'a' has {message}"):
        made(table(*parts))


def test_without_nulls_there_is_a_reason():
    found = made(table(rows("target", [1, 2])))
    assert found.select("attack", "level", "p_value").rows() == [("a_v1", "collection", None)]
    assert "give non-members" in found["reason"][0]


def test_without_targets_there_is_nothing():
    assert made(table(rows("non_member", [1, 2]))).is_empty()


def test_a_primary_attack_that_is_not_computed_is_refused():
    with pytest.raises(SettingsError, match="'b_v1' is not computed"):
        made(table(rows("target", [1])), primary="b_v1")


def test_many_targets_come_in_parts(monkeypatch):
    frame = table(rows("target", range(10)), rows("non_member", range(5)))
    whole = made(frame)
    monkeypatch.setattr(levels, "_ROWS_AT_ONCE", 3)
    parts = list(verdicts(frame.lazy(), ["a_v1"], plan()))
    assert [part.height for part in parts] == [0, 3, 3, 3, 1, 1]
    assert_frame_equal(pl.concat(parts), whole)


def test_nothing_claims_membership():
    frame = pl.concat([calibrated(), table(canaries("a", [3, 1]), canaries("b", [3, 1]))])
    for words in made(frame).select(pl.col(pl.String)).unpivot()["value"].drop_nulls().unique():
        assert "was trained on" not in words
        assert "1 - p" not in words
        assert "probability" not in words


PLAN = VerdictPlan(primary="a_v1", level="group", null_set="file 1f: written after the model")


def test_the_digest_is_that_of_canonical_json():
    content = {
        "primary": "a_v1",
        "level": "group",
        "null_set": "file 1f: written after the model",
        "q": 0.05,
        "adjustment": "bh",
        "ties": "conservative",
        "statistic": "mean",
        "windows_per_group": None,
        "length_edges": [],
        "fpr": 0.05,
        "seed": 0,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert PLAN.digest() == sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": 0}, "q must lie between 0 and 1"),
        ({"q": 1}, "q must lie between 0 and 1"),
        ({"fpr": 1.5}, "fpr must lie between 0 and 1"),
        ({"windows_per_group": 0}, "windows_per_group must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"length_edges": (50, 50)}, "length_edges must ascend"),
        ({"length_edges": (50, 20)}, "length_edges must ascend"),
    ],
)
def test_numbers_out_of_range_are_refused(change, message):
    with pytest.raises(SettingsError, match=message):
        replace(PLAN, **change)


def test_the_digest_is_not_about_the_attacks_that_are_recorded():
    recorded = [preregister(PLAN, {}, attacks) for attacks in (["a_v1"], ["b_v1", "a_v1"])]
    assert [one["attacks"] for one in recorded] == [["a_v1"], ["b_v1", "a_v1"]]
    assert {one["sha256"] for one in recorded} == {PLAN.digest()}


SCORES = st.one_of(st.integers(0, 4), st.just(nan))
SETS = st.lists(st.lists(SCORES, min_size=2, max_size=4), min_size=1, max_size=4)


def ranks_of(scores):
    return canary_ranks(scores[0], np.array(scores[1:], float))


def ranks_reference(scores):
    """Mean ranks; an unscored published text is lowest, each unscored control above all."""
    published, *controls = scores
    keyed = [-1 if isnan(published) else published]
    keyed += [100 - index if isnan(control) else control for index, control in enumerate(controls)]
    return [sum(other < one for other in keyed) + (keyed.count(one) + 1) / 2 for one in keyed]


def sum_reference(sets):
    """All draws of one text per set, each as likely as the others."""
    observed = sum(ranks[0] for ranks in sets)
    sums = [sum(drawn) for drawn in product(*sets)]
    return sum(one >= observed for one in sums) / len(sums)


def test_one_set_by_hand():
    """Of the controls 1, 2, 2, 3 three reach 2 and none reaches 4."""
    controls = np.array([1.0, 2, 2, 3])
    assert [canary_p_value(score, controls) for score in (4.0, 2.0, 0.0)] == [1 / 5, 4 / 5, 1]


def test_unscored_controls_count_as_higher_and_an_unscored_canary_has_no_p_value():
    assert canary_p_value(9.0, np.array([1, nan, 3])) == 2 / 4
    assert np.isnan(canary_p_value(nan, np.array([1.0, 2])))


@given(st.lists(SCORES, min_size=2, max_size=6))
def test_ranks_equal_their_reference(scores):
    assert ranks_of(scores).tolist() == ranks_reference(scores)


@given(SETS)
def test_the_sum_of_ranks_equals_its_reference(sets):
    ranks = [ranks_of(scores) for scores in sets]
    made = rank_sum_p_value(ranks)
    assert made == pytest.approx(sum_reference(ranks))
    assert 0 < made <= 1
