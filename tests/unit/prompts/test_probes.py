"""Points of a text: where they stand, what is asked there, and that more are added to fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.prompts.views import LEAST_CONTEXT, probes
from tests import frames

if TYPE_CHECKING:
    from mia_batch.kernels import WordRule

LETTERS = st.text(st.sampled_from("aé漢.😀"), min_size=1, max_size=3)
TEXTS = st.lists(LETTERS, max_size=40).map("  ".join)


def asked(
    *texts: str, n: int = 4, every: int = 4, n_words: int = 1, words: WordRule = "whitespace"
) -> pl.DataFrame:
    targets = frames.targets(*({"target": text} for text in texts))
    return probes(targets, n=n, every=every, n_words=n_words, words=words)


def contexts(text: str, found: pl.DataFrame) -> list[str]:
    return [text.encode()[:cut].decode() for cut in found["cut"].drop_nulls()]


def test_points_of_one_text_by_hand():
    text = " ".join(f"é{number}" for number in range(30))  # points behind word 8, 12, .., 28
    found = asked(text, n_words=2)
    assert found["view_index"].to_list() == [0, 1, 2, 3]
    assert found["text"].to_list() == [" é8 é9", " é24 é25", " é16 é17", " é12 é13"]
    assert [each.split()[-1] for each in contexts(text, found)] == ["é7", "é23", "é15", "é11"]
    assert found["reason"].to_list() == [None] * 4


def test_the_last_row_says_that_there_are_no_further_points():
    found = asked("a " * LEAST_CONTEXT + "b", "too short", "")
    assert found["target_id"].to_list() == [frames.target_id(number) for number in (0, 0, 1, 2)]
    assert found["view_index"].to_list() == [0, 3, 3, 3]
    assert found["reason"].to_list() == [None, *["the text has no further point"] * 3]
    assert found["text"].to_list() == [" b", None, None, None]


@given(TEXTS, st.integers(1, 12), st.integers(1, 6), st.integers(1, 3))
def test_every_prompt_ends_with_a_word_and_asks_for_the_next(text, n, every, n_words):
    found = asked(text, n=n, every=every, n_words=n_words).filter(pl.col("reason").is_null())
    words = text.split()
    possible = range(LEAST_CONTEXT, len(words) - n_words + 1, every)
    assert found.height == min(len(possible), n)
    places = []
    for context, next_words in zip(contexts(text, found), found["text"], strict=True):
        places.append(len(context.split()))
        assert context.split() + next_words.split() == words[: places[-1] + n_words]
        assert text.startswith(context + next_words)
    assert len({*places} & {*possible}) == found.height


@given(TEXTS, st.integers(1, 8), st.integers(0, 8))
def test_fewer_points_are_the_first_of_more(text, n, further):
    few, many = asked(text, n=n), asked(text, n=n + further)
    there = few.filter(pl.col("reason").is_null())
    assert there.equals(many.filter(pl.col("reason").is_null()).head(there.height))


def test_the_first_points_are_spread_over_the_text():
    text = " ".join(f"w{number}" for number in range(8 + 64))
    found = asked(text, n=16, every=1)
    for n in (2, 4, 8, 16):
        places = sorted(len(each.split()) - 8 for each in contexts(text, found.head(n)))
        assert places == [64 // n * number for number in range(n)]


@pytest.mark.parametrize(("rule", "next_words"), [("unicode", "我"), ("rouge", " b")])
def test_words_are_those_of_the_rule(rule, next_words):
    text = "你好我" * 8 if rule == "unicode" else "a-" * 7 + "a b"
    assert asked(text, words=rule, every=100)["text"][0] == (
        "我" if rule == "unicode" else next_words
    )
