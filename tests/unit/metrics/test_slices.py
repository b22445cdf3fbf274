from __future__ import annotations

import polars as pl
import pytest

from mia_batch.errors import RequestError
from mia_batch.metrics.evaluate import find_slices


def rows(found):
    return {
        name: list(range(99)[at]) if isinstance(at, slice) else at.tolist()
        for name, at in found.items()
    }


def test_each_value_is_a_slice_in_order_and_nulls_are_one():
    frame = pl.LazyFrame(
        {"member": [True] * 5, "site": ["b", None, "a", "b", None], "year": [1] * 5}
    )
    found = rows(find_slices(frame, ["site", "year"]))
    assert list(found) == ["all", "site=a", "site=b", "site=null", "year=1"]
    assert found["site=b"] == [0, 3]
    assert found["site=null"] == [1, 4]
    assert found["all"] == list(range(99))


def test_length_buckets_reach_half_a_doubling_to_either_side():
    words = [22, 23, 45, 46, 90, 91, 181, 182, 362, 363, None]
    frame = pl.LazyFrame({"member": [True] * 11 + [False] * 11, "n_words": words * 2})
    found = rows(find_slices(frame, []))
    assert {name: [words[at] for at in found[name] if at < 11] for name in list(found)[1:]} == {
        "about 32 words": [23, 45],
        "about 64 words": [46, 90],
        "about 128 words": [91, 181],
        "about 256 words": [182, 362],
    }


@pytest.mark.parametrize("words", [[32, 64, 32, 32], [32, 64, 32, 1000]])
def test_a_single_bucket_of_both_classes_is_no_slice(words):
    frame = pl.LazyFrame({"member": [True, True, False, False], "n_words": words})
    assert list(find_slices(frame, [])) == ["all"]


def test_a_missing_column_is_named():
    with pytest.raises(RequestError, match="no column 'sight' to slice by; there are member, site"):
        find_slices(pl.LazyFrame({"member": [True], "site": ["a"]}), ["sight"])


@pytest.mark.parametrize(("n", "refused"), [(50, False), (51, True)])
def test_a_column_of_many_values_is_refused(n, refused):
    frame = pl.LazyFrame({"member": [True] * n, "url": range(n)})
    if refused:
        with pytest.raises(RequestError, match="'url' has 51 values"):
            find_slices(frame, ["url"])
    else:
        assert len(find_slices(frame, ["url"])) == 51
