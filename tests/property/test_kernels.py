"""The kernels against slow references, on random texts in random Arrow layouts."""

from __future__ import annotations

import sys
from itertools import pairwise

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from mia_batch import _native
from mia_batch.kernels import GROUPS, count_words, pair_features, word_spans, zlib_size
from tests import arrow, reference_scores
from tests.reference_kernels import QUICK_RULES, SPLIT, compared, features

SPACES = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]

word = st.sampled_from(["a", "b", "the", "the", "The", "café", "你好", "🙂", "\0", "\u212as,İs"])
space = st.sampled_from([" ", " ", " ", "  ", *SPACES])
prose = st.lists(st.tuples(word, space), max_size=40).map(
    lambda parts: "".join(f"{word}{space}" for word, space in parts)
)
text = prose | st.text(max_size=30)
rule = st.sampled_from(QUICK_RULES)
groups = st.lists(st.sampled_from(GROUPS)) | st.just(GROUPS)
pair = st.tuples(st.none() | text, st.none() | text)


@given(st.lists(pair, max_size=12), rule, groups, st.integers(1, 6))
def test_features_equal_the_slow_reference(pairs, rule, groups, min_words):
    frame = pl.DataFrame(pairs, {"candidate": pl.String, "reference": pl.String}, orient="row")
    numbers = pair_features(
        "candidate", "reference", words=rule, groups=groups, near_verbatim_min_words=min_words
    )
    found = frame.select(numbers.struct.unnest()).to_dicts()
    assert compared(found) == compared(
        [features(left, right, rule, groups, min_words) for left, right in pairs]
    )


@given(st.lists(st.lists(pair, max_size=6), min_size=1, max_size=4), st.data())
def test_chunks_slices_and_layouts_change_nothing(chunks, data):
    schema = {"candidate": pl.String, "reference": pl.String}
    frame = pl.concat([pl.DataFrame(rows, schema, orient="row") for rows in chunks], rechunk=False)
    offset = data.draw(st.integers(0, frame.height))
    candidate = frame["candidate"][offset:]
    texts = frame["reference"][offset:].to_list()
    cuts = data.draw(st.lists(st.integers(0, len(texts)), max_size=3).map(sorted))
    reference = arrow.chunks(texts, data.draw(st.sampled_from(arrow.LAYOUTS)), cuts)
    numbers = _native.pair_features(
        candidate, reference, words="whitespace", groups=GROUPS, near_verbatim_min_words=8
    )
    found = pl.Series(numbers).struct.unnest().to_dicts()
    expected = [
        features(left, right, "whitespace", GROUPS) for left, right in frame[offset:].rows()
    ]
    assert compared(found) == compared(expected)


@given(st.lists(st.none() | text, max_size=8), text, rule)
def test_literals_on_either_side(texts, literal, rule):
    frame = pl.DataFrame({"text": texts}, {"text": pl.String})
    for left, right, pairs in (
        ("text", pl.lit(literal), [(text, literal) for text in texts]),
        (pl.lit(literal), "text", [(literal, text) for text in texts]),
    ):
        numbers = pair_features(left, right, words=rule, groups=GROUPS)
        found = frame.select(numbers.struct.unnest()).to_dicts()
        assert compared(found) == compared([features(*pair, rule, GROUPS) for pair in pairs])


@given(text, text)
def test_recall_one_way_is_precision_the_other(left, right):
    frame = pl.DataFrame({"left": [left], "right": [right]})
    there, back = (
        frame.select(pair_features(*sides)).unnest("features").row(0, named=True)
        for sides in [("left", "right"), ("right", "left")]
    )
    assert there["words_candidate"] == back["words_reference"]
    assert [there[f"overlap_{n}"] for n in reference_scores.SIZES] == [
        back[f"overlap_{n}"] for n in reference_scores.SIZES
    ]


@given(st.lists(st.none() | text, max_size=20), rule)
def test_words_and_sizes_of_single_texts(texts, rule):
    frame = pl.DataFrame({"text": texts}, {"text": pl.String})
    numbers = frame.select(length=count_words("text", words=rule), size=zlib_size("text"))
    lengths = [None if text is None else len(SPLIT[rule](text)) for text in texts]
    assert numbers["length"].to_list() == lengths
    if reference_scores.CLASSIC_ZLIB:
        sizes = [None if text is None else reference_scores.compressed([text]) for text in texts]
        assert numbers["size"].to_list() == sizes


@given(st.lists(st.none() | text, max_size=20), rule)
def test_words_stand_where_they_are_told(texts, rule):
    frame = pl.DataFrame({"text": texts}, {"text": pl.String})
    found = frame.select(word_spans("text", words=rule)).to_series().to_list()
    for text, spans in zip(texts, found, strict=True):
        if text is None:
            assert spans is None
            continue
        places = [slice(*place) for place in zip(spans["starts"], spans["ends"], strict=True)]
        assert [SPLIT[rule](text[place]) for place in places] == [[w] for w in SPLIT[rule](text)]
        assert all(before.stop <= after.start for before, after in pairwise(places))


@given(st.data(), st.integers(1, 4))
def test_blocks_of_copies_with_errors_equal_the_slow_reference(data, min_words):
    reference = data.draw(st.lists(st.sampled_from("abcdefgh"), max_size=60))
    candidate = list(reference)
    edits = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abx ")), max_size=8)
    for at, word in data.draw(edits):
        candidate[at : at + data.draw(st.integers(0, 2))] = word.split()
    pair = (" ".join(candidate), " ".join(reference))
    numbers = pair_features(*map(pl.lit, pair), groups=GROUPS, near_verbatim_min_words=min_words)
    found = pl.select(numbers).unnest("features").to_dicts()
    assert compared(found) == compared([features(*pair, "whitespace", GROUPS, min_words)])


few = st.text("ab\u0161 ", max_size=40)  # U+0161 is "a" but for its high bits


@given(few, few, few)
def test_runs_of_few_characters_equal_the_slow_reference(shared, left, right):
    pair = (left + shared + right, right + shared + left)
    numbers = pair_features(*map(pl.lit, pair), groups=GROUPS)
    found = pl.select(numbers).unnest("features").to_dicts()
    assert compared(found) == compared([features(*pair, "whitespace", GROUPS)])
