"""The compiled module itself: every layout of text columns, and what it refuses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import polars as pl
import pytest
from polars.testing import assert_series_equal

from mia_batch import _native
from mia_batch.kernels import GROUPS, WORD_RULES
from tests import arrow

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("layout", arrow.LAYOUTS)
def test_every_function_reads_chunks_of_every_layout(layout):
    texts = ["a b c d", None, "", "a text of more than twelve bytes", "我们 are we", "b c d"]
    whole = pl.Series(texts)
    calls: list[Callable[..., _native.ArrowArray]] = [
        partial(_native.count_words, words="unicode"),
        partial(_native.word_spans, words="unicode"),
        partial(_native.shared_runs, others=whole[3:], words="unicode", run_words=2),
        partial(_native.near_verbatim_passages, book=whole[::-1], words="unicode"),
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
    covered = partial(_native.book_coverage, "b c d, a", words="unicode", min_words=2, trim_words=2)
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
            with pytest.raises(ValueError, match="bytes that are not UTF-8 in row 2, counted"):
                call()


def test_nulls_of_no_type():
    assert pl.Series(_native.zlib_size(arrow.nulls(2))).to_list() == [None, None]


def test_of_several_bad_rows_the_first_is_named():
    texts = ["good"] * 20_000
    texts[7_001] = texts[7_000] = texts[19_999] = "\udcff"
    for _ in range(20):
        with pytest.raises(ValueError, match="row 7000, counted"):
            _native.zlib_size(arrow.strings(texts, "utf8"))


def test_native_functions_refuse_what_they_cannot_read():
    texts = pl.Series(["a", "b"])
    pair_features = partial(_native.pair_features, words="space", near_verbatim_min_words=8)
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


def test_errors_of_a_column_reach_the_caller():
    class Closed:
        def __arrow_c_stream__(self, requested_schema=None):
            raise ConnectionError

    with pytest.raises(ConnectionError):
        _native.zlib_size(Closed())


@pytest.mark.parametrize("rule", WORD_RULES)
def test_native_module_knows_every_word_rule(rule):
    assert pl.Series(_native.count_words(pl.Series(["a b"]), words=rule)).to_list() == [2]


def test_tests_run_optimised_code():
    assert _native.build_profile() == "release"
