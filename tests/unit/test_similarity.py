"""Similarity of first words: a cosine of embeddings, 1 for equal words."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.features import similarity

WORDS = st.sampled_from(["", "dog", "cat", "whale,", "né", "漢字", "the"])


def cosines(*pairs: tuple[str | None, str | None]) -> list[float | None]:
    frame = pl.DataFrame(pairs, schema={"c": pl.String, "r": pl.String}, orient="row")
    expr = similarity(pl.col("c"), pl.col("r"), words="whitespace")
    return frame.select(expr).unnest("similarity")["similarity"].to_list()


def test_only_the_first_words_count():
    assert cosines((" dog barks", "dog sleeps")) == pytest.approx([1.0])


def test_words_of_like_meaning_are_nearer():
    like, unlike = cosines(("king", "queen"), ("king", "carrot"))
    assert like is not None
    assert unlike is not None
    assert 0 < unlike + 0.2 < like < 1


def test_an_empty_text_is_like_nothing_and_null_gives_null():
    assert cosines(("", "dog"), ("dog", " "), (None, "dog"), ("dog", None)) == [0, 0, None, None]


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6))
def test_it_is_symmetric_and_the_same_whatever_the_batch(pairs):
    together = cosines(*pairs)
    assert together == [cosines(pair)[0] for pair in pairs]
    assert together == cosines(*(pair[::-1] for pair in pairs))
    for (one, other), found in zip(pairs, together, strict=True):
        assert found == pytest.approx(1.0 if one == other and one else found)
