from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import polars as pl
import pytest
from polars.testing import assert_frame_equal, assert_series_equal

from mia_batch import _native
from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.kernels import (
    FEATURES,
    GROUPS,
    count_words,
    fields,
    pair_features,
    shared_runs,
    word_spans,
    zlib_size,
)
from tests import arrow
from tests.processes import HANGS

PAIRS = pl.DataFrame(
    {
        "candidate": ["x  the\ncat sat on the mat", "the the the", "", None, "a"],
        "reference": ["the cat sat", "the cat", "a b", "a", None],
    }
)

NUMBERS = pl.DataFrame(
    {
        "words_candidate": [7, 3, 0, None, None],
        "words_reference": [3, 2, 2, None, None],
        "overlap_1": [3, 1, 0, None, None],
        "overlap_2": [2, 0, 0, None, None],
        "overlap_3": [1, 0, 0, None, None],
        "overlap_4": [0, 0, 0, None, None],
        "overlap_5": [0, 0, 0, None, None],
        "zlib_candidate": [27, 14, 8, None, None],
        "words_candidate_matched": [3, 2, 0, None, None],
        "overlap_1_matched": [2, 1, 0, None, None],
        "overlap_2_matched": [1, 0, 0, None, None],
        "overlap_3_matched": [0, 0, 0, None, None],
        "overlap_4_matched": [0, 0, 0, None, None],
        "overlap_5_matched": [0, 0, 0, None, None],
        "zlib_candidate_matched": [17, 15, 8, None, None],
    },
    schema_overrides=FEATURES.to_schema(),
)
"""Counted by hand, the sizes by Python's zlib 1.2.13."""


def test_features_of_hand_counted_pairs():
    selected = PAIRS.select(pair_features("candidate", "reference"))
    assert selected.schema == {"features": FEATURES}
    assert selected["features"].is_null().to_list() == [False, False, False, True, True]
    assert_frame_equal(selected.unnest("features"), NUMBERS)


def test_longest_common_subsequence():
    """Of the seven words three stand in the order of the reference; cut to three, two do."""
    numbers = pair_features("candidate", "reference", groups=["matched", "lcs"])
    found = PAIRS[:3].select(numbers.struct.unnest())
    assert found["lcs_words"].to_list() == [3, 1, 0]
    assert found["lcs_words_matched"].to_list() == [2, 1, 0]


def test_long_references_take_several_limbs():
    row = pl.int_range(300, dtype=pl.UInt32).cast(pl.String)
    numbers = pl.select(
        there=pair_features(row.str.join(" "), row.str.join(" "), groups=["lcs"]),
        back=pair_features(row.reverse().str.join(" "), row.str.join(" "), groups=["lcs"]),
    )
    assert numbers.row(0) == (
        {"words_candidate": 300, "words_reference": 300, "lcs_words": 300},
        {"words_candidate": 300, "words_reference": 300, "lcs_words": 1},
    )


def numbers(candidate, reference, *groups, min_words=8):
    pair = pair_features(
        pl.lit(candidate),
        pl.lit(reference),
        groups=groups,
        near_verbatim_min_words=min_words,
    )
    return pl.select(pair).unnest("features").row(0, named=True)


def test_longest_blocks():
    """Both "cat sat" and "on the" are longest in words; the first stands first in the reference.

    In characters the longest is "e cat sat" of "The cat sat" and "the cat sat".
    """
    found = numbers("on the mat The cat sat", "so the cat sat on the rug", "blocks", "matched")
    assert found == {
        "words_candidate": 6,
        "words_reference": 7,
        "longest_block_words": 2,
        "longest_block_start": 2,
        "longest_block_chars": 10,
        "longest_block_chars_start": 4,
        "near_verbatim_words": 0,
        "words_candidate_matched": 6,
        "longest_block_words_matched": 2,
        "longest_block_start_matched": 2,
        "longest_block_chars_matched": 10,
        "longest_block_chars_start_matched": 4,
        "near_verbatim_words_matched": 0,
    }


def test_blocks_of_nothing_start_nowhere():
    found = numbers("a b", "ccc", "blocks", "matched")
    assert (found["longest_block_words"], found["longest_block_start"]) == (0, None)
    assert (found["longest_block_chars"], found["longest_block_chars_start"]) == (0, None)
    assert found["longest_block_start_matched"] is None


def test_characters_are_not_bytes():
    """Four bytes of one emoji are fewer characters than two letters."""
    found = numbers("xab🙂", "🙂ab", "blocks")
    assert (found["longest_block_chars"], found["longest_block_chars_start"]) == (2, 1)


def test_near_verbatim_blocks_stand_in_one_order():
    """Of a-e and f-i the longer is taken first; f-i stands on the wrong side of it."""
    reference, candidate = "a b c d e x f g h i", "f g h i y a b c d e z"
    for min_words, n_words in [(1, 5), (5, 5), (6, 0)]:
        found = numbers(candidate, reference, "blocks", min_words=min_words)
        assert found["near_verbatim_words"] == n_words
    assert numbers(reference, reference, "blocks")["near_verbatim_words"] == 10
    ordered = "a b c d e y f g h i"
    for min_words, n_words in [(4, 9), (5, 5)]:
        found = numbers(ordered, reference, "blocks", min_words=min_words)
        assert found["near_verbatim_words"] == n_words


def test_coverage_of_each_length():
    """Shared spans: "a b c" of the candidate's start, "c d" within it and again at its end."""
    found = numbers("a b c x c d", "a b c d a b", "coverage")
    assert [found[f"covered_{length}"] for length in (2, 3, 4, 12)] == [5, 3, 0, 0]
    assert [found[f"covered_reference_{length}"] for length in (2, 3, 4)] == [6, 3, 0]


def test_looped_texts_take_no_longer_than_others():
    """64 KiB each; minutes where time grows with the square of the copies."""
    loop = ("the cat sat on the mat and ate " * 3000)[: 1 << 16]
    n_words = len(loop.split())
    found = numbers(loop, loop, *GROUPS)
    for name in ("lcs_words", "longest_block_words", "near_verbatim_words", "covered_12"):
        assert found[name] == found[f"{name}_matched"] == n_words
    assert found["longest_block_chars"] == found["characters_overlap_3"] + 2 == len(loop)
    shifted = numbers("cat " + loop, loop, "blocks", "coverage")
    assert shifted["longest_block_words"] == shifted["near_verbatim_words"] == n_words
    assert (shifted["longest_block_start"], shifted["covered_12"]) == (0, n_words)


def test_distinct_words():
    assert numbers("a b a c b a", "a a d", "matched", "distinct") == {
        "words_candidate": 6,
        "words_reference": 3,
        "distinct_reference": 2,
        "distinct_candidate": 3,
        "words_candidate_matched": 3,
        "distinct_candidate_matched": 2,
    }


def test_what_agrees_before_the_first_difference():
    """Three words, then sat and ran; of the texts "the  cat " but one space and a letter."""
    assert numbers("the cat has ran on", "the  cat has sat on", "leading", "matched") == {
        "words_candidate": 5,
        "words_reference": 5,
        "leading_words": 3,
        "leading_characters": 4,
        "words_candidate_matched": 5,
        "leading_words_matched": 3,
        "leading_characters_matched": 4,
    }


@pytest.mark.parametrize(
    ("candidate", "reference", "n_words", "n_characters"),
    [
        ("a b", "a b c", 2, 3),
        ("a b c", "a b", 2, 3),
        ("x a b", "a b", 0, 0),
        ("a x b a", "a b", 1, 2),
        ("b a", "a b", 0, 0),
        ("", "a", 0, 0),
        ("", "", 0, 0),
        ("h\u00e9", "h\u00e8", 0, 1),
    ],
)
def test_leading_words_and_characters(candidate, reference, n_words, n_characters):
    found = numbers(candidate, reference, "leading")
    assert (found["leading_words"], found["leading_characters"]) == (n_words, n_characters)


def test_characters():
    """Shared: 我们的 twice on the left and once on the right, 们的书 once; then 我们的书本 once."""
    assert numbers("我们的我们的书本", "我们的书本 好", "characters", "matched") == {
        "words_candidate": 1,
        "words_reference": 2,
        "characters_reference": 7,
        "characters_candidate": 8,
        "characters_overlap_3": 3,
        "characters_overlap_5": 1,
        "words_candidate_matched": 1,
        "characters_candidate_matched": 8,
        "characters_overlap_3_matched": 3,
        "characters_overlap_5_matched": 1,
    }


def test_cut_text_ends_with_its_last_word():
    found = numbers(" ab\n cd  ef ", "x y", "characters", "matched")
    assert (found["characters_candidate"], found["characters_candidate_matched"]) == (12, 7)
    found = numbers(" ab\n cd  ", "x y", "characters", "matched")
    assert (found["characters_candidate"], found["characters_candidate_matched"]) == (9, 9)


@pytest.mark.parametrize("min_words", [0, -1, 2**32, 1.5, "8"])
def test_blocks_have_words(min_words):
    with pytest.raises(
        SettingsError, match=f"near_verbatim_min_words is {min_words!r}; use a whole"
    ):
        pair_features("a", "b", near_verbatim_min_words=min_words)


@pytest.mark.parametrize("groups", [*[[group] for group in GROUPS], GROUPS, GROUPS[::-1], []])
def test_fields_are_those_of_the_groups(groups):
    found = PAIRS.select(pair_features("candidate", "reference", groups=groups))
    assert found.schema == {"features": fields(groups)}
    everything = PAIRS.select(pair_features("candidate", "reference", groups=GROUPS))
    names = list(fields(groups).to_schema())
    assert_frame_equal(found.unnest("features"), everything.unnest("features").select(names))


def test_names_of_fields():
    assert list(fields([]).to_schema()) == ["words_candidate", "words_reference"]
    assert list(fields(["matched", "lcs", "zlib"]).to_schema()) == [
        "words_candidate",
        "words_reference",
        "zlib_candidate",
        "lcs_words",
        "words_candidate_matched",
        "zlib_candidate_matched",
        "lcs_words_matched",
    ]
    assert fields() == FEATURES


@pytest.mark.parametrize("expression", [fields, partial(pair_features, "a", "b")])
def test_unknown_groups_are_refused(expression):
    with pytest.raises(SettingsError, match="unknown group 'rouge'; use some of unigrams, ngrams"):
        expression(groups=["rouge"])
    for groups in ("zlib", None, 3):
        with pytest.raises(SettingsError, match=f"groups is {groups!r}; use a list of names"):
            expression(groups=groups)


def test_other_columns_stay_as_they_are():
    extended = PAIRS.with_columns(pair_features("candidate", "reference"))
    assert_frame_equal(extended.drop("features"), PAIRS)
    assert_frame_equal(extended.select("features").unnest("features"), NUMBERS)


def test_streaming_engine_and_files(tmp_path):
    source, target = tmp_path / "pairs.parquet", tmp_path / "features.parquet"
    pl.concat([PAIRS] * 50).write_parquet(source, row_group_size=7)
    query = pl.scan_parquet(source).select(
        pair_features("candidate", "reference").struct.unnest(),
        size=zlib_size("candidate"),
        length=count_words("candidate"),
    )
    expected = pl.concat(
        [
            NUMBERS.with_columns(
                size=pl.Series([29, 14, 8, None, 9]), length=pl.Series([7, 3, 0, None, 1])
            )
        ]
        * 50
    )
    query.sink_parquet(target)
    for result in (query.collect(engine="streaming"), pl.read_parquet(target)):
        assert_frame_equal(result, expected, check_dtypes=False)


def test_groups_and_windows():
    pairs = pl.DataFrame(
        {"key": [1, 2, 1], "candidate": ["a b", "c", "b"], "reference": ["b", "c", "b"]}
    )
    overlap = pair_features("candidate", "reference").struct.field("overlap_1")
    grouped = pairs.group_by("key", maintain_order=True).agg(overlap.sum())
    assert grouped["overlap_1"].to_list() == [2, 1]
    assert pairs.select(overlap.sum().over("key"))["overlap_1"].to_list() == [2, 1, 2]


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_literal_sides_are_repeated_and_never_swapped(engine):
    texts = pl.LazyFrame({"text": ["a", "a b c d", None]})
    literal = pl.lit("a b")
    right = texts.select(pair_features("text", literal).struct.unnest()).collect(engine=engine)
    left = texts.select(pair_features(literal, "text").struct.unnest()).collect(engine=engine)
    words = ["words_candidate", "words_reference", "words_candidate_matched"]
    assert right.select(words).rows() == [(1, 2, 1), (4, 2, 2), (None, None, None)]
    assert left.select(words).rows() == [(2, 1, 1), (2, 4, 2), (None, None, None)]


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_two_literals_fill_the_frame(engine):
    frame = pl.LazyFrame({"row": [0, 1, 2]})
    pair = pair_features(pl.lit("a b c"), pl.lit("b c"))
    filled = frame.with_columns(pair.struct.field("overlap_2")).collect(engine=engine)
    assert filled["overlap_2"].to_list() == [1, 1, 1]
    assert frame.select(pair).collect(engine=engine).height == 1


@pytest.mark.parametrize("reference", [pl.col("reference"), pl.lit("a b")])
def test_empty_frames_give_empty_columns(reference):
    empty = PAIRS.clear().select(
        pair_features("candidate", reference),
        size=zlib_size("candidate"),
        length=count_words("candidate"),
    )
    assert empty.schema == {"features": FEATURES, "size": pl.UInt32, "length": pl.UInt32}
    assert empty.height == 0


def test_columns_of_nothing_but_nulls():
    nothing = pl.DataFrame({"text": [None, None], "other": ["a", "b"]})
    assert nothing.schema["text"] == pl.Null
    numbers = nothing.select(
        zlib_size("text"),
        length=count_words("text"),
        left=pair_features("text", "other"),
        right=pair_features("other", "text"),
        literal=pair_features("other", pl.lit(None)),
    )
    assert numbers.null_count().row(0) == (2, 2, 2, 2, 2)
    assert numbers.schema["left"] == numbers.schema["literal"] == FEATURES


def test_slices_and_chunks():
    chunks = pl.concat([PAIRS[1:3], PAIRS[:2], PAIRS[4:]], rechunk=False)
    assert chunks.n_chunks() == 3
    expected = pl.concat([NUMBERS[1:3], NUMBERS[:2], NUMBERS[4:]])
    found = chunks.select(pair_features("candidate", "reference")).unnest("features")
    assert_frame_equal(found, expected)
    sides = chunks.with_columns(chunks["reference"].rechunk())
    assert [side.n_chunks() for side in sides] == [3, 1]
    assert_frame_equal(
        sides.select(pair_features("candidate", "reference")).unnest("features"), expected
    )


@pytest.mark.parametrize("layout", arrow.LAYOUTS)
def test_every_layout_of_strings(layout):
    columns = [arrow.strings(PAIRS[side].to_list(), layout, offset=1) for side in PAIRS.columns]
    pair_features = partial(
        _native.pair_features,
        words="whitespace",
        groups=["unigrams", "ngrams", "zlib", "matched"],
        near_verbatim_min_words=8,
    )
    found = pl.Series(pair_features(*columns))
    assert_frame_equal(found.struct.unnest(), NUMBERS[1:])
    mixed = pair_features(columns[0], PAIRS["reference"][1:])
    assert_series_equal(pl.Series(mixed), found)


def test_rows_do_not_depend_on_the_number_of_threads():
    program = """
import polars as pl
from mia_batch.kernels import GROUPS, pair_features
row = pl.int_range(2000)
words = pl.int_ranges(row, row + row // 2).cast(pl.List(pl.String)).list.join(" ")
frame = pl.select(
    candidate=pl.format("a b {} a {} ", row, row.reverse()) + words,
    reference=pl.format("a {} ", row // 10) + words.reverse(),
)
print(frame.select(pair_features("candidate", "reference", groups=GROUPS)).hash_rows().sum())
"""
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"RAYON_NUM_THREADS": threads},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for threads in ("1", "2", "5")
    }
    assert len(digests) == 1


def test_calls_at_the_same_time_give_what_each_gives_alone():
    row = pl.int_range(600)
    words = pl.int_ranges(row % 7, row % 7 + row // 5).cast(pl.List(pl.String)).list.join(" ")
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


def test_word_rules():
    text = pl.lit(" to\nbe  or\u00a0not ")
    assert pl.select(count_words(text)).item() == 4
    assert pl.select(count_words(text, words="space")).item() == 2


@pytest.mark.parametrize(
    ("text", "n_words"),
    [
        ("The quick (“brown”) fox can't jump 32.3 feet, right?", 9),  # the annex's own example
        ("e-mail co\u0301te", 3),  # a combining mark stays with its letter
        ("我们的书。", 4),
        ("東京タワーへ行く", 6),  # 東, 京, タワー, へ, 行, く: katakana stays together
        ("ภาษาไทย", 7),  # no dictionary: a letter with its marks is a word
        ("서울 사람", 2),
        ("שלום עולם", 2),
        ("привет, мир!", 2),
        ("🙂 👩‍👩‍👧‍👦 🇫🇷 ...", 0),  # neither letters nor numbers
        ("a🙂b", 2),
        ("a\0b", 2),
        ("①٣", 2),
        ("", 0),
    ],
)
def test_unicode_words(text, n_words):
    assert pl.select(count_words(pl.lit(text), words="unicode")).item() == n_words


def test_words_stand_where_they_are_told():
    texts = pl.DataFrame({"text": ["“né”, 我们", None, ""]})
    found = texts.select(word_spans("text", words="unicode"))
    assert found["text"].to_list() == [
        {"starts": [1, 6, 7], "ends": [3, 7, 8]},
        None,
        {"starts": [], "ends": []},
    ]
    assert found.schema == texts.lazy().select(word_spans("text")).collect_schema()


def test_text_without_spaces_shares_words():
    """Shared: 我, 们, 的 and 书; 我们, 们的 and 的书; 我们的 and 们的书; 我们的书."""
    pair = pair_features(pl.lit("我们的书。"), pl.lit("这是我们的书"), words="unicode")
    found = pl.select(pair).unnest("features").row(0, named=True)
    assert [found[f"overlap_{n}"] for n in range(1, 6)] == [4, 3, 2, 1, 0]
    assert found["words_candidate"] == 4


def test_rouge_words_are_compared_in_lower_case():
    pair = pair_features(pl.lit("The CAT-sat"), pl.lit("the cat, sat!"), words="rouge")
    found = pl.select(pair).unnest("features").row(0, named=True)
    assert (found["overlap_3"], found["words_reference"]) == (1, 3)
    assert found["zlib_candidate"] == 19


@pytest.mark.parametrize(
    ("text", "size"), [("", 8), ("a", 9), ("the cat sat on the mat", 27), ("café 你好", 21)]
)
def test_zlib_size(text, size):
    assert pl.select(zlib_size(pl.lit(text))).item() == size


def test_numbers_keep_the_name_of_the_text():
    assert PAIRS.select(zlib_size("candidate"), count_words("reference")).columns == [
        "candidate",
        "reference",
    ]


@pytest.mark.parametrize("expression", [zlib_size, count_words, word_spans])
def test_columns_that_are_not_text_are_refused(expression):
    with pytest.raises(SchemaMismatchError, match=r"text must be .* strings, not Int64; cast it"):
        pl.DataFrame({"a": [1]}).select(expression("a"))


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_the_side_that_is_not_text_is_named(side):
    numbers = PAIRS.with_columns(pl.lit(1.5).alias(side))
    with pytest.raises(SchemaMismatchError, match=f"{side} must be .* strings, not Float64"):
        numbers.select(pair_features("candidate", "reference"))


@pytest.mark.parametrize("expression", [zlib_size, count_words, word_spans])
def test_only_expressions_and_names_are_taken(expression):
    with pytest.raises(
        SchemaMismatchError, match="text is of type int; use an expression or the name"
    ):
        expression(3)


def test_the_argument_that_is_no_column_is_named():
    with pytest.raises(
        SchemaMismatchError, match="reference is of type NoneType; use an expression"
    ):
        pair_features("candidate", None)  # type: ignore[arg-type] # refused
    with pytest.raises(
        SchemaMismatchError, match="others is of type list; use a series of strings"
    ):
        shared_runs(pl.Series(["a"]), ["a"], run_words=1)  # type: ignore[arg-type] # refused


def test_categories_are_refused():
    categories = PAIRS.with_columns(pl.col("candidate").cast(pl.Categorical))
    with pytest.raises(SchemaMismatchError, match="candidate must be"):
        categories.select(pair_features("candidate", "reference"))


@pytest.mark.parametrize(
    "expression",
    [
        lambda words: pair_features("a", "b", words=words),
        lambda words: count_words("a", words=words),
        lambda words: word_spans("a", words=words),
    ],
)
def test_unknown_word_rules_are_refused(expression):
    with pytest.raises(
        SettingsError, match="unknown word rule 'tokens'; use one of whitespace, space"
    ):
        expression("tokens")
