"""The kernels' face: engines, literals, nulls, refusals; numbers by hand where no law says them."""

import math
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.kernels import (
    FEATURES,
    GROUPS,
    PASSAGES,
    approximate_entropy,
    book_coverage,
    count_words,
    fields,
    lempel_ziv_complexity,
    near_verbatim_recall,
    pair_features,
    shared_runs,
    word_spans,
    zlib_size,
)
from tests.processes import HANGS

PAIRS = pl.DataFrame(
    {
        "candidate": ["x  the\ncat sat on the mat", "the the the", "", None, "a"],
        "reference": ["the cat sat", "the cat", "a b", "a", None],
    }
)
BY_HAND = {
    "words_candidate": [7, 3, 0],
    "words_reference": [3, 2, 2],
    "overlap_1": [3, 1, 0],
    "overlap_2": [2, 0, 0],
    "overlap_3": [1, 0, 0],
    "overlap_4": [0, 0, 0],
    "overlap_5": [0, 0, 0],
    "zlib_candidate": [27, 14, 8],  # by Python's zlib 1.2.13
    "words_candidate_matched": [3, 2, 0],
    "overlap_1_matched": [2, 1, 0],
    "overlap_2_matched": [1, 0, 0],
    "overlap_3_matched": [0, 0, 0],
    "overlap_4_matched": [0, 0, 0],
    "overlap_5_matched": [0, 0, 0],
    "zlib_candidate_matched": [17, 15, 8],
}
NUMBERS = pl.DataFrame(
    {name: [*numbers, None, None] for name, numbers in BY_HAND.items()},
    schema_overrides=FEATURES.to_schema(),
)


def numbers(candidate, reference, *groups, **options):
    pair = pair_features(pl.lit(candidate), pl.lit(reference), groups=groups, **options)
    return pl.select(pair).unnest("features").row(0, named=True)


def test_features_of_hand_counted_pairs_next_to_other_columns():
    extended = PAIRS.with_columns(pair_features("candidate", "reference"))
    assert_frame_equal(extended.drop("features"), PAIRS)
    assert extended.schema["features"] == FEATURES == fields()
    assert extended["features"].is_null().to_list() == [False, False, False, True, True]
    assert_frame_equal(extended.select("features").unnest("features"), NUMBERS)


def test_looped_texts_take_no_longer_than_others():
    """64 KiB each; minutes where time grows with the square of the copies."""
    loop = ("the cat sat on the mat and ate " * 3000)[: 1 << 16]
    n_words = len(loop.split())
    found = numbers(loop, loop, *GROUPS)
    for name in (
        "lcs_words",
        "longest_block_words",
        "near_verbatim_words",
        "covered_12",
    ):
        assert found[name] == found[f"{name}_matched"] == n_words
    assert (
        found["longest_block_chars"] == found["characters_overlap_3"] + 2 == len(loop)
    )
    shifted = numbers("cat " + loop, loop, "blocks", "coverage")
    assert shifted["longest_block_words"] == shifted["near_verbatim_words"] == n_words
    assert (shifted["longest_block_start"], shifted["covered_12"]) == (0, n_words)


@pytest.mark.parametrize(
    "groups", [*[[group] for group in GROUPS], GROUPS, GROUPS[::-1], []]
)
def test_fields_are_those_of_the_groups(groups):
    found = PAIRS.select(pair_features("candidate", "reference", groups=groups))
    assert found.schema == {"features": fields(groups)}
    everything = PAIRS.select(pair_features("candidate", "reference", groups=GROUPS))
    names = list(fields(groups).to_schema())
    assert_frame_equal(
        found.unnest("features"), everything.unnest("features").select(names)
    )


# Polars: engines, files, groups, literals, chunks, nulls.


def test_streaming_engine_and_files(tmp_path):
    source, target = tmp_path / "pairs.parquet", tmp_path / "features.parquet"
    pl.concat([PAIRS] * 50).write_parquet(source, row_group_size=7)
    query = pl.scan_parquet(source).select(
        pair_features("candidate", "reference").struct.unnest(),
        size=zlib_size("candidate"),
        length=count_words("candidate"),
    )
    sizes, lengths = pl.Series([29, 14, 8, None, 9]), pl.Series([7, 3, 0, None, 1])
    expected = pl.concat([NUMBERS.with_columns(size=sizes, length=lengths)] * 50)
    query.sink_parquet(target)
    for result in (query.collect(engine="streaming"), pl.read_parquet(target)):
        assert_frame_equal(result, expected, check_dtypes=False)


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_two_literals_fill_the_frame(engine):
    frame = pl.LazyFrame({"row": [0, 1, 2]})
    pair = pair_features(pl.lit("a b c"), pl.lit("b c"))
    filled = frame.with_columns(pair.struct.field("overlap_2")).collect(engine=engine)
    assert filled["overlap_2"].to_list() == [1, 1, 1]
    assert frame.select(pair).collect(engine=engine).height == 1


@pytest.mark.parametrize("reference", [pl.col("reference"), pl.lit("a b")])
def test_empty_frames_give_empty_columns(reference):
    features = pair_features("candidate", reference)
    empty = PAIRS.clear().select(
        features, zlib_size("candidate"), words=count_words("candidate")
    )
    assert empty.schema == {
        "features": FEATURES,
        "candidate": pl.UInt32,
        "words": pl.UInt32,
    }
    assert empty.height == 0


def test_columns_of_nothing_but_nulls():
    nothing = pl.DataFrame({"text": [None, None], "other": ["a", "b"]})
    found = nothing.select(
        zlib_size("text"),
        length=count_words("text"),
        left=pair_features("text", "other"),
        right=pair_features("other", "text"),
        literal=pair_features("other", pl.lit(None)),
    )
    assert found.null_count().row(0) == (2, 2, 2, 2, 2)
    assert found.schema["left"] == found.schema["literal"] == FEATURES


def test_rows_do_not_depend_on_the_number_of_threads():
    program = """
import polars as pl
from mia_batch.kernels import GROUPS, RarityTable, pair_features
row = pl.int_range(2000)
words = pl.int_ranges(row, row + row // 2).cast(pl.List(pl.String)).list.join(" ")
frame = pl.select(
    row=row,
    candidate=pl.format("a b {} a {} ", row, row.reverse()) + words,
    reference=pl.format("a {} ", row // 10) + words.reverse(),
)
table = RarityTable.count([frame], n_groups=2000, words="whitespace")
pair = ("candidate", "reference")
weighed = table.weigh(*pair, words="whitespace")
print(frame.select(weighed, pair_features(*pair, groups=GROUPS)).hash_rows().sum())
print(table.rows("m", "v").hash_rows().sum())
"""
    digests = {
        subprocess.check_output(
            [sys.executable, "-c", program],
            env=os.environ
            | {
                "RAYON_NUM_THREADS": threads,
                "POLARS_MAX_THREADS": threads,
            },
        )
        for threads in ("1", "5")
    }
    assert len(digests) == 1


def test_calls_at_the_same_time_give_what_each_gives_alone():
    row = pl.int_range(600)
    words = (
        pl.int_ranges(row % 7, row % 7 + row // 5)
        .cast(pl.List(pl.String))
        .list.join(" ")
    )
    pairs = pl.select(candidate=words, reference=words.reverse())
    numbers = pair_features("candidate", "reference", groups=GROUPS)
    alone = pairs.select(numbers)
    n_calls = 2 * pl.thread_pool_size() + 1
    begun = threading.Barrier(n_calls, timeout=HANGS)

    def call(_: int) -> list[pl.DataFrame]:
        begun.wait()
        return [pairs.select(numbers) for _ in range(5)]

    with ThreadPoolExecutor(n_calls) as pool:
        found = [frame for frames in pool.map(call, range(n_calls)) for frame in frames]
    assert len(found) == 5 * n_calls
    assert all(frame.equals(alone) for frame in found)


# Complexity of series.

KERNELS = [
    partial(lempel_ziv_complexity, bins=3),
    partial(approximate_entropy, m=1, r=0.8),
]


def of(kernel, values):
    return (
        pl.DataFrame({"x": [values]}, {"x": pl.List(pl.Float64)})
        .select(kernel("x"))
        .item()
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_not_finite_gives_null_and_nulls_are_left_out(kernel):
    values = [-1.0, -2.0, 0.0, -1.0, -1.0]
    for bad in (math.nan, math.inf, -math.inf):
        assert of(kernel, [*values, bad]) is None
    assert of(kernel, [None, *values[:2], None, *values[2:]]) == of(kernel, values)
    assert [of(kernel, each) for each in ([None, None, None], None, [])] == [None] * 3


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_types_chunks_and_engines_change_nothing(kernel, engine):
    lists = [[-1.0, 0.0, -2.5, -1.0], None, [0.0] * 5, []]
    parts = [
        pl.DataFrame({"x": [each]}, {"x": pl.List(pl.Float32)}) for each in lists * 9
    ]
    chunks = pl.concat(parts, rechunk=False).lazy()
    found = chunks.select(kernel("x")).collect(engine=engine)["x"]
    assert found.dtype == pl.Float64
    assert found.to_list() == [of(kernel, each) for each in lists] * 9
    for nothing in ([None, None], [[None], None]):
        assert pl.DataFrame({"x": nothing}).select(kernel("x"))["x"].to_list() == [
            None,
            None,
        ]


# What comes out of a book.

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
        (BOOK[:60] + BOOK[62:122], 120),  # too far apart for the first pass alone
        (BOOK[:15] + OTHERS[:2] + BOOK[17:150], 148),
        (BOOK[:15] + OTHERS[:3] + BOOK[18:150], 132),  # 15 words do not pass the first
        (BOOK[:60] + OTHERS[:10] + BOOK[70:130], 120),
        (BOOK[:60] + OTHERS[:11] + BOOK[71:131], 0),
        (BOOK[:60] + BOOK[63:123], 120),
        (BOOK[:60] + BOOK[64:124], 0),
        (BOOK[:60] + OTHERS[:4] + BOOK[60:120], 0),  # either way
        (BOOK[100:] + BOOK[:100], 100),  # of two that cross, the first of the book
        (BOOK[:30] * 1000, 0),  # minutes where time grows with the square of the copies
        ([], 0),
    ],
)
def test_words_that_are_recalled(generation, verbatim):
    found = recall(generation)
    assert (found["recall"], found["verbatim"]) == (verbatim / 200, verbatim)
    assert (found["missing"], found["additional"]) == (
        200 - verbatim,
        len(generation) - verbatim,
    )
    assert sum(passage["words"] for passage in found["passages"]) == verbatim


def test_of_nothing_recall_is_unknown_and_nothing_is_covered():
    pairs = pl.DataFrame({"generation": ["a", None, "a"], "book": [" ", "a", None]})
    found = pairs.select(near_verbatim_recall("generation", "book")).to_series()
    counts = {"recall": None, "verbatim": 0, "missing": 0, "additional": 1}
    assert found.to_list() == [counts | {"passages": []}, None, None]
    assert found.struct.schema["passages"] == PASSAGES
    nothing = pl.Series([], dtype=pl.String)
    assert book_coverage("a b", nothing).row(0) == (0.0, 2, 0, 0, 0, 0, [], [])
    assert book_coverage(" ", pl.Series(["a"])).row(0) == (None, 0, 0, 0, 0, 0, [], [])


# What is refused.

FRAME = pl.DataFrame(
    {"a": [1], "x": ["a"], "c": pl.Series(["a"], dtype=pl.Categorical)}
)
SAID, ONE_TEXT = pl.Series(["a b"]), (zlib_size, word_spans)
COUNTS = (0, -1, 2**32, 1.5, "8")
WHOLE, LISTED = (
    "is {!r}; use a whole number of 1 to 4294967295",
    "is {!r}; use a list of names",
)
UNKNOWN = "unknown word rule {!r}; use one of whitespace"
RULES = [
    partial(pair_features, "a", "b"),
    partial(count_words, "a"),
    partial(word_spans, "a"),
    partial(near_verbatim_recall, "a", "b"),
    partial(shared_runs, SAID, SAID, run_words=1),
]


@pytest.mark.parametrize(
    ("call", "name", "values", "sentence"),
    [
        (partial(pair_features, "a", "b"), "near_verbatim_min_words", COUNTS, WHOLE),
        (partial(lempel_ziv_complexity, "x"), "bins", COUNTS, WHOLE),
        (partial(approximate_entropy, "x", r=0.8), "m", COUNTS, WHOLE),
        (
            partial(approximate_entropy, "x", m=2),
            "r",
            (-0.1, math.nan, math.inf),
            "is {!r}; use a",
        ),
        (partial(shared_runs, SAID, SAID), "run_words", (0, 2**64), WHOLE),
        (partial(book_coverage, "a", SAID), "k", (0,), WHOLE),
        (partial(book_coverage, "a", SAID), "m", (0,), WHOLE),
        *((call, "words", ("w",), UNKNOWN) for call in RULES),
        (fields, "groups", ("zlib", None, 3), LISTED),
        (partial(pair_features, "a", "b"), "groups", ("zlib", None), LISTED),
        (
            fields,
            "groups",
            (["rouge"],),
            "unknown group 'rouge'; use some of unigrams, ngrams",
        ),
    ],
)
def test_settings_that_are_refused(call, name, values, sentence):
    for value in values:
        with pytest.raises(SettingsError, match=re.escape(sentence.format(value))):
            call(**{name: value})


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "column", [pl.lit("a"), pl.lit(1.0), pl.lit(["a"], pl.List(pl.String))]
)
def test_what_is_no_list_of_numbers_is_refused(kernel, column):
    with pytest.raises(
        SchemaMismatchError, match="must be a column of lists of numbers, not"
    ):
        pl.select(kernel(column))


@pytest.mark.parametrize(
    ("call", "arguments", "sentence"),
    [
        *((call, ("a",), "text .* not Int64; cast it") for call in ONE_TEXT),
        *((call, (3,), "text is of type int; use an expression") for call in ONE_TEXT),
        (pair_features, ("a", "x"), "candidate must be .* strings, not Int64"),
        (pair_features, ("x", "a"), "reference must be .* strings, not Int64"),
        (pair_features, ("c", "x"), "candidate must be"),
        (
            pair_features,
            ("x", None),
            "reference is of type NoneType; use an expression",
        ),
        (
            partial(shared_runs, run_words=1),
            (SAID, ["a"]),
            "others is of type list; use a series",
        ),
        (
            partial(shared_runs, run_words=1),
            (SAID, FRAME["a"]),
            "others must be .* strings",
        ),
        (
            book_coverage,
            ("a", FRAME["a"]),
            "generations must be an Arrow column of strings",
        ),
        (
            partial(book_coverage, instructions=pl.Series(["a", "b"])),
            ("a", SAID),
            "1 generations and 2 instructions; pass columns",
        ),
    ],
)
def test_columns_that_are_refused(call, arguments, sentence):
    with pytest.raises(SchemaMismatchError, match=sentence):
        FRAME.select(call(*arguments))
