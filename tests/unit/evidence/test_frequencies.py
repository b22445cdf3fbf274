from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.evidence.collect import log_inverse, stored_frequencies


def stored(path, *texts, vocabulary=5, digest="abc"):
    """A digit is a token."""
    tokenizer: Any = SimpleNamespace(
        encode=lambda texts: [[int(sign) for sign in text] for text in texts],
        vocabulary=vocabulary,
        digest=digest,
    )
    corpus = pl.LazyFrame({"text": texts}, schema={"text": pl.String})
    return stored_frequencies(path, corpus, tokenizer)


def test_by_hand(tmp_path):
    """Six tokens, five in the vocabulary: frequencies of 4, 1, 3, 2 and 1 in 11."""
    path = tmp_path / "counts.parquet"
    inverse = stored(path, "0020", "2", None, "", "3")
    assert pl.read_parquet(path)["count"].to_list() == [3, 0, 2, 1, 0]
    assert inverse.dtype == np.float32
    wanted = [math.log(11 / n) for n in (4, 1, 3, 2, 1)]
    np.testing.assert_allclose(inverse, wanted, rtol=1e-6)


def test_smoothed_frequencies_add_up_to_one():
    counts = np.zeros(1000, np.uint64)
    counts[:5] = 50, 50, 50, 50, 1
    assert np.exp(-log_inverse(counts).astype(float)).sum() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("texts", [[], [None], ["", ""]])
def test_a_corpus_without_text_is_refused(tmp_path, texts):
    with pytest.raises(SettingsError, match="frequencies_from"):
        stored(tmp_path / "counts.parquet", *texts)


def test_saved_counts_are_read_for_the_same_tokenizer_alone(tmp_path):
    path = tmp_path / "counts.parquet"
    found = stored(path, "0020")
    assert stored(path, "another corpus is not read").tolist() == found.tolist()
    with pytest.raises(SettingsError, match="another tokenizer"):
        stored(path, "0020", digest="abd")


def test_something_else_is_refused(tmp_path):
    pl.DataFrame({"count": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(SchemaMismatchError, match="tokenizer"):
        stored(tmp_path / "other.parquet")
