"""ROUGE, coverage and verbatim blocks: scores of real texts against formulas of the papers."""

from __future__ import annotations

from difflib import SequenceMatcher
from statistics import median
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.attacks import get, names, score
from mia_batch.features import build_features, groups_of
from mia_batch.kernels import GROUPS, RARITY_FIELDS, pair_features
from tests import frames, reference_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "": lambda values: sum(values) / len(values),
    "_max": max,
    "_median": median,
    "_min": min,
}
FAMILIES = ("rouge_", "ngram_coverage", "creativity", "longest_block", "near_verbatim")
CHOSEN = [name for name in names() if name.startswith(FAMILIES)]
TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=25).map(" ".join)


def scores(reference: str, candidates: Sequence[str]) -> dict[str, float | None]:
    """Scores of one target, by attack."""
    targets = frames.targets({"reference": reference})
    chosen = [get(name) for name in CHOSEN]
    features = build_features(
        frames.samples(candidates),
        frames.units(targets),
        words="whitespace",
        preset="default",
        text_length=None,
        groups=groups_of(column for attack in chosen for column in attack.columns),
    )
    scored = pl.concat(score(features.lazy(), targets.lazy(), chosen))
    return scored.select(CHOSEN).row(0, named=True)


def rouge(shared: int, words: list[str], reference: list[str], n: int) -> dict[str, float]:
    """Lin 2004: recall, precision and their harmonic mean."""
    recall = shared / (len(reference) - n + 1)
    precision = shared / max(len(words) - n + 1, 1)
    both = recall + precision
    return {
        "": recall,
        "_precision": precision,
        "_f1": 2 * recall * precision / both if both else 0,
    }


def common_subsequence(one: list[str], other: list[str]) -> int:
    """Longest common subsequence by the textbook's table."""
    row = [0] * (len(other) + 1)
    for word in one:
        before = row[:]
        for place, against in enumerate(other, 1):
            row[place] = (
                before[place - 1] + 1 if word == against else max(before[place], row[place - 1])
            )
    return row[-1]


def covered(words: list[str], reference: list[str], length: int) -> int:
    """Words of a text inside some span of so many words that the reference has, too."""
    spans = {tuple(reference[i : i + length]) for i in range(len(reference) - length + 1)}
    inside = set()
    for start in range(len(words) - length + 1):
        if tuple(words[start : start + length]) in spans:
            inside |= set(range(start, start + length))
    return len(inside)


def longest_run(one: Sequence[str], other: Sequence[str]) -> int:
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.find_longest_match(0, len(one), 0, len(other)).size


def terms(candidate: str, text: str) -> dict[str, float]:
    """Every term of one candidate, by the name that its attacks begin with."""
    words, reference = candidate.split(), text.split()
    longer = max(len(words), len(reference))
    three = covered(words, reference, 3)
    blocks = SequenceMatcher(None, reference, words, autojunk=False).get_matching_blocks()
    run = longest_run(words, reference)
    return {
        "ngram_coverage": three / max(len(words), 1),
        "ngram_coverage_reference": three / longer,
        "ngram_coverage_total": 2 * three / (len(words) + longer),
        "creativity": sum(
            covered(words, reference, length) / max(len(words), 1) for length in range(2, 13)
        ),
        "longest_block": run,
        "longest_block_chars": longest_run(candidate, text),
        "longest_block_share": run / len(reference),
        "near_verbatim": sum(block.size for block in blocks if block.size >= 8) / len(reference),
    }


def expected(text: str, candidates: Sequence[str]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    reference = text.split()
    for n, kind in [*((n, str(n)) for n in reference_scores.SIZES), (1, "l")]:
        for ending in ("", "_precision", "_f1"):
            values = []
            for words in (candidate.split() for candidate in candidates):
                shared = (
                    common_subsequence(words, reference)
                    if kind == "l"
                    else reference_scores.overlap(words, reference, n)
                )
                if len(reference) >= n:
                    values.append(rouge(shared, words, reference, n)[ending])
            mean = sum(values) / len(values) if values else None
            found[f"rouge_{kind}{ending}_v1"] = mean
    every = [terms(candidate, text) for candidate in candidates]
    for name in every[0]:
        for ending, aggregate in AGGREGATES.items():
            found[f"{name}{ending}_v1"] = aggregate([each[name] for each in every])
    return found


def test_by_hand():
    """One candidate has the first half of the reference, the other shares no word with it."""
    found = scores("a b c d e f g h", ["a b c d x y", "u v"])
    assert found["rouge_1_v1"] == (4 / 8 + 0) / 2
    assert found["rouge_2_precision_v1"] == (3 / 5 + 0) / 2
    assert found["rouge_l_f1_v1"] == pytest.approx((2 * (4 / 8) * (4 / 6) / (4 / 8 + 4 / 6)) / 2)
    assert found["ngram_coverage_max_v1"] == 4 / 6
    assert found["ngram_coverage_reference_v1"] == (4 / 8) / 2
    assert found["ngram_coverage_total_max_v1"] == 8 / 14
    assert found["creativity_max_v1"] == pytest.approx(3 * 4 / 6)  # spans of 2, 3 and 4 words
    assert found["longest_block_v1"] == 2.0
    assert found["longest_block_chars_max_v1"] == 8.0  # with the space behind it
    assert found["longest_block_share_max_v1"] == 4 / 8
    assert found["near_verbatim_max_v1"] == 0.0  # no block of eight words


OF_ONE_TEXT = {"model", "view_index", "logprob"}  # columns of attacks that tell rows apart
SAMPLED = [
    name
    for name in names()
    if get(name).evidence == "samples" and not OF_ONE_TEXT.intersection(get(name).columns)
]


@pytest.mark.parametrize("name", SAMPLED)
def test_candidates_that_are_missing_count_for_nothing(name):
    pairs = pl.DataFrame({"candidate": [None, "a b c d x"], "reference": ["a b c d e f g"] * 2})
    features = pairs.select(pair_features("candidate", "reference", groups=GROUPS))
    features = features.unnest("features").with_columns(n_tokens=pl.Series([0, 5], dtype=pl.UInt32))
    features = features.with_columns(pl.Series(each.name, [None, 0.5]) for each in RARITY_FIELDS)
    with_missing, alone, missing = (
        rows.select(get(name).expr).item() for rows in (features, features[1:], features[:1])
    )
    assert with_missing == alone is not None
    assert missing is None


def test_a_text_given_back_whole_has_every_share_1_and_an_unrelated_one_0():
    text = "a b c d e f g h i j k l m"
    whole, nothing = scores(text, [text]), scores(text, ["x y z"])
    lengths = ("longest_block_v1", "longest_block_max_v1", "creativity_v1")
    assert {whole[name] for name in CHOSEN if name.startswith("rouge")} == {1.0}
    assert whole["near_verbatim_v1"] == whole["ngram_coverage_total_v1"] == 1.0
    assert [whole[name] for name in lengths] == [13.0, 13.0, 11.0]
    assert [nothing[name] for name in lengths] == [0.0, 0.0, 0.0]


@given(reference=TEXTS, candidates=st.lists(TEXTS, min_size=1, max_size=4))
def test_every_attack_equals_its_reference(reference, candidates):
    found, wanted = scores(reference, candidates), expected(reference, candidates)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == (None if value is None else pytest.approx(value, rel=1e-12)), name
