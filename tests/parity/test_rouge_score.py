"""Overlaps against the rouge-score package, given our words instead of its own.

Its recall and precision are the clipped overlap over the n-grams of one side, and 0 where that
side has none, so the overlap can be read from them.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl
import pytest
from rouge_score.rouge_scorer import RougeScorer

from mia_batch.kernels import WORD_RULES, pair_features
from tests.twins import SIZES

if TYPE_CHECKING:
    from mia_batch.kernels import WordRule

TYPES = [f"rouge{n}" for n in SIZES]


class Words:
    """Tokenizer in the form that rouge-score asks for."""

    def __init__(self, rule: WordRule) -> None:
        self._separator = None if rule == "whitespace" else " "

    def tokenize(self, text: str) -> list[str]:
        return [word for word in text.split(self._separator) if word != ""]


def assert_overlaps_equal(pairs: list[tuple[str, str]], rule: WordRule) -> None:
    frame = pl.DataFrame(pairs, ["candidate", "reference"], orient="row")
    numbers = frame.select(pair_features("candidate", "reference", words=rule).struct.unnest())
    scorer = RougeScorer(TYPES, tokenizer=Words(rule))
    for (candidate, reference), row in zip(pairs, numbers.iter_rows(named=True), strict=True):
        scores = scorer.score(reference, candidate)
        for n in SIZES:
            overlap, score = row[f"overlap_{n}"], scores[f"rouge{n}"]
            assert score.recall == overlap / max(row["words_reference"] - n + 1, 1)
            assert score.precision == overlap / max(row["words_candidate"] - n + 1, 1)


@pytest.mark.parametrize("rule", WORD_RULES)
def test_generated_pairs(rule):
    draw = random.Random(20040725)
    gaps = [" ", " ", " ", "  ", "\n", "\t", "\u3000"]
    words = ["a", "b", "b", "the", "The", "the.", "café", "你好"]
    texts = [
        "".join(draw.choice(words) + draw.choice(gaps) for _ in range(draw.randrange(80)))
        for _ in range(400)
    ]
    assert_overlaps_equal(list(zip(texts, reversed(texts), strict=True)), rule)


@pytest.mark.parametrize("rule", WORD_RULES)
def test_wikimia(shared_data, rule):
    lines = (shared_data / "wikimia" / "64.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["input"] for line in lines]
    halves = [(text[len(text) // 3 :], text[: len(text) // 2]) for text in texts]
    assert_overlaps_equal(halves + list(pairwise(texts)), rule)
