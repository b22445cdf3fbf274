"""The kernels against other packages, on real and on generated texts: zlib, rouge-score, uniseg.

uniseg knows Unicode 16 and ours Unicode 17, which made the cedilla, U+00B8, a letter to
the rules of words, and no longer takes some symbols for pictographs.
"""

import random
import re
import sys
import unicodedata
import zlib
from itertools import pairwise
from pydoc_data.topics import topics

import polars as pl
import pytest
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenize import tokenize

from mia_batch.kernels import (
    GROUPS,
    Group,
    WordRule,
    count_words,
    pair_features,
    zlib_size,
)
from tests.reference_kernels import SPLIT, compared, features
from tests.reference_scores import CLASSIC_ZLIB, SIZES, compressed
from tests.texts import king_james_books, king_james_passages

# Overlaps and subsequences against the rouge-score package, with our words or its own.
#
# Its recall and precision are the clipped overlap, or the longest common subsequence, over the
# n-grams of one side, and 0 where that side has none, so the numbers can be read from them.


class Words:
    """Tokenizer in the form that rouge-score asks for."""

    def __init__(self, rule: WordRule) -> None:
        self.tokenize = SPLIT[rule]


def assert_numbers_equal(pairs: list[tuple[str, str]], rule: WordRule) -> None:
    frame = pl.DataFrame(pairs, ["candidate", "reference"], orient="row")
    groups: list[Group] = ["unigrams", "ngrams", "lcs"]
    features = pair_features("candidate", "reference", words=rule, groups=groups)
    numbers = frame.select(features.struct.unnest())
    types = [*(f"rouge{n}" for n in SIZES), "rougeL"]
    scorer = RougeScorer(types, tokenizer=None if rule == "rouge" else Words(rule))
    for (candidate, reference), row in zip(
        pairs, numbers.iter_rows(named=True), strict=True
    ):
        scores = scorer.score(reference, candidate)
        for n in SIZES:
            overlap, score = row[f"overlap_{n}"], scores[f"rouge{n}"]
            assert score.recall == overlap / max(row["words_reference"] - n + 1, 1)
            assert score.precision == overlap / max(row["words_candidate"] - n + 1, 1)
        assert scores["rougeL"].recall == row["lcs_words"] / max(
            row["words_reference"], 1
        )
        assert scores["rougeL"].precision == row["lcs_words"] / max(
            row["words_candidate"], 1
        )


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("rule", SPLIT)
def test_rouge_of_real_texts(rule, every):
    texts = king_james_passages(64, n=500)[::every]
    halves = [(text[len(text) // 3 :], text[: len(text) // 2]) for text in texts]
    assert_numbers_equal(halves + list(pairwise(texts)), rule)


def test_rouge_words_around_every_character():
    """Two characters have an ASCII letter in lower case: U+0130 and U+212A."""
    characters = [
        chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000
    ]
    texts = [f"A{character}B" for character in characters]
    found = pl.DataFrame({"text": texts}).select(count_words("text", words="rouge"))
    assert found["text"].to_list() == [len(tokenize(text, None)) for text in texts]
    assert_numbers_equal([("\u212aİ", "ki k\u212a i"), ("İX", "i x ix")], "rouge")


# Words of the rule ``unicode`` against uniseg.

MIXED = "ab1 .,'\":_-\n\r\0\u2019\u0301\u200d\u3000\u05d0\u30ab\u3042\u6211\u0e20\u0e32👩\U0001f1eb"
"""Characters that the rules of UAX #29 tell apart, of several scripts."""

unicode_words = SPLIT["unicode"]


def assert_words_equal(texts: list[str]) -> None:
    """Numbers under ``unicode`` are those of the same words under ``space``."""
    joined = [" ".join(unicode_words(text)) for text in texts]
    frame = pl.DataFrame({"text": texts, "words": joined})
    frame = frame.with_columns(pl.all().reverse().name.suffix("_other"))
    groups: list[Group] = ["unigrams", "ngrams", "zlib", "lcs", "distinct"]
    found = frame.select(
        pair_features("text", "text_other", words="unicode", groups=groups)
    )
    expected = frame.select(
        pair_features("words", "words_other", words="space", groups=groups)
    )
    assert found.rows() == expected.rows()


def is_odd(text: str) -> bool:
    """Whether the packages are known to differ.

    In "a:", a joiner and a pictograph, ours sees one word, where the annex has a
    boundary before the colon.
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
        if unicodedata.category(character) not in {"Cn", "Co", "Cs"}
        and character != "\u00b8"
        if unicodedata.category(character) != "Lo" or draw.random() < 0.02
    ]


def test_unicode_words_around_characters(characters):
    texts = [f"A{character}B" for character in characters]
    assert len(texts) > 15_000
    found = pl.DataFrame({"text": texts}).select(count_words("text", words="unicode"))
    assert found["text"].to_list() == [len(unicode_words(text)) for text in texts]


def test_every_feature_of_generated_texts():
    draw = random.Random(17)
    pairs = []
    for _ in range(1000):
        start, middle, end, other = (
            "".join(draw.choices(MIXED, k=draw.randrange(12))) for _ in range(4)
        )
        pairs.append(
            (start + middle + end, draw.choice([start, other]) + middle + other)
        )
    pairs = [
        (left, right) for left, right in pairs if not is_odd(left) and not is_odd(right)
    ]
    frame = pl.DataFrame(pairs, ["candidate", "reference"], orient="row")
    numbers = pair_features(
        "candidate",
        "reference",
        words="unicode",
        groups=GROUPS,
        near_verbatim_min_words=2,
    )
    assert compared(frame.select(numbers.struct.unnest()).to_dicts()) == compared(
        features(*pair, "unicode", GROUPS, min_words=2) for pair in pairs
    )


def test_unicode_words_of_real_texts():
    for book in king_james_books().values():
        assert_words_equal(book.splitlines()[500:520])
    assert_words_equal(list(topics.values())[::8])


# Sizes against Python's own zlib.

classic = pytest.mark.skipif(
    not CLASSIC_ZLIB,
    reason=f"Python's own zlib is {zlib.ZLIB_RUNTIME_VERSION}, not a classic one",
)


def assert_sizes_equal(texts: list[str]) -> None:
    frame = pl.DataFrame(
        {"text": texts, "python": [compressed([text]) for text in texts]}
    )
    different = frame.with_columns(ours=zlib_size("text")).filter(
        pl.col("ours") != pl.col("python")
    )
    assert different.is_empty(), different


@classic
def test_sizes_of_passages():
    texts = [*king_james_passages(64, n=500), *king_james_passages(128, n=250)]
    assert_sizes_equal(texts)
    pairs = pl.DataFrame({"candidate": texts, "reference": texts[::-1]})
    sizes = pairs.select(pair_features("candidate", "reference").struct.unnest())
    words = [text.split() for text in texts]
    cut = [
        left[: len(right)] for left, right in zip(words, reversed(words), strict=True)
    ]
    assert sizes["zlib_candidate"].to_list() == list(map(compressed, words))
    assert sizes["zlib_candidate_matched"].to_list() == list(map(compressed, cut))


@classic
def test_sizes_of_books_whole_and_in_passages():
    books = [*king_james_books().values(), *topics.values()]
    assert_sizes_equal(books)
    assert_sizes_equal(
        [book[at : at + 4600] for book in books for at in range(0, len(book), 4600)]
    )
