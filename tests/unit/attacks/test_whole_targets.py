from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.attacks.apply import count_rows, whole_targets


def regrouped(keys: list[tuple[int, int]], at_once: int, n_targets: int) -> list[pl.DataFrame]:
    schema = {"row": pl.UInt32, "sample_index": pl.UInt32}
    batches = [
        pl.DataFrame(keys[start : start + at_once], schema=schema, orient="row")
        for start in range(0, max(len(keys), 1), at_once)
    ]
    return [
        batch
        for batch in whole_targets(batches, count_rows(batches, n_targets), ("sample_index",))
        if batch.height
    ]


@pytest.mark.parametrize("at_once", [1, 2, 3, 1000])
def test_a_target_is_never_split(at_once):
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (1, 2), (3, 5)]
    batches = regrouped(keys, at_once, 5)
    seen = [row for batch in batches for row in batch["row"].unique(maintain_order=True)]
    assert sorted(seen) == [0, 1, 2, 3]
    assert sorted(row for batch in batches for row in batch.rows()) == sorted(keys)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), unique=True), st.integers(1, 20))
def test_every_row_comes_once_and_sorted(keys, at_once):
    given_keys = [batch.rows() for batch in regrouped(keys, at_once, 6)]
    assert given_keys == [sorted(batch) for batch in given_keys]
    assert sorted(key for batch in given_keys for key in batch) == sorted(keys)


def test_what_is_complete_is_counted_down_to_zero():
    batches = [pl.DataFrame({"row": [0, 2, 2], "sample_index": [0, 0, 1]})]
    counts = count_rows(batches, 4)
    assert counts.tolist() == [1, 0, 2, 0]
    assert next(whole_targets(batches, counts, ("sample_index",))).height == 3
    assert counts.tolist() == [0] * 4


@pytest.mark.parametrize("n_targets", [0, 3])
def test_no_rows(n_targets):
    assert regrouped([], 5, n_targets) == []
