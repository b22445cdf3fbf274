from __future__ import annotations

from math import comb

import numpy as np

from mia_batch.inference.exchangeability import compare_lengths
from mia_batch.inference.foresight import foresee_power, length_difference
from tests.unit.inference.scored import plan, rows, table

BOOKS = table(
    *(rows("target", [0] * 4, group=f"asked {book}") for book in range(3)),
    *(rows("non_member", [0] * 4, group=f"null {book}", n_words=50 + book) for book in range(5)),
    rows("non_member", [0] * 2, group="small", n_words=None),
).lazy()
TEXTS = table(rows("target", [0] * 20), rows("non_member", [0] * 199)).lazy()


def test_power_of_texts():
    made = foresee_power(TEXTS, plan(q=0.1))
    assert made is not None
    assert (made.n_targets, made.n_null, made.adjustment, made.needed) == (20, 199, "bh", 1)


def test_power_of_texts_in_groups_counts_groups_of_nulls():
    made = foresee_power(BOOKS, plan(q=0.5))
    assert made is not None
    assert (made.n_targets, made.n_null, made.adjustment) == (12, 6, "by")


def test_power_of_groups_leaves_small_null_groups_out():
    made = foresee_power(BOOKS, plan(level="group", windows_per_group=4, q=0.5))
    assert made is not None
    assert (made.n_targets, made.n_null, made.needed) == (3, 5, 1)


def test_power_of_the_collection():
    made = foresee_power(BOOKS, plan(level="collection", windows_per_group=4))
    assert made is not None
    assert (made.n_targets, made.smallest_p) == (1, 1 / comb(8, 3))


def test_power_with_buckets_is_that_of_the_largest():
    lengths = table(
        rows("target", [0] * 3, n_words=10),
        rows("non_member", [0] * 9, n_words=12),
        rows("non_member", [0] * 30, n_words=80),
    )
    made = foresee_power(lengths.lazy(), plan(length_edges=(50,)))
    assert made is not None
    assert made.n_null == 9


def test_one_side_alone_has_no_power():
    assert foresee_power(table(rows("target", [1])).lazy(), plan()) is None


def test_lengths_are_compared_by_group():
    assert length_difference(BOOKS) == compare_lengths(
        np.array([100.0] * 3), np.array([50.0, 51, 52, 53, 54])
    )
