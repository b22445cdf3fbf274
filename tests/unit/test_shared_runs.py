from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.kernels import shared_runs


def test_runs_by_hand():
    found = shared_runs(
        pl.Series(["a b c d", None, "a", "x b c d b c"]),
        pl.Series([None, "x", "b c d", "c d"]),
        run_words=2,
    )
    expected = pl.DataFrame(
        {"runs": [3, None, 0, 5], "shared": [2, None, 0, 3], "other": [2, None, None, 2]},
        schema=dict.fromkeys(["runs", "shared", "other"], pl.UInt32),
    )
    assert_frame_equal(found, expected)


def test_without_texts_or_others():
    texts, nothing = pl.Series(["a b"]), pl.Series([], dtype=pl.String)
    assert shared_runs(texts, nothing, run_words=1).rows() == [(2, 0, None)]
    assert shared_runs(nothing, texts, run_words=1).shape == (0, 3)
    assert shared_runs(texts, pl.Series([None, None]), run_words=1).rows() == [(2, 0, None)]


def test_the_order_of_many_texts_does_not_depend_on_threads():
    texts = pl.Series([f"a b{i % 7} c" for i in range(1000)])
    found = shared_runs(texts, texts, run_words=3)
    assert found["other"].to_list() == [i % 7 for i in range(1000)]


def test_what_is_refused():
    texts = pl.Series(["a b"])
    for run_words in (0, 2**64):
        refused = f"run_words is {run_words}; use a whole number of 1 to 4294967295"
        with pytest.raises(SettingsError, match=refused):
            shared_runs(texts, texts, run_words=run_words)
    with pytest.raises(SettingsError, match="unknown word rule 'words'; use one of"):
        shared_runs(texts, texts, run_words=1, words="words")  # type: ignore[arg-type] # refused
    with pytest.raises(SchemaMismatchError, match="others must be an Arrow column of strings"):
        shared_runs(texts, pl.Series([1]), run_words=1)
