from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.diagnostics.copies import Copies, find_copies

SCHEMA = {"target_id": pl.String, "target": pl.String, "group": pl.String}


def frame(*rows):
    return pl.LazyFrame(
        [(str(place), *row) for place, row in enumerate(rows)], SCHEMA, orient="row"
    )


def test_copies_count_where_their_clusters_differ():
    found = find_copies(
        frame(
            ("one", "a"),
            ("one", "a"),
            ("two", "a"),
            ("two", "b"),
            ("two", "b"),
            ("three", None),
            ("three", None),
            (None, "a"),
            (None, "b"),
            ("four", "c"),
        )
    )
    assert found == Copies(n_texts=8, n_copies=5)


@given(
    st.lists(st.tuples(st.sampled_from(["x", "y", "z", None]), st.sampled_from(["a", "b", None])))
)
def test_they_are_those_of_a_slow_search(rows):
    named = [(text, group or place) for place, (text, group) in enumerate(rows) if text is not None]
    slow = sum(
        any(text == other and name != elsewhere for other, elsewhere in named)
        for text, name in named
    )
    assert find_copies(frame(*rows)) == Copies(n_texts=len(named), n_copies=slow)


@pytest.mark.parametrize(("n_texts", "n_copies"), [(0, 0), (100, 0), (300, 2)])
def test_few_are_not_worth_a_warning(n_texts, n_copies):
    assert Copies(n_texts=n_texts, n_copies=n_copies).warning is None


def test_many_are():
    assert Copies(n_texts=2000, n_copies=20).warning == (
        "20 of 2,000 texts stand in another group or document, too, word for word: their errors "
        "move together, but intervals and p-values count them as independent. Give copies the same "
        "group, or keep one of each."
    )
