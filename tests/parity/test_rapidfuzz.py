"""Longest common subsequences of words against the rapidfuzz package, given our words."""

from __future__ import annotations

import json
import random

import polars as pl
import pytest
from rapidfuzz.distance import LCSseq

from mia_batch.kernels import pair_features
from tests.reference_kernels import SPLIT


def assert_lengths_equal(pairs, rule):
    frame = pl.DataFrame(pairs, ["candidate", "reference"], orient="row")
    features = pair_features("candidate", "reference", words=rule, groups=["lcs", "matched"])
    found = frame.select(features.struct.unnest())
    for (candidate, reference), row in zip(pairs, found.iter_rows(named=True), strict=True):
        left, right = SPLIT[rule](candidate), SPLIT[rule](reference)
        assert row["lcs_words"] == LCSseq.similarity(left, right)
        assert row["lcs_words_matched"] == LCSseq.similarity(left[: len(right)], right)


@pytest.mark.parametrize("rule", SPLIT)
def test_generated_pairs(rule):
    """Up to 300 words, so that references take several limbs."""
    draw = random.Random(2004)
    words = ["a", "b", "the", "The", "the.", "café", "你好", "a-b"]
    texts = [" ".join(draw.choices(words, k=draw.randrange(300))) for _ in range(100)]
    assert_lengths_equal(list(zip(texts, reversed(texts), strict=True)), rule)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("rule", SPLIT)
def test_wikimia(shared_data, rule, every):
    lines = (shared_data / "wikimia" / "128.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["input"] for line in lines[::every]]
    halves = [(text[len(text) // 3 :], text[: len(text) // 2]) for text in texts]
    assert_lengths_equal(halves, rule)
