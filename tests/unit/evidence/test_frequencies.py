from __future__ import annotations

import math

import numpy as np
import pytest

from mia_batch.errors import RunFolderError, SchemaMismatchError, SettingsError
from mia_batch.evidence.collect import count_frequencies, load_frequencies, save_frequencies


def count(*batches, vocabulary=5):
    """A digit is a token."""
    return count_frequencies(
        batches,
        encode=lambda texts: [[int(sign) for sign in text] for text in texts],
        vocabulary=vocabulary,
        tokenizer="abc",
    )


def test_by_hand():
    """Six tokens, five in the vocabulary: frequencies of 4, 1, 3, 2 and 1 in 11."""
    found = count(["0020", "2"], [], ["", "3"])
    assert found.counts.tolist() == [3, 0, 2, 1, 0]
    inverse = found.log_inverse()
    assert inverse.dtype == np.float32
    wanted = [math.log(11 / n) for n in (4, 1, 3, 2, 1)]
    np.testing.assert_allclose(inverse, wanted, rtol=1e-6)


def test_smoothed_frequencies_add_up_to_one():
    found = count(["0123" * 50, "4"], vocabulary=1000)
    assert np.exp(-found.log_inverse().astype(float)).sum() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("batches", [[], [[]], [["", ""]]])
def test_a_corpus_without_text_is_refused(batches):
    with pytest.raises(SettingsError, match="frequencies_from"):
        count(*batches)


def test_saved_counts_come_back_for_the_same_tokenizer_alone(tmp_path):
    found = count(["0020"])
    save_frequencies(found, tmp_path / "counts.parquet")
    back = load_frequencies(tmp_path / "counts.parquet", "abc")
    assert back.counts.tolist() == found.counts.tolist()
    assert back.log_inverse().tolist() == found.log_inverse().tolist()
    with pytest.raises(SettingsError, match="another tokenizer"):
        load_frequencies(tmp_path / "counts.parquet", "abd")


def test_something_else_is_refused(tmp_path):
    import polars as pl

    pl.DataFrame({"count": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(SchemaMismatchError, match="tokenizer"):
        load_frequencies(tmp_path / "other.parquet", "abc")
    with pytest.raises(RunFolderError, match=r"missing\.parquet"):
        load_frequencies(tmp_path / "missing.parquet", "abc")
