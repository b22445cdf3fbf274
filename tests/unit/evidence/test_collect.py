"""Requests and answers, and the rows made from them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.evidence.collect import (
    Collector,
    FillTask,
    SampleTask,
    log_inverse,
    stored_frequencies,
)
from mia_batch.evidence.parts import Block
from mia_batch.evidence.process import LocalSource
from mia_batch.evidence.request import Answer, Budget, Continuation
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import Measure
from mia_batch.prompts.views import View, sample_seed
from mia_batch.schemas import Samples
from tests import frames
from tests.checkpoints import CONTEXT, TEXTS

VIEW = View(model="target", name="continuation", make=None)


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return Tokenizer.load(str(checkpoint))


def block(index=0, *, first=0, last=3, texts=None) -> Block:
    """A block of short targets."""
    words = [text.split() for text in (texts or TEXTS[4 * index : 4 * index + 4])]
    rows = [
        {"prefix": " ".join(each[:8]), "reference": " " + " ".join(each[8:12])} for each in words
    ]
    ids = [f"{index:016x}{row:016x}" for row in range(len(rows))]
    return block_of(*rows, ids=ids, index=index, first=first, last=last)


def block_of(*rows, ids=None, index=0, first=0, last=2) -> Block:
    """A block of prompts of prefix and reference."""
    units = pl.DataFrame(
        {
            "target_id": ids or [frames.target_id(number) for number in range(len(rows))],
            "view_index": [0] * len(rows),
            "context": [row["prefix"] for row in rows],
            "text": [row["reference"] for row in rows],
        }
    )
    return Block(index=index, first=first, last=last, attempt=0, label="l", units=units)


def task(measure, budget, words="whitespace") -> SampleTask:
    return SampleTask(
        view=VIEW,
        measure=measure,
        budget=budget,
        words=words,
        run_seed=0,
    )


def collect(engine, tokenizer, blocks, *, scope="matched", max_model_len=CONTEXT):
    """Samples of each block by its index, and what was told of the progress."""
    told = []
    budget = Budget(scope=scope, max_length=CONTEXT, max_model_len=max_model_len)
    collector = Collector(
        LocalSource(engine, tokenizer),
        task(tokenizer.measure, budget),
        lambda label, units, tokens, passes: told.append((units, tokens)),
    )
    return {each.index: rows for each, rows in collector.collect(blocks)}, told


def test_every_sample_has_its_row_in_order(transformers_engine, tokenizer):
    blocks = [block(0), block(1)]
    found, told = collect(transformers_engine, tokenizer, blocks)
    assert sorted(found) == [0, 1]
    for each in blocks:
        rows = Samples.validate(found[each.index])
        expected = [(target, index) for target in each.units["target_id"] for index in range(3)]
        assert rows.select("target_id", "sample_index").rows() == expected
        assert rows["candidate"].null_count() == 0
        assert rows["reason"].null_count() == rows.height
    assert sum(targets for targets, _ in told) == 8
    assert sum(tokens for _, tokens in told) >= sum(
        rows["n_tokens"].sum() for rows in found.values()
    )


def test_a_matched_candidate_reaches_the_references_length_and_starts_like_the_whole_one(
    transformers_engine, tokenizer
):
    matched, _ = collect(transformers_engine, tokenizer, [block()])
    whole, _ = collect(transformers_engine, tokenizer, [block()], scope="whole")
    n_reference = 4
    for short, long in zip(
        matched[0].iter_rows(named=True), whole[0].iter_rows(named=True), strict=True
    ):
        words = long["candidate"].split()[:n_reference]
        assert short["candidate"].split()[:n_reference] == words
        assert long["candidate"].startswith(short["candidate"])
        assert short["short"] == (short["finish_reason"] == "length" and len(words) < n_reference)
    assert matched[0]["n_tokens"].sum() < whole[0]["n_tokens"].sum()


def test_what_is_added_later_equals_what_is_sampled_at_once(transformers_engine, tokenizer):
    at_once, _ = collect(transformers_engine, tokenizer, [block(last=5)])
    earlier, _ = collect(transformers_engine, tokenizer, [block(last=2)])
    later, _ = collect(transformers_engine, tokenizer, [block(first=2, last=5)])
    joined = pl.concat([earlier[0], later[0]]).sort("target_id", "sample_index")
    assert joined.equals(at_once[0])


def test_a_prefix_without_room_is_kept_with_its_reason_and_stops_nothing(
    transformers_engine, tokenizer
):
    long = " ".join(TEXTS[0].split() * 20)
    odd = block_of(
        {"prefix": TEXTS[1][:40], "reference": " and more"}, {"prefix": long, "reference": " end"}
    )
    found, told = collect(transformers_engine, tokenizer, [odd])
    candidates = found[0]["candidate"].is_not_null().to_list()
    assert candidates == [True, True, False, False]
    n_tokens = len(tokenizer.encode_prompts([long])[0])
    reason = f"the prefix has {n_tokens} tokens, which leaves no room to continue within {CONTEXT}"
    assert found[0]["reason"].to_list() == [None, None, reason, reason]
    assert sum(targets for targets, _ in told) == 2
    odd = block_of({"prefix": long, "reference": " end"}, index=7)  # nothing in it fits
    assert collect(transformers_engine, tokenizer, [odd])[0][7]["reason"].null_count() == 0
    assert collect(transformers_engine, tokenizer, []) == ({}, [])


class Cutter:
    """A source that cuts one text after so many characters, a token each."""

    def __init__(self, text):
        self.text = text
        self.asked = []

    def has_room(self, *, requests, samples):
        return not requests

    def submit(self, request):
        self.asked.append(request)

    def results(self, timeout=None):
        request = self.asked[-1]
        cut = self.text[: request.max_tokens]
        given = Continuation(
            text=cut, n_tokens=len(cut), finish_reason="length" if cut != self.text else "stop"
        )
        return [Answer(request_id=request.request_id, continuations=[given])]


@pytest.mark.parametrize(
    ("words", "reference", "text", "times"),
    [
        ("whitespace", "a b", "one two\nthree", 1),
        ("space", "a b", "one two\nthree", 2),  # the second word goes on behind the cut
        ("unicode", "a b", "one two.three", 2),  # and here
        ("rouge", "a b", "one two.three", 1),
        ("rouge", "a b", "one-twoo three", 2),
        ("unicode", "我们去了他们我", "一二三四五六七 八", 1),
        ("unicode", "我们去了他们我们", "一二三四五六七八九", 2),
    ],
)
def test_a_last_word_that_may_go_on_is_decoded_again(words, reference, text, times):
    """The first budget is 8 characters."""
    source = Cutter(text)
    measure = Measure(prompt_token_ids=None, prompt_tokens=1, reference_tokens=0)
    budget = Budget(scope="matched", max_length=100, max_model_len=100)
    collector = Collector(source, task(lambda *_: [measure], budget, words), lambda *_: None)
    one = block_of({"prefix": "p", "reference": reference}, last=1)
    ((_, samples),) = collector.collect([one])
    assert len(source.asked) == times
    assert samples["short"].to_list() == [False]


def test_a_view_s_share_reaches_the_masked_model():
    units = pl.DataFrame({"target_id": ["0" * 32], "target": ["a text"]})
    block = Block(index=0, first=4, last=6, attempt=0, label="", units=units)
    view = View(model="target", name="paraphrase", make=None, n=6, share=0.4)
    ((asked, rows),) = FillTask(view=view, run_seed=3).ask(block)
    assert rows == []
    assert asked is not None
    request = asked.request
    assert (request.view, request.n, request.share) == ("paraphrase", 6, 0.4)
    assert request.seed == sample_seed(3, "0" * 32)


def stored(path, *texts, vocabulary=5, digest="abc"):
    """A digit is a token."""
    tokenizer: Any = SimpleNamespace(
        encode=lambda texts: [[int(sign) for sign in text] for text in texts],
        vocabulary=vocabulary,
        digest=digest,
    )
    corpus = pl.LazyFrame({"text": texts}, schema={"text": pl.String})
    return stored_frequencies(path, corpus, tokenizer)


def test_log_inverse_frequencies_by_hand(tmp_path):
    """Six tokens, five in the vocabulary: frequencies of 4, 1, 3, 2 and 1 in 11."""
    path = tmp_path / "counts.parquet"
    inverse = stored(path, "0020", "2", None, "", "3")
    assert pl.read_parquet(path)["count"].to_list() == [3, 0, 2, 1, 0]
    assert inverse.dtype == np.float32
    wanted = [math.log(11 / n) for n in (4, 1, 3, 2, 1)]
    np.testing.assert_allclose(inverse, wanted, rtol=1e-6)
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
    pl.DataFrame({"count": [1]}).write_parquet(path)
    with pytest.raises(SchemaMismatchError, match="tokenizer"):
        stored(path)
