"""Words of the rule ``unicode`` against the uniseg package.

It knows Unicode 16 and ours Unicode 17, which made the cedilla, U+00B8, a letter to the rules of
words, and no longer takes some symbols for pictographs.
"""

from __future__ import annotations

import json
import random
import re
import sys
import unicodedata
from itertools import islice
from typing import TYPE_CHECKING

import polars as pl
import pytest

from mia_batch.kernels import GROUPS, count_words, pair_features
from tests.reference_kernels import SPLIT, compared, features

if TYPE_CHECKING:
    from mia_batch.kernels import Group

MIXED = "ab1 .,'\":_-\n\r\0\u2019\u0301\u200d\u3000\u05d0\u30ab\u3042\u6211\u0e20\u0e32👩\U0001f1eb"
"""Characters that the rules of UAX #29 tell apart, of several scripts."""


words = SPLIT["unicode"]


def assert_words_equal(texts: list[str]) -> None:
    """Numbers under ``unicode`` are those of the same words under ``space``."""
    joined = [" ".join(words(text)) for text in texts]
    frame = pl.DataFrame({"text": texts, "words": joined})
    frame = frame.with_columns(pl.all().reverse().name.suffix("_other"))
    groups: list[Group] = ["unigrams", "ngrams", "zlib", "lcs", "distinct"]
    found = frame.select(pair_features("text", "text_other", words="unicode", groups=groups))
    expected = frame.select(pair_features("words", "words_other", words="space", groups=groups))
    assert found.rows() == expected.rows()


def is_odd(text: str) -> bool:
    """Whether the packages are known to differ.

    In "a:", a joiner and a pictograph, ours sees one word, where the annex has a boundary before
    the colon.
    """
    return re.search(r"\W\u200d👩", text) is not None


@pytest.fixture(scope="module")
def characters() -> list[str]:
    """What both versions have in common, but few of the letters without case."""
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    draw = random.Random(29)
    return [
        character
        for character in every
        if unicodedata.category(character) not in {"Cn", "Co", "Cs"} and character != "\u00b8"
        if unicodedata.category(character) != "Lo" or draw.random() < 0.02
    ]


def test_words_around_characters(characters):
    texts = [f"A{character}B" for character in characters]
    assert len(texts) > 15_000
    found = pl.DataFrame({"text": texts}).select(count_words("text", words="unicode"))
    assert found["text"].to_list() == [len(words(text)) for text in texts]


def test_generated_texts(characters):
    draw = random.Random(16)
    others = [character for character in characters if unicodedata.category(character) != "So"]
    sources = (MIXED, MIXED, others)
    texts = [
        "".join(draw.choice(draw.choice(sources)) for _ in range(draw.randrange(30)))
        for _ in range(500)
    ]
    spaced = {text for text in texts if any(" " in word for word in words(text))}
    assert_words_equal([text for text in texts if not is_odd(text) and text not in spaced])


def test_every_feature_of_generated_texts():
    draw = random.Random(17)
    pairs = []
    for _ in range(1000):
        start, middle, end, other = (
            "".join(draw.choices(MIXED, k=draw.randrange(12))) for _ in range(4)
        )
        pairs.append((start + middle + end, draw.choice([start, other]) + middle + other))
    pairs = [(left, right) for left, right in pairs if not is_odd(left) and not is_odd(right)]
    frame = pl.DataFrame(pairs, ["candidate", "reference"], orient="row")
    numbers = pair_features(
        "candidate", "reference", words="unicode", groups=GROUPS, near_verbatim_min_words=2
    )
    assert compared(frame.select(numbers.struct.unnest()).to_dicts()) == compared(
        features(*pair, "unicode", GROUPS, min_words=2) for pair in pairs
    )


def test_books(shared_data):
    for file in sorted((shared_data / "books").glob("*.txt")):
        with file.open(encoding="utf-8") as lines:
            assert_words_equal(list(islice(lines, 1000, 1100)))


def test_wikimia(shared_data):
    lines = (shared_data / "wikimia" / "64.jsonl").read_text(encoding="utf-8").splitlines()
    assert_words_equal([json.loads(line)["input"] for line in lines[::10]])
