"""The kernels against slow references, on random texts and series in random Arrow layouts."""

import random
import re
import sys
import unicodedata
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mia_batch import _native, kernels, second
from tests import arrow, reference_kernels, reference_scores
from tests.reference_kernels import QUICK_RULES, SPLIT, compared, features

SPACES = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]

word = st.sampled_from(
    ["a", "b", "the", "the", "The", "café", "你好", "🙂", "\0", "\u212as,İs"]
)
space = st.sampled_from([" ", " ", " ", "  ", *SPACES])
prose = st.lists(st.tuples(word, space), max_size=40).map(
    lambda parts: "".join(f"{word}{space}" for word, space in parts)
)
text = prose | st.text(max_size=30)
rule = st.sampled_from(QUICK_RULES)
groups = st.lists(st.sampled_from(kernels.GROUPS)) | st.just(kernels.GROUPS)
pair = st.tuples(st.none() | text, st.none() | text)


def assert_equal_the_reference(
    pairs, rule="whitespace", groups=kernels.GROUPS, min_words=8
):
    frame = pl.DataFrame(
        pairs, {"candidate": pl.String, "reference": pl.String}, orient="row"
    )
    numbers = kernels.pair_features(
        "candidate",
        "reference",
        words=rule,
        groups=groups,
        near_verbatim_min_words=min_words,
    )
    found = frame.select(numbers.struct.unnest()).to_dicts()
    assert compared(found) == compared(
        [features(left, right, rule, groups, min_words) for left, right in pairs]
    )


@given(st.lists(pair, max_size=12), rule, groups, st.integers(1, 6))
def test_features_equal_the_slow_reference(pairs, rule, groups, min_words):
    assert_equal_the_reference(pairs, rule, groups, min_words)


TYPOGRAPHY = [
    "'",
    "\u2019",
    '"',
    "\u201c",
    "\u00ab",
    "-",
    "--",
    "\u2014",
    "\u2026",
    "...",
    "\u017f",
]
FOLDED_LETTERS = [
    "s",
    "e\u0301",
    "\u00e9",
    "\ufb01",
    "fi",
    "\u0307",
    "\u0323",
    "\u1100\u1161",
    "\uac00",
    " ",
]
printed = st.lists(st.sampled_from(TYPOGRAPHY + FOLDED_LETTERS), max_size=12).map(
    "".join
)
spaced_text = st.text(
    st.characters(exclude_categories=["Cs", "Cn"]), max_size=12
).filter(lambda text: re.search(second._UNSPACED, text) is None)


def test_the_second_implementation_knows_every_letter_without_spaces():
    """Of texts with one it says that it does not cut them, and never cuts them otherwise."""
    letters = [chr(code) for code in range(sys.maxunicode + 1)]
    letters = [letter for letter in letters if unicodedata.category(letter) != "Cs"]
    frame = pl.DataFrame({"letter": letters}).with_columns(
        text=pl.format("x{}x", "letter")
    )
    counts = frame.select(
        "letter", n_words=kernels.count_words("text", words="script")
    ).filter(pl.col("n_words") > 1)
    parting = [letter for letter in counts["letter"] if not letter.isspace()]
    assert len(parting) > 90_000
    assert [
        letter for letter in parting if not re.match(second._UNSPACED, letter)
    ] == []


@given(st.lists(printed | spaced_text, max_size=8).map(" ".join), printed | spaced_text)
def test_words_are_folded_as_the_second_implementation_folds_them(left, right):
    frame = pl.DataFrame({"candidate": [left, right, left + right], "reference": left})
    numbers = kernels.pair_features(
        "candidate",
        "reference",
        words="folded",
        groups=["unigrams", "leading", "distinct"],
    )
    there = second.split_words(left, "folded")
    for row in frame.select("candidate", numbers.struct.unnest()).iter_rows(named=True):
        answer = second.AnsweredPrompt(
            0,
            row["candidate"],
            left,
            second.split_words(row["candidate"], "folded"),
            there,
        )
        assert row["words_candidate"] == len(answer.words)
        assert row["distinct_candidate"] == len({*answer.words})
        assert row["overlap_1"] == len(answer.common())
        assert row["leading_words"] == len(answer.leading())
    counted = pl.select(kernels.count_words(pl.lit(left), words="folded")).item()
    assert counted == len(left.split()) == len(there)


def test_texts_that_differ_in_typography_alone_have_the_same_words():
    printed = (
        "\u201cIt\u2019s a \ufb01ne mo\u017ft cafe\u0301\u201d\u2014he \u0192aid\u2026 "
        "\u6211\u4eec\u201c\u662f\u201d"
    )
    typed = '"It\'s a fine most caf\u00e9"--he \u0192aid... \u6211\u4eec"\u662f"'
    frame = pl.DataFrame({"candidate": [typed], "reference": [printed]})
    n_leading = {
        rule: (
            frame.select(
                kernels.pair_features(
                    "candidate", "reference", words=rule, groups=["leading"]
                ).struct.field("leading_words")
            ).item()
        )
        for rule in ("folded", "script", "whitespace", "space", "unicode")
    }
    assert n_leading == {
        "folded": 9,
        "script": 0,
        "whitespace": 0,
        "space": 0,
        "unicode": 0,
    }


@given(st.lists(st.lists(pair, max_size=6), min_size=1, max_size=4), st.data())
def test_chunks_slices_and_layouts_change_nothing(chunks, data):
    schema = {"candidate": pl.String, "reference": pl.String}
    frame = pl.concat(
        [pl.DataFrame(rows, schema, orient="row") for rows in chunks], rechunk=False
    )
    offset = data.draw(st.integers(0, frame.height))
    candidate = frame["candidate"][offset:]
    texts = frame["reference"][offset:].to_list()
    cuts = data.draw(st.lists(st.integers(0, len(texts)), max_size=3).map(sorted))
    reference = arrow.chunks(texts, data.draw(st.sampled_from(arrow.LAYOUTS)), cuts)
    numbers = _native.pair_features(
        candidate,
        reference,
        words="whitespace",
        groups=kernels.GROUPS,
        near_verbatim_min_words=8,
    )
    found = pl.Series(numbers).struct.unnest().to_dicts()
    expected = [
        features(left, right, "whitespace", kernels.GROUPS)
        for left, right in frame[offset:].rows()
    ]
    assert compared(found) == compared(expected)


@given(st.lists(st.none() | text, max_size=8), text, rule)
def test_literals_on_either_side(texts, literal, rule):
    frame = pl.DataFrame({"text": texts}, {"text": pl.String})
    for left, right, pairs in (
        ("text", pl.lit(literal), [(text, literal) for text in texts]),
        (pl.lit(literal), "text", [(literal, text) for text in texts]),
    ):
        numbers = kernels.pair_features(left, right, words=rule, groups=kernels.GROUPS)
        found = frame.select(numbers.struct.unnest()).to_dicts()
        assert compared(found) == compared(
            [features(*pair, rule, kernels.GROUPS) for pair in pairs]
        )


@given(st.lists(st.none() | text, max_size=20), rule)
def test_words_and_sizes_of_single_texts(texts, rule):
    frame = pl.DataFrame({"text": texts}, {"text": pl.String})
    numbers = frame.select(
        length=kernels.count_words("text", words=rule),
        size=kernels.zlib_size("text"),
        spans=kernels.word_spans("text", words=rule),
    )
    lengths = [None if text is None else len(SPLIT[rule](text)) for text in texts]
    assert numbers["length"].to_list() == lengths
    if reference_scores.CLASSIC_ZLIB:
        sizes = [
            None if text is None else reference_scores.compressed([text])
            for text in texts
        ]
        assert numbers["size"].to_list() == sizes
    for text, spans in zip(texts, numbers["spans"], strict=True):
        if text is None:
            assert spans is None
            continue
        places = [
            slice(*place) for place in zip(spans["starts"], spans["ends"], strict=True)
        ]
        assert [SPLIT[rule](text[place]) for place in places] == [
            [w] for w in SPLIT[rule](text)
        ]
        assert all(before.stop <= after.start for before, after in pairwise(places))


@given(st.data(), st.integers(1, 4))
def test_blocks_of_copies_with_errors_equal_the_slow_reference(data, min_words):
    reference = data.draw(st.lists(st.sampled_from("abcdefgh"), max_size=60))
    candidate = list(reference)
    edits = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abx ")), max_size=8)
    for at, word in data.draw(edits):
        candidate[at : at + data.draw(st.integers(0, 2))] = word.split()
    assert_equal_the_reference(
        [(" ".join(candidate), " ".join(reference))], min_words=min_words
    )


few = st.text("ab\u0161 ", max_size=40)  # U+0161 is "a" but for its high bits


@given(few, few, few)
def test_runs_of_few_characters_equal_the_slow_reference(shared, left, right):
    assert_equal_the_reference([(left + shared + right, right + shared + left)])


few_words = st.lists(
    st.sampled_from(["a", "b", "B", "the", "café", "你好", "\n"]), max_size=20
)
some = st.lists(st.none() | few_words.map(" ".join), max_size=6)


@given(some, some, st.integers(1, 5), rule)
def test_shared_runs_equal_the_slow_reference(texts, others, n, rule):
    columns = (pl.Series(each, dtype=pl.String) for each in (texts, others))
    found = kernels.shared_runs(*columns, run_words=n, words=rule)
    expected = [reference_kernels.shared_runs(text, others, n, rule) for text in texts]
    assert found.rows() == expected


# Books, and texts of pieces of them with errors.

SEPARATORS = (" ", " ", "  ", "\n", "\u3000", ", ")
LETTERS = "abcdeA\u00e9\u4f60"


@st.composite
def written(draw, most_words, most_pieces):
    """A book of few or many words, and a text of pieces of it with errors in them."""
    random_ = random.Random(draw(st.integers(0, 2**32)))
    n_different = draw(st.sampled_from([2, 20, 2000]))
    said = ["".join(random_.choices(LETTERS, k=4)) for _ in range(n_different)]
    book = random_.choices(
        said, k=draw(st.integers(0, most_words) | st.just(most_words))
    )
    every = draw(st.sampled_from([4, 15, 30, 1000]))  # words from error to error
    pieces = [
        errors(book, random_, every) for _ in range(draw(st.integers(0, most_pieces)))
    ]
    return spaced(book, random_), [spaced(piece, random_) for piece in pieces]


def errors(book, random_, every):
    ends = sorted(random_.choices(range(len(book) + 1), k=4))
    for word in book[ends[0] : ends[-1]]:
        error = random_.random() * every
        if error > 1:
            yield word
        elif error > 0.5:
            yield from random_.choices(["x", word], k=random_.randint(0, 4))


def spaced(words, random_):
    return "".join(word + random_.choice(SEPARATORS) for word in words)


def in_characters(book, rule, passages):
    """Passages by their words as passages by their characters."""
    places = pl.select(kernels.word_spans(pl.lit(book), words=rule)).item()
    return [
        {
            "start": places["starts"][start],
            "end": places["ends"][end - 1],
            "words": n_words,
        }
        for start, end, n_words in passages
    ]


@given(written(400, 4), rule)
def test_recall_equals_the_slow_reference(texts, rule):
    book, pieces = texts
    generation = " ".join(pieces)
    numbers = kernels.near_verbatim_recall(pl.lit(generation), pl.lit(book), words=rule)
    passages = reference_kernels.near_verbatim_passages(generation, book, rule)
    n_words, verbatim = len(SPLIT[rule](book)), sum(words for *_, words in passages)
    assert pl.select(numbers).item() == {
        "recall": verbatim / n_words if n_words else None,
        "verbatim": verbatim,
        "missing": n_words - verbatim,
        "additional": len(SPLIT[rule](generation)) - verbatim,
        "passages": in_characters(book, rule, passages),
    }


@given(written(80, 4), st.data(), st.integers(1, 6), st.integers(1, 6), rule)
def test_coverage_equals_the_slow_reference(texts, data, k, m, rule):
    book, pieces = texts
    generations = [
        data.draw(st.sampled_from([piece, None, " ".join(pieces)])) for piece in pieces
    ]
    cut = [piece[: data.draw(st.integers(0, 60))] for piece in pieces]
    instructions = [
        data.draw(st.sampled_from([text, None, book[-40:]])) for text in cut
    ]
    columns = [pl.Series(each, dtype=pl.String) for each in (generations, instructions)]
    found = kernels.book_coverage(
        book, columns[0], instructions=columns[1], words=rule, k=k, m=m
    )
    asked = zip(generations, instructions, strict=True)
    expected = reference_kernels.book_coverage(book, asked, rule, k, m)
    for name in ("blocks", "long_spans"):
        expected[name] = in_characters(book, rule, expected[name])
    assert found.row(0, named=True) == expected


# Series of numbers.

FEW = st.sampled_from([0.0, -0.25, -1.0, -3.0])
ANY = st.floats(-50, 0, width=32, allow_subnormal=False)
series = st.lists(FEW, max_size=40) | st.lists(ANY, max_size=40)
bins = st.integers(1, 7)


def of(kernel, *lists, **options):
    frame = pl.DataFrame({"x": lists}, {"x": pl.List(pl.Float64)})
    return frame.select(kernel("x", **options))["x"].to_list()


@given(st.lists(st.none() | series, max_size=4), bins)
def test_lempel_ziv_equals_the_reference(lists, bins):
    expected = [each and second.complexity(np.array(each), bins) for each in lists]
    assert of(kernels.lempel_ziv_complexity, *lists, bins=bins) == [
        each or None for each in expected
    ]


@given(series, st.integers(1, 4), st.sampled_from([0.0, 0.2, 0.8, 1.3]))
def test_entropy_equals_the_reference(values, m, r):
    distances = np.abs(np.subtract.outer(values, values))
    near = np.abs(distances - r * np.std(values or [0.0])) <= 1e-9 * distances
    assume(not near[distances > 0].any())  # else rounding decides what is alike
    (found,) = of(kernels.approximate_entropy, values, m=m, r=r)
    assert (found is None) == (len(values) <= m + 1)
    if found is not None:
        assert found == pytest.approx(
            second.irregularity(np.array(values), m, r), abs=1e-9
        )


@pytest.mark.parametrize("seed", range(3))
def test_as_long_as_attacks_give_them(seed):
    draw = random.Random(seed)
    values = [-draw.expovariate(0.5 + seed) for _ in range(200)]
    for n in (3, 4, 5):
        found = of(kernels.lempel_ziv_complexity, values, bins=n)
        assert found == [second.complexity(np.array(values), n)]
    expected = second.irregularity(np.array(values), 8, 0.8)
    assert expected
    assert of(kernels.approximate_entropy, values, m=8, r=0.8) == [
        pytest.approx(expected, abs=1e-12)
    ]
