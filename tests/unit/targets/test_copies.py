from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch import targets
from mia_batch.targets import Passages


def reference(texts):
    """Say of which texts 70 % of the runs of 8 words came before; nothing of those with few."""
    before: set[tuple[str, ...]] = set()
    found = []
    for text in texts:
        words = text.lower().split()
        runs = [tuple(words[place : place + 8]) for place in range(len(words) - 7)]
        found.append(len(runs) >= 4 and sum(run in before for run in runs) >= 0.7 * len(runs))
        before.update(runs)
    return found


TEXTS = st.lists(st.integers(0, 60).map(lambda n: " ".join(f"w{i}" for i in range(n, n + 14))))


@given(texts=TEXTS, split=st.integers(0, 20))
def test_copies_are_those_of_the_reference(texts, split):
    passages = Passages()
    found = [*passages.are_copies(texts[:split]), *passages.are_copies(texts[split:])]
    assert found == reference(texts)


def test_case_and_punctuation_hide_no_copy():
    first = "Call me Ishmael. Some years ago—never mind how long precisely—having little money"
    other = "call me ishmael some years ago, never mind how long precisely; HAVING LITTLE money"
    assert Passages().are_copies([first, other]).tolist() == [False, True]
    assert Passages().are_copies([]).tolist() == []


@pytest.mark.parametrize("most", [1 << 24, 20_000, 4_000])
def test_passages_are_found_again_in_bounded_memory(monkeypatch, most):
    """Of texts of 121 runs even a few runs each are enough."""
    monkeypatch.setattr(targets, "_MOST_KEPT", most)
    monkeypatch.setattr(targets, "_TEXTS_AT_ONCE", 32)
    rng = random.Random(7)
    words = [str(rng.random()) for _ in range(128 * 400)]
    words = [word.replace(".", "") for word in words]
    texts = [" ".join(words[start : start + 128]) for start in range(0, len(words), 128)]
    moved = [" ".join(words[start : start + 128]) for start in range(50, len(words) - 128, 128)]
    passages = Passages()
    assert not passages.are_copies(texts).any()
    found = passages.are_copies(moved)
    assert found.mean() > (0.99 if most >= 20_000 else 0.6)
    assert sum(part.size for part in passages._kept) <= most
    one_by_one = Passages()
    assert [one_by_one.are_copies([text])[0] for text in texts + moved] == [False] * 400 + [*found]
