from __future__ import annotations

from math import comb

import numpy as np
import pytest

from mia_batch.inference.conformal import q_values
from mia_batch.inference.few_books import needed_for_bound, top_bound
from mia_batch.inference.power import (
    nulls_to_name,
    planned_power,
    power,
    power_findings,
)
from tests.unit.inference.scored import plan, rows, table

BOOKS = table(
    *(rows("target", [0] * 4, group=f"asked {book}") for book in range(3)),
    *(rows("non_member", [0] * 4, group=f"null {book}", n_words=50 + book) for book in range(5)),
    rows("non_member", [0] * 2, group="small", n_words=None),
).lazy()
TEXTS = table(rows("target", [0] * 20), rows("non_member", [0] * 199)).lazy()


def test_power_of_texts():
    made = planned_power(TEXTS, plan(q=0.1))
    assert made is not None
    assert (made.n_tests, made.n_null, made.needed) == (20, 199, 1)


def test_power_of_texts_in_groups_counts_groups_of_nulls():
    made = planned_power(BOOKS, plan(q=0.5))
    assert made is not None
    assert (made.n_tests, made.n_null, made.needed) == (12, 6, 11)


def test_power_of_groups_leaves_small_null_groups_out():
    made = planned_power(BOOKS, plan(level="group", windows_per_group=4, q=0.5))
    assert made is not None
    assert (made.n_tests, made.n_null, made.needed) == (3, 5, 1)


def test_power_of_the_collection():
    made = planned_power(BOOKS, plan(level="collection", windows_per_group=4))
    assert made is not None
    assert (made.n_tests, made.n_null, made.together) == (3, 5, 1 / comb(8, 3))


def test_power_with_buckets_is_that_of_the_largest():
    lengths = table(
        rows("target", [0] * 3, n_words=10),
        rows("non_member", [0] * 9, n_words=12),
        rows("non_member", [0] * 30, n_words=80),
    )
    made = planned_power(lengths.lazy(), plan(length_edges=(50,)))
    assert made is not None
    assert made.n_null == 9
    assert made.for_bound is None


def test_texts_of_a_length_without_enough_nulls_cannot_make_a_list():
    def power_of(*n_words):
        lengths = [rows("target", [0], n_words=n) for n in n_words]
        nulls = rows("non_member", [0] * 19, n_words=10), rows("non_member", [0] * 9, n_words=80)
        made = planned_power(table(*lengths, *nulls).lazy(), plan(length_edges=(50,)))
        assert made is not None
        return made

    assert power_of(10, 10).needed == 2
    assert power_of(10, 80).needed is None
    assert power_of(80, 80).smallest_p == 0.1


def test_groups_with_too_few_windows_stay_in_the_number_of_tests():
    short = [rows("target", [0] * 2, group=f"short {number}") for number in range(3)]
    books = table(BOOKS.collect().to_dicts(), *short).lazy()
    for q, needed in ((0.5, 2), (0.3, None)):
        made = planned_power(books, plan(level="group", windows_per_group=4, q=q))
        assert made is not None
        assert (made.n_tests, made.n_usable, made.needed) == (6, 3, needed)


def test_one_side_alone_has_no_power():
    assert planned_power(table(rows("target", [1])).lazy(), plan()) is None


def test_a_thousand_targets_and_300_nulls_need_67():
    made = power(1000, 300, 0.05, "bh")
    assert made.needed == 67
    assert made.smallest_p == 1 / 301


@pytest.mark.parametrize("n_null", [5, 18, 19, 40, 199, 1000])
@pytest.mark.parametrize("adjustment", ["bh", "by"])
def test_so_many_that_beat_every_null_are_reported_and_one_fewer_are_not(n_null, adjustment):
    made = power(20, n_null, 0.1, adjustment)
    p = np.ones(20)
    for above in range(1, 21):
        p[:above] = made.smallest_p
        reported = (q_values(p, adjustment) <= 0.1).sum() > 0
        assert reported == (made.needed is not None and above >= made.needed)


def test_nothing_can_be_below_one_over_q():
    assert power(50, 18, 0.05, "bh").needed is None
    assert power(50, 19, 0.05, "bh").needed == 50
    assert power(50, 0, 0.05, "bh").needed is None


def test_a_lone_target_needs_m_over_q_nulls():
    assert power(20, 199, 0.1, "bh").needed == 1
    assert power(20, 198, 0.1, "bh").needed == 2


def test_benjamini_yekutieli_divides_q_by_the_harmonic_sum():
    harmonic = sum(1 / i for i in range(1, 1001))
    assert power(1000, 3000, 0.05, "by").needed == -int(-1000 * harmonic // (0.05 * 3001))


def test_e_values_need_as_many_as_their_largest_e_value_says():
    made = power(27, 99, 0.05, "e-bh")  # two ranks count: 100 / (1 + 1/2)
    assert made.smallest_p == pytest.approx(0.015)
    assert made.needed == 9  # 27 * 0.015 / 0.05 = 8.1


def facts(targets, **changes):
    found = power_findings(targets, plan(**changes))
    return {row["statistic"]: (row["value"], row["verdict"]) for row in found.to_dicts()}


@pytest.mark.parametrize(("n_null", "needed"), [(20, 48), (40, 25), (100, 10), (300, 4)])
def test_fifty_books_need_so_many_that_stand_out(n_null, needed):
    assert power(50, n_null, 0.05, "bh").needed == needed


@pytest.mark.parametrize("adjustment", ["bh", "by", "e-bh"])
@pytest.mark.parametrize("named", [1, 5, 20])
def test_so_many_nulls_name_as_many_and_one_fewer_do_not(named, adjustment):
    n_null = nulls_to_name(named, 27, 0.05, adjustment)
    assert power(27, n_null, 0.05, adjustment).needed <= named
    fewer = power(27, n_null - 1, 0.05, adjustment).needed
    assert fewer is None or fewer > named
    assert nulls_to_name(5, 27, 0.05, "bh") == 107


@pytest.mark.parametrize(("m", "n"), [(27, 25), (50, 20), (50, 100), (20, 199)])
def test_a_bound_needs_so_many_that_stand_out_and_one_fewer_give_none(m, n):
    needed = needed_for_bound(m, n)
    assert needed is not None
    targets = np.full(m, -1.0)
    targets[: needed - 1] = 2
    assert top_bound(targets, m, np.zeros(n)).at_least == 0
    targets[needed - 1] = 2
    assert top_bound(targets, m, np.zeros(n)).at_least >= 1
    assert needed_for_bound(3, 2) is None


def test_findings_about_power():
    found = power_findings(TEXTS, plan(q=0.1))
    assert found.select("check", "subject").unique().rows() == [("power", "target")]
    assert facts(TEXTS, q=0.1) == {
        "n_tests": (20, "text"),
        "n_usable": (20, None),
        "n_null": (199, None),
        "together": (1 / 10_000, "possible"),
        "smallest_p": (1 / 200, None),
        "q": (0.1, "bh"),
        "needed": (1, "possible"),
        "for_bound": (needed_for_bound(20, 199), "possible"),
        "n_named": (1, None),
        "nulls_needed": (199, None),
    }
    assert facts(TEXTS, q=0.001)["needed"] == (None, "impossible")
    assert facts(BOOKS, level="collection") == {
        "n_tests": (3, "group"),
        "n_usable": (3, None),
        "n_null": (6, None),
        "together": (1 / comb(9, 3), "possible"),
        "nulls_needed": (3, None),
    }
    assert power_findings(table(rows("target", [1])).lazy(), plan()).is_empty()
