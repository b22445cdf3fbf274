"""Overlaps and subsequences against the rouge-score package, given our words or its own.

Its recall and precision are the clipped overlap, or the longest common subsequence, over the
n-grams of one side, and 0 where that side has none, so the numbers can be read from them.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl
import pytest
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenize import tokenize

from mia_batch.kernels import count_words, pair_features
from tests.reference_kernels import SPLIT
from tests.reference_scores import SIZES

if TYPE_CHECKING:
    from mia_batch.kernels import WordRule

TYPES = [*(f"rouge{n}" for n in SIZES), "rougeL"]


class Words:
    """Tokenizer in the form that rouge-score asks for."""

    def __init__(self, rule: WordRule) -> None:
        self.tokenize = SPLIT[rule]


def assert_numbers_equal(pairs: list[tuple[str, str]], rule: WordRule) -> None:
    frame = pl.DataFrame(pairs, ["candidate", "reference"], orient="row")
    features = pair_features(
        "candidate", "reference", words=rule, groups=["unigrams", "ngrams", "lcs"]
    )
    numbers = frame.select(features.struct.unnest())
    scorer = RougeScorer(TYPES, tokenizer=None if rule == "rouge" else Words(rule))
    for (candidate, reference), row in zip(pairs, numbers.iter_rows(named=True), strict=True):
        scores = scorer.score(reference, candidate)
        for n in SIZES:
            overlap, score = row[f"overlap_{n}"], scores[f"rouge{n}"]
            assert score.recall == overlap / max(row["words_reference"] - n + 1, 1)
            assert score.precision == overlap / max(row["words_candidate"] - n + 1, 1)
        assert scores["rougeL"].recall == row["lcs_words"] / max(row["words_reference"], 1)
        assert scores["rougeL"].precision == row["lcs_words"] / max(row["words_candidate"], 1)


@pytest.mark.parametrize("rule", SPLIT)
def test_generated_pairs(rule):
    draw = random.Random(20040725)
    gaps = [" ", " ", " ", "  ", "\n", "\t", "\u3000"]
    words = ["a", "b", "b", "the", "The", "the.", "café", "你好", "İ-\u212a"]
    texts = [
        "".join(draw.choice(words) + draw.choice(gaps) for _ in range(draw.randrange(80)))
        for _ in range(400)
    ]
    assert_numbers_equal(list(zip(texts, reversed(texts), strict=True)), rule)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("rule", SPLIT)
def test_wikimia(shared_data, rule, every):
    lines = (shared_data / "wikimia" / "64.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["input"] for line in lines[::every]]
    halves = [(text[len(text) // 3 :], text[: len(text) // 2]) for text in texts]
    assert_numbers_equal(halves + list(pairwise(texts)), rule)


def test_words_around_every_character():
    """Two characters have an ASCII letter in lower case: U+0130 and U+212A."""
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    texts = [f"A{character}B" for character in characters]
    found = pl.DataFrame({"text": texts}).select(count_words("text", words="rouge"))
    assert found["text"].to_list() == [len(tokenize(text, None)) for text in texts]
    assert_numbers_equal([("\u212aİ", "ki k\u212a i"), ("İX", "i x ix")], "rouge")
