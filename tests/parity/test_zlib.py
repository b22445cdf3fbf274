"""zlib sizes against those of Python's own zlib, on real and on generated texts."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from mia_batch.kernels import pair_features, zlib_size
from tests.reference_scores import CLASSIC_ZLIB, compressed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not CLASSIC_ZLIB, reason=f"Python's own zlib is {zlib.ZLIB_RUNTIME_VERSION}, not a classic one"
)

SOURCE = 300_000  # characters in each text that the generated ones are cut from


def assert_sizes_equal(texts: list[str]) -> None:
    frame = pl.DataFrame({"text": texts, "python": [compressed([text]) for text in texts]})
    different = frame.with_columns(ours=zlib_size("text")).filter(
        pl.col("ours") != pl.col("python")
    )
    assert different.is_empty(), different


def read_wikimia(folder: Path) -> list[str]:
    paths = sorted((folder / "wikimia").glob("*.jsonl"))
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line)["input"] for line in lines]


def read_books(folder: Path) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((folder / "books").glob("*.txt"))]


def test_wikimia(shared_data):
    texts = read_wikimia(shared_data)
    assert len(texts) > 500
    assert_sizes_equal(texts)


def test_books_whole_and_in_passages(shared_data):
    books = read_books(shared_data)
    assert len(books) == 12
    assert_sizes_equal(books)
    assert_sizes_equal([book[at : at + 4600] for book in books for at in range(0, len(book), 4600)])


def test_words_of_pairs(shared_data):
    texts = read_wikimia(shared_data)
    pairs = pl.DataFrame({"candidate": texts, "reference": texts[::-1]})
    sizes = pairs.select(pair_features("candidate", "reference").struct.unnest())
    words = [text.split() for text in texts]
    cut = [left[: len(right)] for left, right in zip(words, reversed(words), strict=True)]
    assert sizes["zlib_candidate"].to_list() == list(map(compressed, words))
    assert sizes["zlib_candidate_matched"].to_list() == list(map(compressed, cut))


def characters(draw: np.random.Generator, codes: np.ndarray) -> str:
    """Independent draws from some code points."""
    return draw.choice(codes, SOURCE).astype("<u4").tobytes().decode("utf-32-le")


def loops(draw: np.random.Generator, text: str) -> str:
    """Short pieces of a text, each again and again."""
    starts, lengths = draw.integers(SOURCE, size=2000), draw.geometric(0.05, size=2000)
    pieces = zip(starts, lengths, draw.geometric(0.1, size=2000), strict=True)
    return "".join(text[at : at + length] * times for at, length, times in pieces)[:SOURCE]


def markov(draw: np.random.Generator) -> str:
    """Made-up words, each with four that may follow."""
    letters = list("aaabcdeeefghiiklmnooprstuéß你好")
    words = ["".join(draw.choice(letters, length)) for length in draw.geometric(0.2, size=500)]
    followers, choices = draw.integers(500, size=(500, 4)), draw.integers(4, size=SOURCE // 5)
    state, walk = 0, []
    for choice in choices:
        state = followers[state, choice]
        walk.append(words[state])
    return " ".join(walk)


def sources(draw: np.random.Generator) -> list[str]:
    alphabets = [
        np.array([97, 98]),
        np.frombuffer(b"etaoin shrdlu", dtype=np.uint8),
        np.arange(128),
        np.arange(32, 0x250),
        np.arange(0x4E00, 0x9FA5),
        np.concatenate([np.arange(0xD800), np.arange(0xE000, 0x110000)]),
    ]
    noise = [characters(draw, alphabet) for alphabet in alphabets]
    return [*noise, loops(draw, noise[3]), markov(draw)]


def cuts(draw: np.random.Generator, source: str, number: int, longest: int) -> list[str]:
    """Pieces of lengths that are even on a logarithmic scale, empty ones included."""
    lengths = np.expm1(draw.uniform(0, np.log1p(longest + 1), number)).astype(int)
    starts = draw.integers(len(source) - longest, size=number)
    return [source[at : at + length] for at, length in zip(starts, lengths, strict=True)]


def test_generated_texts():
    draw = np.random.default_rng(20240417)
    texts = [cut for source in sources(draw) for cut in cuts(draw, source, 12_500, 5000)]
    assert len(texts) == 100_000
    assert "" in texts
    assert_sizes_equal(texts)


def test_generated_texts_of_many_blocks():
    draw = np.random.default_rng(20240418)
    assert_sizes_equal([cut for source in sources(draw) for cut in cuts(draw, source, 10, 200_000)])
