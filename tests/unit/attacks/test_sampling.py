from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.attacks import defaults, get, score
from mia_batch.features import build_features
from mia_batch.kernels import GROUPS
from tests import frames, reference_scores

if TYPE_CHECKING:
    from collections.abc import Sequence

FAMILY = [*defaults("matched"), *defaults("samia")]

# Reference: 4 words. Candidate 0: 5 words, of which the first 4 count when matched; candidate 1: 2.
REFERENCE = "a b a c"
CANDIDATES = ["a b x a b", "b a"]
BY_HAND = {
    # overlaps of whole candidates, N = 1: 3 (a, a, b), 2; N = 2: 1 ("a b"), 1 ("b a")
    "samia_v1": (3 / 4 + 2 / 4) / 2,
    "samia_n2_v1": (1 / 4 + 1 / 4) / 2,
    "samia_n3_v1": 0.0,
    "samia_n5_v1": 0.0,
    "samia_precision_v1": (3 / 5 + 2 / 2) / 2,
    "samia_precision_n2_v1": (1 / 5 + 1 / 2) / 2,
    # of "a b x a" and "b a", N = 1: 3, 2; N = 2: 1, 1
    "samia_matched_v1": (3 / 4 + 2 / 4) / 2,
    "samia_matched_n2_v1": (1 / 3 + 1 / 3) / 2,
    "samia_matched_n4_v1": 0.0,
    "samia_matched_n5_v1": None,
    "samia_matched_precision_v1": (3 / 4 + 2 / 2) / 2,
    "samia_matched_precision_n2_v1": (1 / 3 + 1 / 1) / 2,
    "samia_matched_precision_n3_v1": 0.0,  # candidate 1 has no trigram
    "samia_matched_precision_n5_v1": None,
}


def scores(reference: str, candidates: Sequence[str]) -> dict[str, float | None]:
    """Scores of one target, by attack."""
    targets = frames.targets({"reference": reference})
    samples = frames.samples(candidates)
    features = build_features(
        samples,
        frames.units(targets),
        words="whitespace",
        preset="default",
        text_length=None,
        groups=GROUPS,
    )
    chosen = [get(name) for name in FAMILY]
    scored = pl.concat(score(features.lazy(), targets.lazy(), chosen))
    return scored.select(FAMILY).row(0, named=True)


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name):
    assert scores(REFERENCE, CANDIDATES)[name] == BY_HAND[name]


def test_compressed_sizes_by_hand():
    """So short a text becomes a fixed block: its own bytes and 8 more."""
    whole, matched, second = 9 + 8, 7 + 8, 3 + 8
    given_scores = scores(REFERENCE, CANDIDATES)
    assert given_scores["samia_zlib_v1"] == (3 / 4 * whole + 2 / 4 * second) / 2
    assert given_scores["samia_zlib_n2_v1"] == (1 / 4 * whole + 1 / 4 * second) / 2
    assert given_scores["samia_plus_zlib_v1"] == (3 / 4 + whole + 2 / 4 + second) / 2
    assert given_scores["samia_matched_zlib_v1"] == (3 / 4 * matched + 2 / 4 * second) / 2
    assert given_scores["samia_matched_zlib_n2_v1"] == (1 / 3 * matched + 1 / 3 * second) / 2


def test_a_perfect_regurgitation_scores_exactly_one():
    reference = " ".join(f"word{n}" for n in range(37))
    given_scores = scores(f" {reference}", [reference, f" {reference} and on", f"\n{reference}"])
    for n in reference_scores.SIZES:
        assert given_scores[reference_scores.name("samia_matched", n)] == 1.0
        assert given_scores[reference_scores.name("samia_matched_precision", n)] == 1.0
    assert given_scores["samia_v1"] == 1.0


def test_unrelated_text_scores_exactly_zero():
    given_scores = scores("a b c d e f g", ["u v w x y z", "", "1 2 3"])
    shares = [name for name in FAMILY if name != "samia_plus_zlib_v1"]
    assert {given_scores[name] for name in shares} == {0.0}


def test_an_empty_candidate_counts_as_a_sample_that_shares_nothing():
    given_scores = scores("a b", ["a b", ""])
    assert given_scores["samia_v1"] == 0.5
    assert given_scores["samia_precision_v1"] == 0.5
    assert given_scores["samia_matched_v1"] == 0.5
    assert given_scores["samia_matched_precision_v1"] == 0.5
    assert given_scores["samia_plus_zlib_v1"] == (1 + 11 + 0 + 8) / 2


def test_an_empty_reference_gives_0_to_the_authors_and_null_where_matched():
    given_scores = scores("", ["a b"])
    assert {given_scores[name] for name in ("samia_v1", "samia_precision_v1", "samia_zlib_v1")} == {
        0.0
    }
    assert {given_scores[name] for name in defaults("matched")} == {None}


def test_recall_and_precision_are_not_the_same_thing():
    given_scores = scores("a b c d", ["a b"])
    assert given_scores["samia_matched_v1"] == 0.5
    assert given_scores["samia_matched_precision_v1"] == 1.0
    assert given_scores["samia_v1"] == 0.5
    assert given_scores["samia_precision_v1"] == 1.0


WORDS = st.lists(st.sampled_from(["a", "b", "c", "é", "漢字"]), max_size=12).map(" ".join)


@given(reference=WORDS, candidates=st.lists(WORDS, min_size=1, max_size=12))
def test_scores_lie_in_their_range_and_matched_ones_equal_their_reference(reference, candidates):
    given_scores = scores(reference, candidates)
    for name, value in given_scores.items():
        assert value is None or 0 <= value <= (1 if "zlib" not in name else 1000)
    for name, value in reference_scores.matched_scores(reference, candidates).items():
        if reference_scores.CLASSIC_ZLIB or "zlib" not in name:
            assert given_scores[name] == value


def with_empty_rows(pairs: pl.DataFrame) -> pl.DataFrame:
    """Every third row again, without evidence."""
    holes = pairs.with_row_index("at").gather_every(3).with_columns(words_reference=None)
    return (
        pl.concat([pairs.with_row_index("at"), holes], how="vertical_relaxed").sort("at").drop("at")
    )


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("holes", [True, False])
def test_the_mean_adds_one_by_one_in_the_order_of_the_samples(engine, in_order, holes):
    """To the last bit, whatever the number of samples, the engine and the rows around them."""
    rng = np.random.default_rng(0)
    counts = [1, 2, 3, 7, 8, 9, 10, 16, 31, 64, 127, 128, 129, 1000, 100_000]
    row = np.repeat(np.arange(len(counts)), counts)
    words = rng.integers(1, 1000, row.size)
    shared = rng.integers(0, words + 1)
    pairs = pl.DataFrame({"row": row, "words_reference": words, "overlap_1": shared})
    pairs = with_empty_rows(pairs) if holes else pairs
    if not in_order:  # groups apart, each in its own order
        pairs = pairs.sort(pl.int_range(pl.len()).over("row"), maintain_order=True)
    means = (
        (pairs.lazy().set_sorted("row") if in_order else pairs.lazy())
        .group_by("row")
        .agg(mean=get("samia_v1").expr)
        .sort("row")
        .collect(engine=engine)
    )
    totals = [0.0] * len(counts)
    for at, count, of in zip(row, shared.tolist(), words.tolist(), strict=True):
        totals[at] += count / of
    assert means["mean"].to_list() == [total / m for total, m in zip(totals, counts, strict=True)]


def test_an_expression_survives_rows_without_evidence():
    pairs = pl.DataFrame({"words_reference": [4, None], "overlap_1": [3, None]})
    assert pairs.select(get("samia_v1").expr).item() == 0.75
    assert pairs.tail(1).select(get("samia_v1").expr).item() is None
