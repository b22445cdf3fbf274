"""Recall and coverage of books, counted by hand."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest

from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.kernels import PASSAGES, book_coverage, near_verbatim_recall

BOOK = [f"w{at}" for at in range(200)]
OTHERS = ["x"] * 11


def recall(generation, book=BOOK):
    numbers = near_verbatim_recall(pl.lit(" ".join(generation)), pl.lit(" ".join(book)))
    return pl.select(numbers).item()


@pytest.mark.parametrize(
    ("generation", "verbatim"),
    [
        (BOOK, 200),
        (BOOK[:99], 0),
        (BOOK[:100], 100),
        (BOOK[:60] + OTHERS[:1] + BOOK[60:110], 110),
        (BOOK[:60] + BOOK[62:122], 120),  # too far apart for the first pass alone
        (BOOK[:15] + OTHERS[:2] + BOOK[17:150], 148),
        (BOOK[:15] + OTHERS[:3] + BOOK[18:150], 132),  # 15 words do not pass the first
        (BOOK[:60] + OTHERS[:10] + BOOK[70:130], 120),
        (BOOK[:60] + OTHERS[:11] + BOOK[71:131], 0),
        (BOOK[:60] + BOOK[63:123], 120),
        (BOOK[:60] + BOOK[64:124], 0),
        (BOOK[:60] + OTHERS[:4] + BOOK[60:120], 0),  # either way
        (BOOK[100:] + BOOK[:100], 100),  # of two that cross, the first of the book
        ([], 0),
    ],
)
def test_words_that_are_recalled(generation, verbatim):
    found = recall(generation)
    assert (found["recall"], found["verbatim"]) == (verbatim / 200, verbatim)
    assert found["missing"] == 200 - verbatim
    assert found["additional"] == len(generation) - verbatim
    assert sum(passage["words"] for passage in found["passages"]) == verbatim


def test_passages_stand_in_characters_of_the_book():
    """Two passages, with words between them that do not come out; in the second one differs."""
    more = [f"v{at}" for at in range(101)]
    book = [*BOOK[:100], *("é" * 12), *more, "é"]
    found = recall([*BOOK[:100], *more[:50], "y", *more[51:]], book)
    text = " ".join(book)
    quoted = [text[passage["start"] : passage["end"]] for passage in found["passages"]]
    assert quoted == [" ".join(BOOK[:100]), " ".join(more)]
    assert [passage["words"] for passage in found["passages"]] == [100, 100]


def test_recall_of_nothing_is_unknown():
    pairs = pl.DataFrame({"generation": ["a", None, "a"], "book": [" ", "a", None]})
    found = pairs.select(near_verbatim_recall("generation", "book")).to_series()
    nothing: dict[str, object] = {
        "recall": None,
        "verbatim": 0,
        "missing": 0,
        "additional": 1,
        "passages": [],
    }
    assert found.to_list() == [nothing, None, None]
    assert found.struct.schema["passages"] == PASSAGES


def test_loops_of_a_book_take_no_longer_than_others():
    """Minutes where time grows with the square of the copies."""
    loop = [f"w{at % 30}" for at in range(50_000)]
    found = recall(loop[:40_000], loop)
    assert (found["verbatim"], found["additional"]) == (40_000, 0)
    assert recall(BOOK[:30] * 1000, BOOK)["verbatim"] == 0


def covered(book, *asked, **settings):
    generations, instructions = zip(*asked, strict=True)
    return book_coverage(
        book,
        pl.Series(generations, dtype=pl.String),
        instructions=pl.Series(instructions, dtype=pl.String),
        **settings,
    ).row(0, named=True)


@pytest.mark.parametrize(
    ("k", "instruction", "places"),
    [
        (2, None, [(0, 13)]),  # a b c d e f g
        (2, "z c d q", [(0, 3), (8, 13)]),
        (3, "z c d q", [(8, 13)]),
        (4, "z c d q", []),
        (2, "x a b", [(4, 13)]),
        (2, "c. d", [(0, 13)]),
        (2, "e f g y", [(0, 7)]),  # and "g y" is not in the span
        (8, None, []),
    ],
)
def test_what_the_instruction_gives_away_is_cut_out(k, instruction, places):
    found = covered("a b c d e f g h i", ("x a b c d e f g y", instruction), k=k, m=2)
    assert [(block["start"], block["end"]) for block in found["blocks"]] == places
    n_words = sum((end - start + 1) // 2 for start, end in places)
    assert (found["covered_words"], found["coverage"]) == (n_words, n_words / 9)
    assert found["longest_span_words"] == (7 if k <= 7 else 0)


def test_runs_that_a_span_has_in_part_are_not_cut_out():
    assert covered("a b c d", ("b c d", "a b"), k=3, m=2)["covered_words"] == 3


def test_generations_put_blocks_together_wherever_they_stand():
    book = "a b c d e f g a b c"
    found = covered(book, ("a b c", None), ("d e f x c d e", "a b c"), (None, "a"), k=3)
    assert found["blocks"] == [
        {"start": 0, "end": 11, "words": 6},
        {"start": 14, "end": 19, "words": 3},
    ]
    assert (found["longest_block_words"], found["longest_span_words"]) == (6, 3)
    assert (found["covered_words"], found["words_book"], found["n_long_spans"]) == (9, 10, 0)


def test_long_spans_do_not_overlap():
    """Of 30, 30, 35 and 21 words: the third, then the last, which the others leave room for."""
    places = [(0, 30), (15, 45), (20, 55), (60, 81), (100, 120)]
    text = " ".join(BOOK)
    found = covered(text, *[(" ".join(BOOK[start:end]), text) for start, end in places], k=5)
    assert [(span["words"], text[span["start"] : span["end"]]) for span in found["long_spans"]] == [
        (35, " ".join(BOOK[20:55])),
        (21, " ".join(BOOK[60:81])),
    ]
    assert (found["n_long_spans"], found["longest_span_words"]) == (2, 35)
    assert (found["coverage"], found["longest_block_words"]) == (0, 0)


def test_a_longer_book_is_covered_no_more():
    """Monotone: more generations never cover less, a longer k never more."""
    said = pl.Series([" ".join(BOOK[start : start + 7]) for start in range(0, 190, 6)])
    text = " ".join(BOOK)
    by_generations = [book_coverage(text, said[:n])["covered_words"].item() for n in range(9)]
    assert all(before < after for before, after in pairwise(by_generations))
    by_k = [book_coverage(text, said, k=k)["covered_words"].item() for k in (1, 5, 7, 8)]
    assert by_k == [193, 193, 193, 0]


def test_nothing_is_covered_of_nothing():
    nothing = pl.Series([], dtype=pl.String)
    assert book_coverage("a b", nothing).row(0) == (0.0, 2, 0, 0, 0, 0, [], [])
    assert book_coverage(" ", pl.Series(["a"])).row(0) == (None, 0, 0, 0, 0, 0, [], [])


def test_what_is_refused():
    said = pl.Series(["a b"])
    with pytest.raises(SettingsError, match="k is 0; use a whole number of 1"):
        book_coverage("a", said, k=0)
    with pytest.raises(SettingsError, match="m is 0; use a whole number of 1"):
        book_coverage("a", said, m=0)
    with pytest.raises(SettingsError, match="unknown word rule 'w'"):
        near_verbatim_recall("a", "b", words="w")  # type: ignore[arg-type] # refused
    with pytest.raises(SchemaMismatchError, match="1 generations and 2 instructions; pass columns"):
        book_coverage("a", said, instructions=pl.Series(["a", "b"]))
    with pytest.raises(SchemaMismatchError, match="generations must be an Arrow column of strings"):
        book_coverage("a", pl.Series([1]))
