"""Shared runs of words equal a reference implementation's on random texts and Arrow layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from mia_batch import _native
from mia_batch.kernels import shared_runs
from tests import arrow
from tests.reference_kernels import QUICK_RULES, SPLIT

if TYPE_CHECKING:
    from mia_batch.kernels import WordRule

text = st.lists(st.sampled_from(["a", "b", "B", "the", "café", "你好", "\n"]), max_size=20).map(
    " ".join
)
texts = st.lists(st.none() | text, max_size=6)
run_words = st.integers(1, 5)


def runs(text: str | None, n: int, rule: WordRule) -> list[tuple[str, ...]]:
    words = [] if text is None else SPLIT[rule](text)
    return [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]


def reference(
    text: str | None, others: list[str | None], n: int, rule: WordRule
) -> tuple[int | None, int | None, int | None]:
    if text is None:
        return None, None, None
    held = [runs(other, n, rule) for other in others]
    holders = [
        next((place for place, other in enumerate(held) if run in other), None)
        for run in runs(text, n, rule)
    ]
    shared = [holder for holder in holders if holder is not None]
    return len(holders), len(shared), next(iter(shared), None)


@given(texts, texts, run_words, st.sampled_from(QUICK_RULES))
def test_shared_runs_equal_the_slow_reference(texts, others, n, rule):
    found = shared_runs(
        pl.Series(texts, dtype=pl.String),
        pl.Series(others, dtype=pl.String),
        run_words=n,
        words=rule,
    )
    assert found.rows() == [reference(text, others, n, rule) for text in texts]


@given(texts, texts, st.data())
def test_layouts_change_nothing(texts, others, data):
    offset = data.draw(st.integers(0, len(others)))
    native = _native.shared_runs(
        arrow.strings(texts, "utf8", offset=0),
        arrow.strings(others, "large_utf8", offset=offset),
        words="whitespace",
        run_words=2,
    )
    expected = [reference(text, others[offset:], 2, "whitespace") for text in texts]
    assert pl.Series(native).struct.unnest().rows() == expected
