from __future__ import annotations

from itertools import combinations
from math import nan

import numpy as np
import polars as pl
import pytest
from scipy.stats import hypergeom

from mia_batch.inference.comparison import collection_test
from mia_batch.inference.few_books import Top, few_books_findings, max_t, top_bound
from tests.unit.inference.scored import plan, rows, table

NULLS = np.linspace(0, 39, 40)  # four numbers of highest: 1, 2, 3 and 5


def targets(*counts):
    """So many of 50 targets lie above the null of each rank, less those above the one before."""
    above = [score for score, n in counts for _ in range(n)]
    return np.array(above + [-1.0] * (50 - len(above)))


def top_reference(found, nulls, ranks):
    """Of v highest among all units at most k - 1 are nulls where v - k + 1 others lie above."""
    made = []
    n, m = len(nulls), len(found)
    for rank in ranks:
        threshold = sorted(nulls)[-rank]
        above = sum(score > threshold for score in found)
        fewest = next(
            members
            for members in range(above + 1)
            if above == members
            or hypergeom.cdf(rank - 1, m - members + n, n, above - members + rank - 1)
            > 0.05 / len(ranks)
        )
        made.append((fewest, -above))
    return max(made)


@pytest.mark.parametrize(
    "scores",
    [
        targets((50, 10)),
        targets((50, 4), (38.5, 1), (36.5, 9)),
        targets((34.5, 30)),
        targets((38, 6)),
        targets((50, 50)),
    ],
)
def test_the_bound_equals_its_reference(scores):
    made = top_bound(scores, 50, NULLS)
    assert (made.at_least, -made.of_top) == top_reference(scores, NULLS, (1, 2, 3, 5))


def test_ten_of_fifty_above_forty_others():
    """10 - M of 50 - M others lie above 40 by chance in 0.0108 at M = 3, in 0.0199 at M = 4."""
    assert top_bound(targets((50, 10)), 50, NULLS) == Top(4, 10, 1)  # a quarter of 5 % lies between


def test_what_has_no_score_finds_nothing():
    assert top_bound(targets((nan, 10)), 50, NULLS) == Top(0, 0, 1)
    unscored = np.array([*NULLS[:-1], nan])
    assert top_bound(targets((50, 10)), 50, unscored).rank > 1


def test_few_nulls_are_compared_with_the_highest_alone():
    """Two of two beat 15 others by chance in 1 of C(17, 2), one of one in 1 of 16."""
    assert top_bound(np.array([99.0, 98, 97]), 3, NULLS[:15]) == Top(2, 3, 1)


@pytest.mark.parametrize(("effect", "most_wrong", "finds"), [(0, 0.1, 0), (5, 0.1, 0.8)])
def test_what_is_claimed_of_the_highest_is_true(effect, most_wrong, finds):
    rng = np.random.default_rng(3)
    member = (np.arange(50) < 10) & (effect > 0)
    wrong = found = 0
    for _ in range(150):
        scores, nulls = rng.standard_t(4, 50) + effect * member, rng.standard_t(4, 40)
        made = top_bound(scores, 50, nulls)
        above = scores > np.sort(nulls)[-made.rank]
        wrong += made.at_least > above[member].sum()
        found += made.at_least > 0
    assert wrong / 150 <= most_wrong
    assert found / 150 >= finds


def max_t_reference(groups, nulls):
    """Adjusted p-values by all orders, one attack and one order at a time."""
    found, n_groups = {}, len(groups[0])
    for attack, pooled in enumerate(np.hstack([groups, nulls]).tolist()):
        ranks = [sum(x < y for x in pooled) + (pooled.count(y) + 1) / 2 for y in pooled]
        sums = np.array([sum(chosen) for chosen in combinations(ranks, n_groups)])
        found[attack] = (sums - sums.mean()) / (sums.std() or 1)
    left, before, p_values = [*found], 0.0, [0.0] * len(found)
    for attack in sorted(found, key=lambda attack: -found[attack][0]):
        largest = np.max([found[other] for other in left], axis=0)
        before = max(before, float(np.mean(largest >= found[attack][0] - 1e-9)))
        p_values[attack] = before
        left.remove(attack)
    return [found[attack][0] for attack in sorted(found)], p_values


@pytest.mark.parametrize("seed", range(4))
def test_max_t_equals_its_reference(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, (4, 8)).astype(float)
    scores[:2, :3] += 3
    scores[3] = 1  # tells nothing
    made = max_t(scores[:, :3], scores[:, 3:], 0)
    statistics, p_values = max_t_reference(scores[:, :3], scores[:, 3:])
    assert made.statistics.tolist() == pytest.approx(statistics)
    assert made.p_values.tolist() == pytest.approx(p_values)
    assert made.n_orders == 56


def test_one_attack_alone_has_the_p_value_of_the_collection():
    rng = np.random.default_rng(0)
    groups, nulls = rng.normal(0.5, 1, 8), rng.normal(size=20)
    made = max_t(groups[None], nulls[None], 7)
    assert made.p_values[0] == collection_test(groups, nulls, 7).p_value


def test_many_attacks_reject_no_more_often_than_they_may_and_find_one():
    rng = np.random.default_rng(1)
    simulated = rng.normal(size=(250, 4, 12))
    p = [max_t(scores[:, :4], scores[:, 4:], 0).p_values.min() for scores in simulated]
    assert 0.01 <= np.mean(np.array(p) <= 0.05) <= 0.09
    simulated[0, 1, :4] += 9
    made = max_t(simulated[0, :, :4], simulated[0, :, 4:], 0).p_values
    assert np.flatnonzero(made <= 0.05).tolist() == [1]


def findings(*parts, attacks=("a_v1", "b_v1"), planned=("b_v1", "a_v1"), **changes):
    scores = table(*parts).with_columns(b_v1=-pl.col("a_v1"), c_v1=pl.lit(None, pl.Float64))
    made = few_books_findings(scores.lazy(), attacks, plan(**changes), planned)
    facts = {
        (
            row["check"],
            row["statistic"],
            row["subject"] if row["statistic"] == "rank_sum" else "",
        ): row
        for row in made.to_dicts()
    }
    return {(check, name): row for (check, name, _), row in facts.items()}, made


TEXTS = rows("target", [9.0, 8, 7, 0]), rows("non_member", np.arange(40) / 40)


def test_texts_have_rows_of_both_checks():
    found, made = findings(*TEXTS)
    assert made["subject"].unique().sort().to_list() == ["a_v1", "b_v1", "text"]
    values = {name: row["value"] for (check, name), row in found.items() if check == "top"}
    assert values == {
        "at_least": 2,
        "of_top": 3,
        "rank": 1,
        "n_tests": 4,
        "n_null": 40,
        "confidence": 0.95,
    }
    assert found["top", "at_least"]["verdict"] == "some"
    largest = found["max_t", "largest"]
    assert (largest["subject"], largest["verdict"], largest["reason"]) == (
        "a_v1",
        "as_planned",
        None,
    )
    own = made.filter(statistic="rank_sum")
    assert own["subject"].to_list() == ["a_v1", "b_v1"]
    assert own["p_value"][0] == largest["p_value"] < own["p_value"][1]
    counts = {name: found["max_t", name]["value"] for name in ("n_attacks", "n_tests", "n_null")}
    assert counts == {"n_attacks": 2, "n_tests": 4, "n_null": 40}


def test_where_nothing_stands_out_no_number_of_highest_is_there():
    found, _ = findings(rows("target", [0.5, 0.2]), TEXTS[1])
    assert (found["top", "at_least"]["value"], found["top", "at_least"]["verdict"]) == (0, "none")
    assert ("top", "of_top") not in found


def books(role, scores, name="document_id"):
    return [
        row
        for number, score in enumerate(scores)
        for row in rows(role, [score, score], **{name: f"{role} {number}"})
    ]


@pytest.mark.parametrize(("name", "noun"), [("document_id", "document"), ("group", "group")])
def test_texts_that_share_documents_or_groups_are_counted_as_such(name, noun):
    found, _ = findings(
        books("target", [9.0, 0.3], name), books("non_member", np.arange(40) / 40, name)
    )
    row = found["top", "n_tests"]
    assert (row["subject"], row["value"], found["max_t", "n_null"]["value"]) == (noun, 2, 40)


def test_the_bound_is_withheld_with_its_reason():
    found, _ = findings(*TEXTS, length_edges=(50,))
    at_least = found["top", "at_least"]
    assert at_least["value"] is None
    assert at_least["reason"] == "texts are compared with those of their own length alone"
    found, made = findings(*TEXTS, level="group", windows_per_group=2)
    assert found["top", "at_least"]["reason"] == "no null document has 2 windows"
    assert made.filter(check="max_t").is_empty()


def test_attacks_that_were_not_planned_are_exploratory():
    added = findings(*TEXTS, planned=["a_v1"])[0]["max_t", "largest"]
    assert added["verdict"] == "exploratory"
    assert added["reason"] == "attacks were added or left out since the plan was recorded"
    late = findings(*TEXTS, planned=None)[0]["max_t", "largest"]
    assert (late["verdict"], late["reason"]) == ("exploratory", None)


def test_one_attack_with_scores_is_no_test_of_several():
    attacks = ["a_v1", "c_v1"]
    _, made = findings(*TEXTS, attacks=attacks, planned=attacks)
    assert made["check"].unique().to_list() == ["top"]


def test_without_non_members_there_is_nothing():
    assert findings(TEXTS[0])[1].is_empty()
