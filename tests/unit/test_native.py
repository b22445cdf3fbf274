"""The compiled module itself: every layout of text columns, and what it refuses."""

import ctypes
import struct
from collections.abc import Callable
from functools import partial

import polars as pl
import pytest
from polars.testing import assert_series_equal

from mia_batch import _native
from mia_batch.kernels import GROUPS, WORD_RULES
from tests import arrow
from tests.arrow import ArrowColumn, ChunkedColumn

LETTERS = ctypes.create_string_buffer(b"twenty-eight letters of text", 28)
NOT_VALID = "is not a valid Arrow column: .*; make it again"


def small(*ends: int, offset: int = 0) -> ArrowColumn:
    ends_buffer = (ctypes.c_int32 * len(ends))(*ends)
    return ArrowColumn(b"u", len(ends) - 1, None, ends_buffer, LETTERS, offset=offset)


def large(*ends: int) -> ArrowColumn:
    return ArrowColumn(
        b"U", len(ends) - 1, None, (ctypes.c_int64 * len(ends))(*ends), LETTERS
    )


def view(
    length: int,
    prefix: bytes,
    buffer: int,
    start: int,
    *,
    valid: bytes | None = None,
    size: int = len(LETTERS),
) -> ArrowColumn:
    """A text of this view."""
    own = ctypes.create_string_buffer(
        struct.pack("<i4sii", length, prefix, buffer, start)
    )
    bits = None if valid is None else ctypes.create_string_buffer(valid)
    return ArrowColumn(b"vu", 1, bits, own, LETTERS, (ctypes.c_int64 * 1)(size))


def lists(*ends: int) -> ArrowColumn:
    """Lists of four numbers that end at these."""
    numbers = ArrowColumn(b"g", 4, None, (ctypes.c_double * 4)(-1, -2, -3, -4))
    ends_buffer = (ctypes.c_int64 * len(ends))(*ends)
    return ArrowColumn(b"+L", len(ends) - 1, None, ends_buffer, children=[numbers])


@pytest.mark.parametrize("layout", arrow.LAYOUTS)
def test_every_function_reads_chunks_of_every_layout(layout):
    texts = [
        "a b c d",
        None,
        "",
        "a text of more than twelve bytes",
        "我们 are we",
        "b c d",
    ]
    whole = pl.Series(texts)
    calls: list[Callable[..., _native.ArrowArray]] = [
        partial(_native.count_words, words="unicode"),
        partial(_native.word_spans, words="unicode"),
        partial(_native.shared_runs, others=whole[3:], words="unicode", run_words=2),
        partial(_native.near_verbatim_passages, book=whole[::-1], words="unicode"),
        partial(_native.foreseen_words, text=whole[::-1], words="unicode"),
        _native.zlib_size,
    ]
    for call in calls:
        expected = pl.Series(call(whole))
        for cuts in ([], [2], [0, 1, 1, 4, 6]):
            found = pl.Series(call(arrow.chunks(texts, layout, cuts)))
            assert_series_equal(found, expected)
    shared = partial(_native.shared_runs, whole, words="unicode", run_words=2)
    found = pl.Series(shared(arrow.chunks(texts, layout, [1, 3])))
    assert_series_equal(found, pl.Series(shared(whole)))
    covered = partial(
        _native.book_coverage, "b c d, a", words="unicode", min_words=2, trim_words=2
    )
    found = pl.Series(covered(arrow.chunks(texts, layout, [1, 3]), whole))
    assert_series_equal(found, pl.Series(covered(whole, whole)))


@pytest.mark.parametrize("layout", arrow.LAYOUTS)
@pytest.mark.parametrize(
    "invalid",
    [
        b"x \xf0\x9f",  # cut short
        b"\xe3",
        b"x \xed\xa0\x80 y",  # half of a pair of surrogates
        b"\xc0\xaf",  # longer than it has to be
        b"\xf5\x80\x80\x80",  # no code point
    ],
)
def test_bytes_that_are_no_text(layout, invalid):
    text = invalid.decode(errors="surrogateescape")
    bad = arrow.strings(["good", None, text, "good"], layout)
    good = arrow.chunks(["good"] * 4, layout, [3])
    features = partial(_native.pair_features, groups=GROUPS, near_verbatim_min_words=8)
    for rule in WORD_RULES:
        calls = [
            partial(features, bad, good, words=rule),
            partial(features, good, bad, words=rule),
            partial(_native.count_words, bad, words=rule),
            partial(_native.word_spans, bad, words=rule),
            partial(_native.shared_runs, good, bad, words=rule, run_words=1),
            partial(_native.zlib_size, bad),
        ]
        for call in calls:
            with pytest.raises(
                ValueError, match="bytes that are not UTF-8 in row 2, counted"
            ):
                call()


def test_of_several_bad_rows_the_first_is_named():
    texts = ["good"] * 20_000
    texts[7_001] = texts[7_000] = texts[19_999] = "\udcff"
    for _ in range(20):
        with pytest.raises(ValueError, match="row 7000, counted"):
            _native.zlib_size(arrow.strings(texts, "utf8"))


def test_native_functions_refuse_what_they_cannot_read():
    texts = pl.Series(["a", "b"])
    pair_features = partial(
        _native.pair_features, words="space", near_verbatim_min_words=8
    )
    with pytest.raises(ValueError, match="candidate has 2 rows and reference 1"):
        pair_features(texts, texts[:1], groups=[])
    with pytest.raises(ValueError, match='unknown word rule "tokens"'):
        _native.count_words(texts, words="tokens")
    with pytest.raises(TypeError, match=r"text must be .* not <class 'list'>"):
        _native.zlib_size(["a"])  # type: ignore[arg-type] # refused
    with pytest.raises(TypeError, match=r"reference must be .* not Int64"):
        pair_features(texts, pl.Series([1, 2]), groups=[])
    with pytest.raises(ValueError, match='unknown group "rouge"'):
        pair_features(texts, texts, groups=["rouge"])


@pytest.mark.parametrize(
    "text",
    [
        *(
            make(*ends)
            for make in (small, large)
            for ends in [(0, 9, 3), (9, 3), (0, 1 << 30, 9)]
        ),
        *(
            make(*ends)
            for make in (small, large)
            for ends in [(0, -4, 9), (-4, 9), (0, -4)]
        ),
        small(9, 0, 3, 9, 4, offset=2),
        ChunkedColumn([small(0, 3, 9), small(0, 9, 3)]),
        ArrowColumn(b"u", 2),
        ArrowColumn(b"u", -2, None, (ctypes.c_int32 * 2)(0, 3), LETTERS),
        view(20, b"twen", 7, 0),
        view(20, b"twen", -1, 0),
        view(20, b"twen", 0, 9),
        view(20, b"twen", 0, -1),
        view(1 << 30, b"twen", 0, 0),
        view(-2, b"twen", 0, 0),
        view(20, b"ten ", 0, 0),
        view(2, b"twen", 0, 0),
        view(20, b"twen", 0, 0, size=-1),
        ArrowColumn(b"vu", 1, None, ctypes.create_string_buffer(16)),
        ArrowColumn(b"+s", 5, None, children=[small(0, 3, 9)]),
        ChunkedColumn([ArrowColumn(b"u", 2, None, None, LETTERS)]),
    ],
)
def test_a_text_that_does_not_lie_within_its_buffers_is_refused(text):
    for call in (_native.zlib_size, partial(_native.count_words, words="space")):
        with pytest.raises(ValueError, match=f"text {NOT_VALID}"):
            call(text)


def test_what_is_said_of_nulls_means_nothing():
    assert pl.Series(
        _native.zlib_size(view(20, b"none", 7, 9, valid=b"\0"))
    ).to_list() == [None]
    assert pl.Series(
        _native.zlib_size(view(20, b"twen", 0, 0, valid=b"\1"))
    ).to_list() == [28]
    assert pl.Series(_native.zlib_size(arrow.nulls(2))).to_list() == [None, None]


@pytest.mark.parametrize(
    "column",
    [lists(0, 3, 1), lists(0, -3, 1), lists(-3, 1), lists(0, 5), lists(0, 1 << 40)],
)
def test_lists_that_do_not_lie_within_their_numbers_are_refused(column):
    with pytest.raises(ValueError, match=f"logprobs {NOT_VALID}"):
        _native.lempel_ziv_complexity(column, bins=3)
    with pytest.raises(ValueError, match=f"values {NOT_VALID}"):
        _native.approximate_entropy(column, m=1, r=0.5)


def test_what_is_not_there_is_refused():
    numbers = ArrowColumn(b"I", 2, None, None)
    dictionary = ArrowColumn(
        b"i", 1, None, (ctypes.c_int32 * 1)(7), dictionary=small(0, 9)
    )
    for column in (ArrowColumn(b"u", 2, None, None, LETTERS), dictionary):
        with pytest.raises(
            TypeError, match=r"buffer at position 1 is null|not Dictionary"
        ):
            _native.zlib_size(column)
    with pytest.raises(TypeError, match="buffer at position 1 is null"):
        _native.RarityTable.counted(numbers)


@pytest.mark.parametrize("n_rows", [1 << 40, 1 << 62])
def test_nulls_of_which_there_is_no_end_are_refused(n_rows):
    with pytest.raises(
        ValueError, match=f"text has {n_rows} rows, more than memory holds"
    ):
        _native.zlib_size(arrow.nulls(n_rows))


def test_numbers_out_of_range_are_refused():
    texts, lists = pl.Series(["a b", "b c"]), pl.Series([[-1.0, -2.0, -3.0]])
    runs = partial(_native.shared_runs, texts, texts, words="space")
    features = partial(
        _native.pair_features, texts, texts, words="space", groups=["blocks"]
    )
    covered = partial(_native.book_coverage, "a b c", texts, texts, words="space")
    entropy = partial(_native.approximate_entropy, lists)
    calls: list[tuple[Callable[[], object], str]] = [
        (partial(runs, run_words=0), "run_words"),
        (partial(features, near_verbatim_min_words=0), "near_verbatim_min_words"),
        (partial(covered, min_words=0, trim_words=1), "min_words"),
        (partial(covered, min_words=1, trim_words=0), "trim_words"),
        (partial(_native.lempel_ziv_complexity, lists, bins=0), "bins"),
        (partial(entropy, m=0, r=0.5), "m"),
        *((partial(entropy, m=1, r=float(r)), "r") for r in ("nan", "inf", "-1")),
        *((partial(_native.RarityTable, bits), "bits") for bits in (0, 29, 40, 64)),
    ]
    for call, name in calls:
        with pytest.raises(ValueError, match=rf"^{name} is [-\w]+; use a "):
            call()
    most = 2**64 - 1
    assert pl.Series(runs(run_words=most)).struct.field("runs").to_list() == [0, 0]
    (nothing,) = pl.Series(covered(min_words=most, trim_words=most))
    assert nothing["blocks"] == []
    with pytest.raises(
        ValueError, match="generations has 2 rows and instructions 1; pass"
    ):
        _native.book_coverage(
            "a", texts, texts[:1], words="space", min_words=1, trim_words=1
        )


def test_a_table_of_rarity_refuses_what_it_cannot_count():
    def numbers(*values: int | None) -> pl.Series:
        return pl.Series(values, dtype=pl.UInt32)

    texts, table = pl.Series(["a b", "b c"]), _native.RarityTable(4)
    weigh = partial(table.weigh, texts, texts, words="space")
    for counts in ([], [1], [1, 1, 1]):
        with pytest.raises(
            ValueError, match=f"counts is a column of {len(counts)} rows; use"
        ):
            _native.RarityTable.counted(numbers(*counts))
    with pytest.raises(
        TypeError, match="counts must be an Arrow column of UInt32 without nulls"
    ):
        _native.RarityTable.counted(numbers(1, None))
    for groups in (numbers(0), numbers(0, 1, 2)):
        with pytest.raises(
            ValueError, match=f"text has 2 rows and groups {len(groups)}; pass"
        ):
            table.add(texts, groups, words="space")
        with pytest.raises(
            ValueError, match=f"candidate has 2 rows and others {len(groups)}"
        ):
            weigh(groups, total=2)
    with pytest.raises(ValueError, match="groups is 4294967295; use"):
        table.add(texts, numbers(0, 2**32 - 1), words="space")
    with pytest.raises(ValueError, match="total is 0; use the number of groups"):
        weigh(numbers(0, 0), total=0)
    assert pl.Series(table.counts()).sum() == 0


def test_a_table_that_was_counted_goes_on_counting():
    texts, groups = pl.Series(["a b", "b c"]), pl.Series([0, 1], dtype=pl.UInt32)
    table = _native.RarityTable(12)
    table.add(texts, groups, words="space")
    counts = pl.Series(table.counts())
    assert counts.sum() == 6  # twice two words and a pair
    more = _native.RarityTable.counted(counts)
    more.add(texts, groups + 2, words="space")
    assert pl.Series(more.counts()).to_list() == (2 * counts).to_list()


def test_errors_of_a_column_reach_the_caller():
    class Closed:
        def __arrow_c_stream__(self, requested_schema=None):
            raise ConnectionError

    with pytest.raises(ConnectionError):
        _native.zlib_size(Closed())


def test_tests_run_optimised_code():
    assert _native.build_profile() == "release"
