"""First tokens of public texts, for a model to go on with."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mia_batch.models.tokens import Tokenizer
from mia_batch.prompts.views import first_tokens
from tests.checkpoints import TEXTS

CUT = [" ".join(text.split()[:30]) for text in TEXTS[:20]]


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return Tokenizer.load(str(checkpoint))


def chosen(texts, tokenizer=None, n=100, n_tokens=5):
    frame = pl.LazyFrame({"text": texts}, schema={"text": pl.String})
    return first_tokens(frame, n=n, n_tokens=n_tokens, tokenizer=tokenizer)


def test_which_texts_and_how_many_tokens(tokenizer):
    found = chosen([*CUT, None, "", " \n"], tokenizer)
    assert found.height == len(CUT)
    assert found["text"].unique().to_list() == [""]
    for context in found["context"]:
        (whole,) = (text for text in CUT if text.startswith(context))
        ids = tokenizer.encode([whole])[0]
        assert tokenizer.encode([context])[0] == ids[:5]


def test_neither_order_nor_copies_of_texts_change_anything(tokenizer):
    found = chosen(CUT, tokenizer, n=7)
    assert_frame_equal(chosen(CUT[::-1] + CUT[3:9], tokenizer, n=7), found)


def test_more_are_added_to_those_there_are(tokenizer):
    ids = [set(chosen(CUT, tokenizer, n=n)["target_id"]) for n in (3, 4, 11, 20, 50)]
    assert [len(each) for each in ids] == [3, 4, 11, 20, 20]
    assert all(few < more for few, more in pairwise(ids[:-1]))


def test_without_a_tokenizer_they_are_words_and_a_short_text_is_whole():
    found = chosen(["one two  three four", "one"], n_tokens=3)
    assert sorted(found["context"]) == ["one", "one two three"]
    assert chosen([]).is_empty()
