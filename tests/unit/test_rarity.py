"""Rarity against its definition: counted among other groups, weighed n-gram by n-gram."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch import _native
from mia_batch.kernels import RarityTable
from tests.reference_scores import ngrams

if TYPE_CHECKING:
    from collections import Counter

TEXTS = st.lists(st.sampled_from("abcde"), max_size=7).map(" ".join)
ROWS = st.lists(st.tuples(st.integers(0, 3), TEXTS, TEXTS), min_size=1, max_size=8)
FIELDS = ("rarity_leading", "rarity_1", "rarity_2", "rarity_3")


def table(rows: list[tuple[int, str, str]]) -> RarityTable:
    frame = pl.DataFrame(
        [(group, candidate) for group, candidate, _ in sorted(rows, key=lambda row: row[0])],
        schema={"row": pl.UInt32, "candidate": pl.String},
        orient="row",
    )
    n_groups = frame["row"].n_unique()
    return RarityTable.count([frame], n_groups=n_groups, words="whitespace")


def weighed(counted: RarityTable, candidate: str | None, reference: str | None) -> dict[str, float]:
    pair = pl.DataFrame(
        {"c": [candidate], "r": [reference]}, schema={"c": pl.String, "r": pl.String}
    )
    found: dict[str, float] = pair.select(counted.weigh("c", "r", words="whitespace")).item()
    return found


def by_definition(rows, group: int, candidate: str, reference: str) -> list[float]:
    """Sums over shared n-grams of ln(T / (1 + df)), df among the candidates of other groups."""
    groups = {each for each, _, _ in rows}
    said = {
        each: {
            gram
            for other, text, _ in rows
            if other == each
            for n in (1, 2, 3)
            for gram in ngrams(text.split(), n)
        }
        for each in groups
    }

    def weight(gram: tuple[str, ...]) -> float:
        return log(len(groups) / (1 + sum(gram in said[other] for other in groups - {group})))

    true = reference.split()
    cut = candidate.split()[: len(true)]
    leading = 0.0
    for left, right in zip(cut, true, strict=False):
        if left != right:
            break
        leading += weight((left,))
    sums = [leading]
    for n in (1, 2, 3):
        shared: Counter[tuple[str, ...]] = ngrams(cut, n) & ngrams(true, n)
        sums.append(sum(count * weight(gram) for gram, count in shared.items()))
    return sums


def test_by_hand():
    """Three groups; "the" is said in all, "cat" in one."""
    rows = [(0, "the cat", ""), (1, "the dog", ""), (2, "the dog", "")]
    found = weighed(table(rows), "the cat sat", "the cat ran")
    assert found["rarity_leading"] == pytest.approx(log(3 / 3) + log(3 / 1))
    assert found["rarity_2"] == pytest.approx(log(3))
    assert found["rarity_3"] == 0


@given(ROWS)
def test_weights_are_those_of_the_definition(rows):
    counted = table(rows)
    for group, candidate, reference in rows:
        found = weighed(counted, candidate, reference)
        wanted = by_definition(rows, group, candidate, reference)
        assert [found[name] for name in FIELDS] == pytest.approx(wanted, abs=1e-12)


@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_groups_changes_nothing(rows, random):
    renamed = list({group for group, _, _ in rows})
    random.shuffle(renamed)
    places = {group: place for place, group in enumerate(renamed)}
    other = [(places[group], candidate, text) for group, candidate, text in rows]
    one, two = table(rows).rows("target", "probe"), table(other).rows("target", "probe")
    assert one.equals(two)


@given(ROWS, TEXTS)
def test_a_stored_table_weighs_as_before(rows, text):
    counted = table(rows)
    stored = counted.rows("target", "probe")
    again = RarityTable.stored(stored)
    if stored.height:  # a table of nothing knows no groups
        assert weighed(again, text, text) == weighed(counted, text, text)


def test_of_another_runs_table_the_text_is_one_more():
    rows = table([(0, "a", ""), (1, "b", "")]).rows("target", "probe")
    other = RarityTable.stored(rows, counted=pl.lit(value=False))
    found = weighed(other, "a c", "a c")
    assert found["rarity_1"] == pytest.approx(log(3 / 2) + log(3 / 1))


def test_null_gives_null():
    counted = table([(0, "a", "")])
    for pair in ((None, "a"), ("a", None)):
        assert weighed(counted, *pair) is None or set(weighed(counted, *pair).values()) == {None}


@given(st.lists(TEXTS, min_size=1, max_size=9), st.data())
def test_neither_order_nor_the_borders_of_batches_change_a_bit(texts, data):
    frame = pl.DataFrame({"row": range(len(texts)), "candidate": texts})
    cuts = data.draw(st.lists(st.integers(0, len(texts)), max_size=3).map(sorted))
    pieces = [frame[a:b] for a, b in pairwise([0, *cuts, len(texts)])]
    shuffled = frame[data.draw(st.permutations(range(len(texts))))]
    counts = []
    for batches in ([frame], pieces, [shuffled]):
        native = _native.RarityTable(6)  # so few entries that n-grams share them
        for batch in batches:
            groups = batch["row"].cast(pl.UInt32).rechunk()
            native.add(batch["candidate"].rechunk(), groups, words="whitespace")
        counts.append(pl.Series(native.counts()).to_list())
    assert counts[0] == counts[1] == counts[2]


def test_the_number_of_threads_changes_no_bit():
    script = """
import hashlib, polars as pl
from mia_batch import _native
from mia_batch.kernels import RarityTable
texts = [" ".join(str(n * place % 97) for place in range(40)) for n in range(500)]
frame = pl.DataFrame({"row": range(500), "candidate": texts, "true": texts[::-1]})
table = RarityTable.count([frame], n_groups=500, words="whitespace")
weighed = frame.select(table.weigh("candidate", "true", words="whitespace")).unnest("rarity")
numbers = weighed.to_numpy().tobytes() + table.rows("m", "v")["count"].to_numpy().tobytes()
print(hashlib.sha256(numbers).hexdigest())
"""
    digests = {
        subprocess.check_output(
            [sys.executable, "-c", script],
            env=os.environ | {"RAYON_NUM_THREADS": threads},
        )
        for threads in ("1", "4")
    }
    assert len(digests) == 1


def test_colliding_n_grams_of_several_samples_count_once_for_a_group():
    """Of two entries, each is said in both groups, so every weight is that of the definition."""
    native = _native.RarityTable(1)
    rows = pl.DataFrame({"row": [0, 0, 1], "candidate": ["a b c d", "e f g h", "i j k l m n"]})
    native.add(rows["candidate"], rows["row"].cast(pl.UInt32), words="whitespace")
    assert pl.Series(native.counts()).to_list() == [2, 2]
    assert weighed(RarityTable(native, 2), "a b", "a b")["rarity_1"] == 0
    apart = RarityTable(native, 2, pl.lit(value=False))
    assert weighed(apart, "a b", "a b")["rarity_1"] == 0  # ln(3 / (1 + 2))


def test_nothing_shared_weighs_exactly_nothing():
    found = weighed(table([(0, "a", "")]), "a", "b")
    assert {str(number) for number in found.values()} == {"0.0"}  # never -0.0
