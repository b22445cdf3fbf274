"""Recall and coverage of books against slow references, on texts copied with errors."""

from __future__ import annotations

from random import Random

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.kernels import book_coverage, near_verbatim_recall, word_spans
from tests import reference_kernels
from tests.reference_kernels import QUICK_RULES, SPLIT

SEPARATORS = (" ", " ", "  ", "\n", "\u3000", ", ")
LETTERS = "abcdeA\u00e9\u4f60"


@st.composite
def written(draw, most_words, most_pieces):
    """A book of few or many words, and a text of pieces of it with errors in them."""
    random = Random(draw(st.integers(0, 2**32)))
    n_different = draw(st.sampled_from([2, 20, 2000]))
    said = ["".join(random.choices(LETTERS, k=4)) for _ in range(n_different)]
    book = random.choices(said, k=draw(st.integers(0, most_words) | st.just(most_words)))
    every = draw(st.sampled_from([4, 15, 30, 1000]))  # words from error to error
    pieces = [errors(book, random, every) for _ in range(draw(st.integers(0, most_pieces)))]
    return spaced(book, random), [spaced(piece, random) for piece in pieces]


def errors(book, random, every):
    ends = sorted(random.choices(range(len(book) + 1), k=4))
    for word in book[ends[0] : ends[-1]]:
        error = random.random() * every
        if error > 1:
            yield word
        elif error > 0.5:
            yield from random.choices(["x", word], k=random.randint(0, 4))


def spaced(words, random):
    return "".join(word + random.choice(SEPARATORS) for word in words)


def in_characters(book, rule, passages):
    """Passages by their words as passages by their characters."""
    places = pl.select(word_spans(pl.lit(book), words=rule)).item()
    return [
        {"start": places["starts"][start], "end": places["ends"][end - 1], "words": n_words}
        for start, end, n_words in passages
    ]


@given(written(400, 4), st.sampled_from(QUICK_RULES))
def test_recall_equals_the_slow_reference(texts, rule):
    book, pieces = texts
    generation = " ".join(pieces)
    numbers = near_verbatim_recall(pl.lit(generation), pl.lit(book), words=rule)
    found = pl.select(numbers).item()
    passages = reference_kernels.near_verbatim_passages(generation, book, rule)
    n_words, verbatim = len(SPLIT[rule](book)), sum(words for *_, words in passages)
    assert found == {
        "recall": verbatim / n_words if n_words else None,
        "verbatim": verbatim,
        "missing": n_words - verbatim,
        "additional": len(SPLIT[rule](generation)) - verbatim,
        "passages": in_characters(book, rule, passages),
    }


@given(written(80, 4), st.data(), st.integers(1, 6), st.integers(1, 6))
def test_coverage_equals_the_slow_reference(texts, data, k, m):
    book, pieces = texts
    rule = data.draw(st.sampled_from(QUICK_RULES))
    generations = [data.draw(st.sampled_from([piece, None, " ".join(pieces)])) for piece in pieces]
    cut = [piece[: data.draw(st.integers(0, 60))] for piece in pieces]
    instructions = [data.draw(st.sampled_from([text, None, book[-40:]])) for text in cut]
    found = book_coverage(
        book,
        pl.Series(generations, dtype=pl.String),
        instructions=pl.Series(instructions, dtype=pl.String),
        words=rule,
        k=k,
        m=m,
    ).row(0, named=True)
    asked = zip(generations, instructions, strict=True)
    expected = reference_kernels.book_coverage(book, asked, rule, k, m)
    for name in ("blocks", "long_spans"):
        expected[name] = in_characters(book, rule, expected[name])
    assert found == expected
