from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch import tables
from mia_batch.tables import RowIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = st.lists(st.none() | st.sampled_from("abcde"), max_size=30)


def index_of(keys: Sequence[str | None]) -> RowIndex:
    return RowIndex(pl.LazyFrame({"key": keys}, schema={"key": pl.String}))


@given(KEYS, KEYS)
def test_every_row_of_a_key_is_found_in_order(table, keys):
    index = index_of(table)
    which, rows = index.find(pl.Series(keys, dtype=pl.String))
    expected = [
        (place, row)
        for place, key in enumerate(keys)
        for row, known in enumerate(table)
        if key is not None and key == known
    ]
    assert list(zip(which.tolist(), rows.tolist(), strict=True)) == expected
    counts = [0 if key is None else table.count(key) for key in keys]
    assert index.count(pl.Series(keys, dtype=pl.String)).tolist() == counts


@pytest.mark.parametrize("keys", [[], [None], ["a", None, "a"]])
def test_the_height_counts_rows_without_key(keys):
    assert index_of(keys).height == len(keys)


def test_rows_of_several_reads_are_found(monkeypatch):
    monkeypatch.setattr(tables, "_ROWS_AT_ONCE", 300)
    keys = [f"{number % 800}" for number in range(2000)]
    which, found = index_of(keys).find(pl.Series(["7", "x", "799"]))
    assert which.tolist() == [0, 0, 0, 2, 2]
    assert found.tolist() == [7, 807, 1607, 799, 1599]


def test_building_holds_no_second_index():
    n_keys = 300_000
    keys = pl.LazyFrame({"key": pl.int_range(n_keys, eager=True).cast(pl.String)})
    tracemalloc.start()
    try:
        index = RowIndex(keys)
        peak = tracemalloc.get_traced_memory()[1]  # the index itself is mapped, so not in it
    finally:
        tracemalloc.stop()
    assert index.n_keys == n_keys
    assert peak < 12 * n_keys
