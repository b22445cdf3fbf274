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
from mia_batch.inference import verdicts as module
from mia_batch.inference.estimates import Flagged, contamination_bound
from mia_batch.inference.findings import DecisionRule, preregister
from mia_batch.inference.verdicts import (
    aligned_ranks,
    canary_p_value,
    rank_sum_p_value,
    verdicts,
)
from mia_batch.schemas import Verdicts
from tests.unit.inference.scored import plan, rows, table

ESTIMATES = ["estimate", "value", "low", "high", "confidence", "assumption"]


def build_verdicts(frame, attacks=("a_v1",), blind_warns=False, **changes):
    parts = list(
        verdicts(frame.lazy(), attacks, plan(**changes), blind_warns=blind_warns)
    )
    whole = pl.concat(parts)
    Verdicts.validate(whole)
    return whole


def rows_of(frame, level="target", **changes):
    return build_verdicts(frame, **changes).filter(
        pl.col("estimate").is_null(), level=level
    )


def estimates(frame, **changes):
    estimate_rows = build_verdicts(frame, **changes).filter(
        pl.col("estimate").is_not_null()
    )
    assert estimate_rows["estimate"].unique().to_list() == ["contamination_rate"]
    return {row["method"]: row for row in estimate_rows.iter_rows(named=True)}


TARGETS = [  # table, changes of the plan, columns of the targets' verdicts
    (
        table(rows("target", [9, None, 2.5, 0]), rows("non_member", range(1, 5))),
        {},
        {
            "key": ["t0", "t1", "t2", "t3"],
            "p_value": [1 / 5, None, 3 / 5, 1],
            "q_value": [4 / 5, None, 1, 1],
            "score": [9, None, 2.5, 0],
            "n_null": [4] * 4,
            "reason": [None, "the target has no score", None, None],
            "method": ["conformal"] * 4,
            "adjustment": ["bh"] * 4,
            "versus": ["non_members"] * 4,
            **dict.fromkeys(ESTIMATES, [None] * 4),
        },
    ),
    (  # what is no finite number is no score
        table(rows("target", [9, inf, nan]), rows("non_member", [1, inf, -inf, None])),
        {},
        {"p_value": [4 / 5, None, None]},
    ),
    (  # labelled nulls get no p-value
        table(
            rows("target", [5]),
            rows("target", [1, 7], member=False),
            rows("target", [6], member=True),
        ),
        {},
        {"key": ["t0", "t3"], "p_value": [2 / 3, 2 / 3]},
    ),
    (
        table(rows("target", [99, 5]), rows("non_member", range(39))),
        {},
        {"sensitivity_bound": [39 / 19, None]},
    ),
    (  # nulls that share groups count as groups; 1 + 1/2 + 1/3 is the factor of dependence
        table(
            rows("target", [9, 2], group="asked"),
            rows("target", [4]),
            rows("non_member", [1, 3, 5], group="n"),
            rows("non_member", [0, 6], document_id="d"),
        ),
        {},
        {
            "p_value": [1 / 3, (1 + 2 / 3 + 1 / 2) / 3, (1 + 1 / 3 + 1 / 2) / 3],
            "n_null": [2] * 3,
            "method": ["conformal_groups"] * 3,
            "adjustment": ["by"] * 3,
            "q_value": [1] * 3,
        },
    ),
    (
        table(rows("target", [9, 2], group="asked"), rows("non_member", [1, 2])),
        {},
        {"method": ["conformal"] * 2, "adjustment": ["by"] * 2},
    ),
    *(
        (
            table(
                rows("target", [5], n_words=49),
                rows("target", [5], n_words=50),
                rows("target", [5], n_words=None),
                rows("non_member", [1, 2, 3], n_words=20),
                rows("non_member", [9], n_words=80),
                rows("non_member", [None], n_words=None),
            ),
            {"length_edges": edges},
            expected,
        )
        for edges, expected in (
            ((), {"p_value": [3 / 6] * 3}),
            (
                (50,),
                {
                    "p_value": [2 / 5, 3 / 3, None],
                    "n_null": [4, 2, 0],
                    "reason": [
                        None,
                        None,
                        (
                            "the target's number of words is unknown, so it is in no"
                            " bucket of lengths"
                        ),
                    ],
                },
            ),
        )
    ),
]


@pytest.mark.parametrize(("frame", "changes", "expected"), TARGETS)
def test_targets_by_hand(frame, changes, expected):
    target_rows = rows_of(frame, **changes)
    assert {name: target_rows[name].to_list() for name in expected} == {
        name: pytest.approx(values) for name, values in expected.items()
    }


def test_the_plan_is_marked():
    frame = table(
        *(rows("target", [book, 3], group=f"g{book}") for book in range(2)),
        *(rows("non_member", [book, 1], group=f"n{book}") for book in range(3)),
    ).with_columns(b_v1=-pl.col("a_v1"))
    for level in ("target", "group", "collection"):
        all_verdicts = build_verdicts(frame, ["a_v1", "b_v1"], level=level).filter(
            pl.col("estimate").is_null()
        )
        planned = (
            all_verdicts.filter("planned").select("attack", "level").unique().rows()
        )
        assert planned == [("a_v1", level)]
        assert all_verdicts["attack"].unique().sort().to_list() == ["a_v1", "b_v1"]
        assert all_verdicts["level"].unique().sort().to_list() == [
            "target",
            "group",
            "collection",
        ]


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
    compared = build_verdicts(frame, level="group", windows_per_group=2).filter(
        pl.col("estimate").is_null()
    )
    tests = compared.filter(pl.col("level").is_in(["group", "document"]))
    assert tests.select("level", "key").rows() == [
        ("document", "a"),
        ("group", "b"),
        ("group", "c"),
        ("group", "d"),
        ("document", "t8"),
    ]
    assert tests["score"].to_list() == [7, 4, None, None, None]
    assert tests["p_value"].to_list() == [2 / 8, 4 / 8, None, None, None]
    assert tests["q_value"].to_list() == [1, 1, None, None, None]
    assert tests["n_null"].to_list() == [7] * 5
    assert tests["method"].unique().to_list() == ["conformal_mean_of_2"]
    assert tests["adjustment"].unique().to_list() == ["bh"]
    assert tests["reason"].to_list() == [
        None,
        None,
        "the group has 1 of 2 windows",
        "one of the group's windows has no score",
        "the group has 1 of 2 windows",
    ]
    collection = compared.filter(level="collection")
    assert collection["key"].to_list() == [None]
    assert collection["method"].to_list() == ["permutation_exact"]
    # Ranks 9, 6.5 and, unscored, 1, of 10; n4 has 6.5 too.
    assert collection["score"].to_list() == [(9 + 6.5 + 1) / 3]


def test_ties_at_random_depend_on_names_and_seed_alone():
    frame = table(rows("target", [1] * 30), rows("non_member", [1] * 30))
    first = rows_of(frame, ties="random").sort("key")
    assert first["p_value"].n_unique() > 5
    assert_frame_equal(first, rows_of(frame.reverse(), ties="random").sort("key"))
    other_seed = rows_of(frame, ties="random", seed=1).sort("key")
    assert first["p_value"].to_list() != other_seed["p_value"].to_list()
    assert rows_of(frame)["p_value"].unique().to_list() == [1]
    groups = table(
        *(rows("target", [1, 1], group=f"g{book}") for book in range(9)),
        *(rows("non_member", [1, 1], group=f"n{book}") for book in range(9)),
    )
    assert rows_of(groups, "group", ties="random")["p_value"].n_unique() > 3
    assert rows_of(groups, "group")["p_value"].unique().to_list() == [1]


def test_the_bound_counts_every_target():
    frame = table(
        rows("target", [*[99] * 30, *[0] * 9, None]), rows("non_member", range(99))
    )
    row = estimates(frame)["beta_binomial"]
    bound = contamination_bound(Flagged(30, 40), n_null=99, rank=5)
    assert (row["low"], row["high"], row["value"]) == (bound.low, 1, None)
    assert bound.low is not None
    assert bound.low > 0.5
    assert (row["level"], row["key"], row["n_null"]) == ("collection", None, 99)
    assert "exchangeable" in row["assumption"]


def calibrated_frame(n_groups=None):
    """Of 40 targets half beat every null, of calibration members 3 in 4, of non-members none."""

    def grouped(role, scores, **columns):
        parts = []
        for index, score in enumerate(scores):
            group_column = (
                {} if n_groups is None else {"group": f"{role}{columns}{index}"}
            )
            parts += rows(
                role, [score] * (1 + (n_groups is not None)), **columns, **group_column
            )
        return parts

    n = n_groups or 40
    return table(
        grouped("target", [99] * (n // 2) + [0] * (n - n // 2)),
        grouped("non_member", range(n)),
        grouped("calibration", [99, 99, 99, 0] * (n // 4), member=True),
        grouped("calibration", [0] * n, member=False),
    )


def test_the_rate_of_calibration_data_or_why_it_is_withheld():
    """Groups need 20 of them; a class without a scored text, or labels that differ, give none."""
    of_texts, of_groups = estimates(calibrated_frame()), estimates(calibrated_frame(20))
    for by_method in (of_texts, of_groups):
        assert set(by_method) == {"fieller", "duci", "beta_binomial"}
        assert by_method["fieller"]["value"] == pytest.approx(0.5 / 0.75)
        assert by_method["duci"]["low"] < 0.5 / 0.75 < by_method["duci"]["high"]
        assert by_method["beta_binomial"]["low"] > 0
    assert of_texts["fieller"]["low"] < 0.5 / 0.75 < of_texts["fieller"]["high"]
    assert of_texts["fieller"]["confidence"] == 0.95
    assert "assumes" in of_texts["fieller"]["assumption"]
    assert of_groups["beta_binomial"]["n_null"] == 20
    one_class = table(
        rows("target", [1, 2]),
        rows("non_member", [1]),
        rows("calibration", [1], member=True),
    )
    too_few = estimates(calibrated_frame(16))
    refused = [
        (
            estimates(calibrated_frame(), blind_warns=True),
            "can be distinguished without the model",
        ),
        (estimates(one_class), "0 scored calibration non-member texts are too"),
        (too_few, "16 audited groups are too few, 20 are needed"),
    ]
    for of_texts, reason in refused:
        for row in (of_texts["fieller"], of_texts["duci"]):
            assert (row["value"], row["low"], row["high"]) == (None, None, None)
            assert reason in row["reason"]
    assert too_few["beta_binomial"]["reason"] == too_few["fieller"]["reason"]


def canaries(name, scores, published=0):
    canary_rows = rows("canary", scores, group=name, member=False)
    canary_rows[published]["member"] = True
    return canary_rows


def test_canaries():
    frame = table(
        rows("target", [1]),
        rows("non_member", [2]),
        canaries("b", [3, 5, 1, 2], published=1),
        canaries("a", [3, 5, 4]),
        canaries("c", [None, 5]),
    )
    canary_verdicts = build_verdicts(frame).filter(versus="controls")
    assert canary_verdicts.select("level", "key", "n_null").rows() == [
        ("group", "a", 2),
        ("group", "b", 3),
        ("group", "c", 1),
        ("collection", None, 6),
    ]
    assert canary_verdicts["p_value"][:3].to_list() == [1, 1 / 4, None]
    assert canary_verdicts["reason"][2] == "the published text has no score"
    # Less the means 4, 2.75 and 5: -1 of -1, 0, 1; 2.25 of -1.75, -0.75, 0.25, 2.25;
    # unscored, 0.
    draws = product((3, 5.5, 8), (2, 4, 7, 9), (1, 5.5))
    assert canary_verdicts["p_value"][3] == pytest.approx(
        sum(sum(draw) >= 13 for draw in draws) / 24
    )
    assert canary_verdicts["method"][3] == "canary_rank_sum_of_3"
    assert canary_verdicts["planned"].all()


def test_which_sets_of_texts_there_need_be():
    alone = build_verdicts(table(canaries("a", [3, 1, 2])))
    assert alone.select("key", "p_value", "method").rows() == [
        ("a", 1 / 3, "canary_rank")
    ]
    no_nulls = build_verdicts(table(rows("target", [1, 2])))
    assert no_nulls.select("attack", "level", "p_value").rows() == [
        ("a_v1", "collection", None)
    ]
    assert "give non-members" in no_nulls["reason"][0]
    assert build_verdicts(table(rows("non_member", [1, 2]))).is_empty()
    for members, message in (
        ([True, True, False], "2 published texts and 1 unp"),
        ([True], "1 p"),
    ):
        parts = [rows("canary", [1], group="a", member=member) for member in members]
        with pytest.raises(RequestError, match=f"the canary set 'a' has {message}"):
            build_verdicts(table(*parts))
    with pytest.raises(SettingsError, match="'b_v1' is not computed"):
        build_verdicts(table(rows("target", [1])), primary="b_v1")


def test_many_targets_come_in_parts(monkeypatch):
    frame = table(rows("target", range(10)), rows("non_member", range(5)))
    whole = build_verdicts(frame)
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 3)
    parts = list(verdicts(frame.lazy(), ["a_v1"], plan()))
    assert [part.height for part in parts] == [0, 3, 3, 3, 1, 1]
    assert_frame_equal(pl.concat(parts), whole)


def test_nothing_claims_membership():
    frame = pl.concat(
        [calibrated_frame(), table(canaries("a", [3, 1]), canaries("b", [3, 1]))]
    )
    for words in (
        build_verdicts(frame)
        .select(pl.col(pl.String))
        .unpivot()["value"]
        .drop_nulls()
        .unique()
    ):
        assert "was trained on" not in words
        assert "1 - p" not in words
        assert "probability" not in words


PLAN = DecisionRule(
    primary="a_v1", level="group", null_set="file 1f: written after the model"
)


def test_the_digest_is_that_of_canonical_json_whatever_attacks_are_recorded():
    content = {
        "primary": "a_v1",
        "level": "group",
        "null_set": PLAN.null_set,
        "q": 0.05,
    }
    content |= {
        "adjustment": "bh",
        "ties": "conservative",
        "statistic": "mean",
        "seed": 0,
    }
    content |= {"windows_per_group": None, "length_edges": [], "fpr": 0.05}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert PLAN.digest() == sha256(text.encode()).hexdigest()
    recorded = [
        preregister(PLAN, {}, attacks) for attacks in (["a_v1"], ["b_v1", "a_v1"])
    ]
    assert [plan_record["attacks"] for plan_record in recorded] == [
        ["a_v1"],
        ["b_v1", "a_v1"],
    ]
    assert {plan_record["sha256"] for plan_record in recorded} == {PLAN.digest()}


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


SCORES = st.one_of(st.integers(0, 4), st.just(nan))
SETS = st.lists(st.lists(SCORES, min_size=2, max_size=4), min_size=1, max_size=4)


def ranks_of(sets):
    return aligned_ranks([(scores[0], np.array(scores[1:], float)) for scores in sets])


def ranks_reference(sets):
    """Mean ranks less the mean of each set; unscored published texts lowest, controls highest."""
    keyed = []
    for scores in sets:
        finite_scores = [score for score in scores if not isnan(score)]
        middle = sum(finite_scores) / len(finite_scores) if finite_scores else 0
        keyed.append([round(score - middle, 9) for score in scores])
        keyed[-1] = [
            (99 if position else -99) if isnan(key) else key
            for position, key in enumerate(keyed[-1])
        ]
    every = [key for scores in keyed for key in scores]
    return [
        [
            sum(other_key < key for other_key in every) + (every.count(key) + 1) / 2
            for key in scores
        ]
        for scores in keyed
    ]


def sum_reference(sets):
    """All draws of one text per set, each as likely as the others."""
    observed = sum(ranks[0] for ranks in sets)
    sums = [sum(drawn_ranks) for drawn_ranks in product(*sets)]
    return sum(rank_sum >= observed for rank_sum in sums) / len(sums)


@pytest.mark.parametrize(
    ("published", "controls", "p"),
    [
        *((score, [1, 2, 2, 3], p) for score, p in ((4, 1 / 5), (2, 4 / 5), (0, 1))),
        (9, [1, nan, 3], 2 / 4),  # an unscored control counts as higher
        (nan, [1, 2], nan),
    ],
)
def test_one_set_by_hand(published, controls, p):
    p_value = canary_p_value(float(published), np.array(controls, float))
    assert p_value == pytest.approx(p, nan_ok=True)


@given(SETS)
def test_ranks_equal_their_reference(sets):
    assert [ranks.tolist() for ranks in ranks_of(sets)] == ranks_reference(sets)


@given(SETS)
def test_the_sum_of_ranks_equals_its_reference(sets):
    ranks = ranks_of(sets)
    p_value = rank_sum_p_value(ranks)
    assert p_value == pytest.approx(sum_reference(ranks))
    assert 0 < p_value <= 1


def test_where_ranks_are_made_coarser_draws_stay_exact(monkeypatch):
    monkeypatch.setattr(module, "_MOST_SUMS", 40)
    sizes = np.random.default_rng(0).standard_t(2, 10)
    p = [
        rank_sum_p_value(
            aligned_ranks([(published, np.zeros(1)) for published in sizes * signs])
        )
        for signs in product((1, -1), repeat=10)
    ]
    levels = np.unique(p)
    assert len(levels) > 20
    # Of all draws, each as likely as the others, a share of exactly p has at most that
    # p.
    assert [np.mean(np.array(p) <= level + 1e-12) for level in levels] == pytest.approx(
        levels
    )
