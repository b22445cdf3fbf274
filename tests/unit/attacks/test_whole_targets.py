from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.attacks import whole_targets as module
from mia_batch.attacks.whole_targets import whole_targets


def pairs_of(*keys: tuple[int, int]) -> pl.LazyFrame:
    return pl.LazyFrame(keys, schema={"row": pl.UInt32, "sample_index": pl.UInt32}, orient="row")


@pytest.mark.parametrize("at_once", [1, 2, 3, 1000])
def test_a_target_is_never_split(monkeypatch, at_once):
    monkeypatch.setattr(module, "_PAIRS_AT_ONCE", at_once)
    pairs = pairs_of((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (1, 2), (3, 5))
    batches = [batch for batch in whole_targets(pairs, 5) if batch.height]
    seen = [row for batch in batches for row in batch["row"].unique(maintain_order=True)]
    assert sorted(seen) == [0, 1, 2, 3]
    assert (
        pl.concat(batches)
        .sort("row", "sample_index")
        .equals(pairs.collect().sort("row", "sample_index"))
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), unique=True), st.integers(1, 20))
def test_every_pair_comes_once_and_sorted(keys, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PAIRS_AT_ONCE", at_once)
        batches = list(whole_targets(pairs_of(*keys), 6))
    given_keys = [batch.rows() for batch in batches]
    assert given_keys == [sorted(batch) for batch in given_keys]
    assert sorted(key for batch in given_keys for key in batch) == sorted(keys)


@pytest.mark.parametrize("n_targets", [0, 3])
def test_no_pairs(n_targets):
    assert [batch.rows() for batch in whole_targets(pairs_of(), n_targets) if batch.height] == []
