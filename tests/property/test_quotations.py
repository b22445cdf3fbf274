"""The search for passages in other documents against one that compares all words."""

import re

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch.diagnostics import preflight
from mia_batch.diagnostics.preflight import RUN_WORDS, find_elsewhere

OWNERS = st.integers(0, 3)
BASE = [f"w{number}" for number in range(60)]
PIECES = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(1, 45), st.sampled_from([" ", ", ", "\n"])
    ),
    min_size=1,
    max_size=4,
)
TEXTS = PIECES.map(
    lambda pieces: " ".join(mark.join(BASE[at : at + n]) for at, n, mark in pieces)
)


def plain(text):
    return re.findall(r"\w+", text.lower())


def longest_run(one, other):
    longest, before = 0, [0] * (len(other) + 1)
    for word in one:
        before = [
            0,
            *(before[b] + 1 if word == each else 0 for b, each in enumerate(other)),
        ]
        longest = max(longest, *before)
    return longest


@settings(max_examples=40)
@given(
    st.lists(st.tuples(TEXTS, OWNERS, st.booleans()), min_size=1, max_size=4),
    st.lists(st.tuples(st.none() | TEXTS, OWNERS), max_size=5),
)
def test_the_first_other_document_with_a_run_is_found(passages, documents):
    asked = pl.DataFrame(
        {
            "passage": [text.upper() if loud else text for text, _, loud in passages],
            "owner": pl.Series([owner for _, owner, _ in passages], dtype=pl.UInt64),
        }
    )
    searched = pl.LazyFrame(
        {
            "text": pl.Series([text for text, _ in documents], dtype=pl.String),
            "owner": pl.Series([owner for _, owner in documents], dtype=pl.UInt64),
            "name": pl.Series(
                [f"d{number}" for number in range(len(documents))], dtype=pl.String
            ),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight, "_PASSAGES_AT_ONCE", 2)
        found = find_elsewhere(asked, searched)
    for (text, owner, _), row in zip(
        passages, found.iter_rows(named=True), strict=True
    ):
        words = plain(text)
        runs = [
            (f"d{number}", longest_run(words, plain(other)))
            for number, (other, its) in enumerate(documents)
            if other is not None and its != owner
        ]
        name, longest = next(
            ((name, n) for name, n in runs if n >= RUN_WORDS), (None, None)
        )
        assert (row["name"], row["longest_words"]) == (name, longest)
        is_long = len(words) >= RUN_WORDS
        assert row["common"] == (name is not None if is_long and runs else None)
        nowhere = preflight._NOWHERE if runs else preflight._NO_OTHER
        assert row["reason"] == (
            None if name else nowhere if is_long else preflight._TOO_SHORT
        )
