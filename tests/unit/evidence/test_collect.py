"""Requests and answers, the rows made from them, and how many tokens to decode."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch.errors import EngineError, SchemaMismatchError, SettingsError
from mia_batch.evidence.collect import (
    REFUSED,
    AnsweredRequest,
    FillTask,
    LocalExecutor,
    Row,
    SampleTask,
    UnitRequest,
    log_inverse,
    stored_frequencies,
)
from mia_batch.evidence.parts import Block
from mia_batch.evidence.process import LocalSource
from mia_batch.evidence.request import (
    Answer,
    Budget,
    Continuation,
    Request,
    Workload,
    estimate_work,
    forecast,
)
from mia_batch.models.weights import Measure, estimate_tokens
from mia_batch.prompts import sample_seed
from mia_batch.schemas import Samples
from mia_batch.views import TARGET, View
from tests.checkpoints import CONTEXT, TEXTS

VIEW = View(model=TARGET, name="continuation", make=None)


def block(index=0, *, first=0, last=3) -> Block:
    """A block of four short targets."""
    words = [text.split() for text in TEXTS[4 * index : 4 * index + 4]]
    rows = [
        (" ".join(block_words[:8]), " " + " ".join(block_words[8:12]))
        for block_words in words
    ]
    return block_of(*rows, index=index, first=first, last=last)


def block_of(*rows: tuple[str, str], index=0, first=0, last=2) -> Block:
    """A block of prompts of prefix and reference."""
    units = pl.DataFrame(
        {
            "target_id": [f"{index:016x}{row:016x}" for row in range(len(rows))],
            "view_index": [0] * len(rows),
            "context": [prefix for prefix, _ in rows],
            "text": [reference for _, reference in rows],
        }
    )
    return Block(index=index, first=first, last=last, attempt=0, label="l", units=units)


def task(measure, budget, words="whitespace", view=VIEW) -> SampleTask:
    return SampleTask(
        view=view, measure=measure, budget=budget, words=words, run_seed=0
    )


def collect(
    engine, tokenizer, blocks, *, scope="matched", max_model_len=CONTEXT, view=VIEW
):
    """Samples of each block by its index, and what was seen of the progress."""
    progress = []
    budget = Budget(scope=scope, max_length=CONTEXT, max_model_len=max_model_len)
    samples_of_blocks = LocalExecutor(LocalSource(engine, tokenizer)).collect(
        task(tokenizer.measure, budget, view=view),
        blocks,
        lambda label, units, tokens, passes: progress.append((units, tokens)),
        lambda _, rows: rows,
    )
    return {block_done.index: rows for block_done, rows in samples_of_blocks}, progress


def test_every_sample_has_its_row_in_order(transformers_engine, tokenizer):
    blocks = [block(0), block(1)]
    samples_by_block, progress = collect(transformers_engine, tokenizer, blocks)
    assert sorted(samples_by_block) == [0, 1]
    for sample_block in blocks:
        rows = Samples.validate(samples_by_block[sample_block.index])
        expected = [
            (target, index)
            for target in sample_block.units["target_id"]
            for index in range(3)
        ]
        assert rows.select("target_id", "sample_index").rows() == expected
        assert rows["candidate"].null_count() == 0
        assert rows["reason"].null_count() == rows.height
    assert sum(targets for targets, _ in progress) == 8
    assert sum(tokens for _, tokens in progress) >= sum(
        rows["n_tokens"].sum() for rows in samples_by_block.values()
    )


def test_a_matched_candidate_reaches_the_references_length_within_four_times_its_tokens(
    transformers_engine, tokenizer
):
    matched, _ = collect(transformers_engine, tokenizer, [block()])
    whole, _ = collect(transformers_engine, tokenizer, [block()], scope="whole")
    n_reference, lengths = 4, tokenizer.count_tokens(block().units["text"].to_list())
    for number, row in enumerate(matched[0].iter_rows(named=True)):
        n_words = len(row["candidate"].split())
        longest = 4 * lengths[number // 3]
        assert row["n_tokens"] <= longest
        assert row["short"] == (
            row["finish_reason"] == "length" and n_words < n_reference
        )
        assert row["n_tokens"] == longest or not row["short"]
    assert matched[0]["n_tokens"].sum() < whole[0]["n_tokens"].sum()


def test_the_likeliest_candidate_goes_on_as_the_whole_one(
    transformers_engine, tokenizer
):
    """The budget of the first attempt is far too small."""
    greedy = {"view": replace(VIEW, greedy=True)}
    short = block_of(*((row[2], " of") for row in block().units.iter_rows()))
    matched, _ = collect(transformers_engine, tokenizer, [short], **greedy)
    whole, _ = collect(transformers_engine, tokenizer, [short], scope="whole", **greedy)
    for candidate, whole_candidate in zip(
        matched[0]["candidate"], whole[0]["candidate"], strict=True
    ):
        assert whole_candidate.startswith(candidate)
    assert matched[0]["n_tokens"].sum() < whole[0]["n_tokens"].sum()


def test_a_prefix_without_room_is_kept_with_its_reason_and_stops_nothing(
    transformers_engine, tokenizer
):
    long = " ".join(TEXTS[0].split() * 20)
    odd = block_of((TEXTS[1][:40], " and more"), (long, " end"))
    samples_by_block, progress = collect(transformers_engine, tokenizer, [odd])
    candidates = samples_by_block[0]["candidate"].is_not_null().to_list()
    assert candidates == [True, True, False, False]
    n_tokens = len(tokenizer.encode_prompts([long])[0])
    reason = (
        f"the prefix has {n_tokens} tokens, which leaves no room to continue within"
        f" {CONTEXT}"
    )
    assert samples_by_block[0]["reason"].to_list() == [None, None, reason, reason]
    assert sum(targets for targets, _ in progress) == 2
    odd = block_of((long, " end"), index=7)  # nothing in it fits
    assert (
        collect(transformers_engine, tokenizer, [odd])[0][7]["reason"].null_count() == 0
    )
    assert collect(transformers_engine, tokenizer, []) == ({}, [])


class Cutter:
    """A source that cuts one text after so many characters, a token each."""

    def __init__(self, text):
        self.text = text
        self.asked = []

    def has_room(self, *, requests, samples):
        return not requests

    def submit(self, *requests):
        self.asked += requests

    def results(self, timeout=None):
        request = self.asked[-1]
        text = self.text[: request.max_tokens]
        continuation = Continuation(
            text=text,
            n_tokens=len(text),
            finish_reason="length" if text != self.text else "stop",
        )
        return [Answer(request_id=request.request_id, continuations=[continuation])]


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
    measure = Measure(prompt_token_ids=None, prompt_tokens=1, reference_tokens=4)
    budget = Budget(scope="matched", max_length=100, max_model_len=100, spare=3)
    one_block = block_of(("p", reference), last=1)
    sample_task = task(lambda *_: [measure], budget, words)
    ((_, samples),) = LocalExecutor(source).collect(
        sample_task, [one_block], lambda *_: None, lambda _, rows: rows
    )
    assert len(source.asked) == times
    assert samples["short"].to_list() == [False]


def test_a_view_s_share_reaches_the_masked_model():
    units = pl.DataFrame({"target_id": ["0" * 32], "target": ["a text"]})
    block = Block(index=0, first=4, last=6, attempt=0, label="", units=units)
    view = View(model=TARGET, name="paraphrase", make=None, n=6, share=0.4)
    (unit_request,) = FillTask(view=view, run_seed=3).ask(block)
    assert isinstance(unit_request, UnitRequest)
    request = unit_request.request
    assert (request.view, request.n, request.share) == ("paraphrase", 6, 0.4)
    assert request.seed == sample_seed(3, "0" * 32)


def count_stored(path, *texts, vocabulary=5, digest="abc"):
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
    inverse = count_stored(path, "0020", "2", None, "", "3")
    assert pl.read_parquet(path)["count"].to_list() == [3, 0, 2, 1, 0]
    assert inverse.dtype == np.float32
    expected = [math.log(11 / n) for n in (4, 1, 3, 2, 1)]
    np.testing.assert_allclose(inverse, expected, rtol=1e-6)
    counts = np.zeros(1000, np.uint64)
    counts[:5] = 50, 50, 50, 50, 1
    assert np.exp(-log_inverse(counts).astype(float)).sum() == pytest.approx(
        1, rel=1e-5
    )


@pytest.mark.parametrize("texts", [[], [None], ["", ""]])
def test_a_corpus_without_text_is_refused(tmp_path, texts):
    with pytest.raises(SettingsError, match="frequencies_from"):
        count_stored(tmp_path / "counts.parquet", *texts)


def test_saved_counts_are_read_for_the_same_tokenizer_alone(tmp_path):
    path = tmp_path / "counts.parquet"
    counts = count_stored(path, "0020")
    assert count_stored(path, "another corpus is not read").tolist() == counts.tolist()
    with pytest.raises(SettingsError, match="another tokenizer"):
        count_stored(path, "0020", digest="abd")
    pl.DataFrame({"count": [1]}).write_parquet(path)
    with pytest.raises(SchemaMismatchError, match="tokenizer"):
        count_stored(path)


# Texts that end an engine: found, refused, and no other text is lost.

N_UNITS = 64


class Echo:
    """A task whose rows name the text and what came of it."""

    def ask(self, block: Block) -> Iterator[UnitRequest | Row]:
        for unit, text in enumerate(block.units["text"]):
            yield UnitRequest(
                unit=unit, request=Request(request_id=0, kind="samples", text=text)
            )

    def read(
        self, block: Block, answered: Sequence[AnsweredRequest], /
    ) -> Iterator[Row]:
        for unit_request, answer in answered:
            text = block.units["text"][unit_request.unit]
            yield unit_request.unit, {"text": text, "reason": answer.error}

    def table(self, block: Block, rows: list[tuple[int, Any]]) -> pl.DataFrame:
        schema = {"text": pl.String, "reason": pl.String}
        return pl.DataFrame(
            [row for _, row in sorted(rows, key=lambda row: row[0])], schema=schema
        )


class Fragile:
    """A source that ends when it comes to one of these texts, or after so many answers."""

    def __init__(
        self, deadly: Collection[str], room: int, ends_after: Collection[int] = ()
    ):
        self.deadly = deadly
        self.room = room
        self.ends_after = {*ends_after}
        self.open: list[Request] = []
        self.starts = 1
        self.answered = 0

    def has_room(self, *, requests: int, samples: int) -> bool:
        return requests < self.room

    def submit(self, *requests: Request) -> None:
        self.open += requests

    def results(self, timeout: float | None = None) -> list[Answer]:
        request = self.open.pop(0)
        if request.text in self.deadly or self.answered in self.ends_after:
            self.ends_after.discard(self.answered)
            msg = "the engine's process was ended by SIGSEGV"
            raise EngineError(msg)
        self.answered += 1
        return [
            Answer(request_id=request.request_id, continuations=[Continuation(text="")])
        ]

    def restart(self) -> None:
        self.open.clear()
        self.starts += 1


def blocks_of(n: int) -> list[Block]:
    return [
        Block(
            index=index,
            first=0,
            last=1,
            attempt=0,
            label="target-text",
            units=pl.DataFrame(
                {"text": [f"{index}:{unit}" for unit in range(N_UNITS)]}
            ),
        )
        for index in range(n)
    ]


def collected(
    source: Fragile, blocks: list[Block]
) -> tuple[dict[int, pl.DataFrame], int]:
    """Rows of each block, and how many texts the observer believes to be complete."""
    messages: list[str] = []
    n_units_seen: list[int] = []
    executor = LocalExecutor(source, source.restart, messages.append)
    blocks_done = executor.collect(
        Echo(),
        iter(blocks),
        lambda _label, units, *_: n_units_seen.append(units),
        lambda _, rows: rows,
    )
    tables = {block.index: rows for block, rows in blocks_done}
    assert len(messages) == source.starts - 1
    return tables, sum(n_units_seen)


@pytest.mark.parametrize("room", [1, N_UNITS, 1000])
def test_what_a_text_that_ends_the_engine_costs(room):
    source = Fragile({"1:37"}, room)
    tables, _ = collected(source, blocks_of(3))
    reasons = pl.concat(tables.values()).drop_nulls("reason")
    assert reasons.rows() == [("1:37", REFUSED)]
    # Together with others, its block alone, a piece of 8, the text alone twice.
    assert source.starts <= 6
    if room <= N_UNITS:  # what is asked again stays within its block
        assert source.answered - (3 * N_UNITS - 1) <= 2 * N_UNITS


@settings(deadline=None, max_examples=60)
@given(
    deadly=st.sets(
        st.tuples(st.integers(0, 3), st.integers(0, 20).map(lambda i: 3 * i))
    ),
    room=st.integers(1, 300),
    ends_after=st.sets(st.integers(0, 200), max_size=3),
)
def test_each_text_has_one_row_whatever_ends_the_engine(deadly, room, ends_after):
    names = {f"{index}:{unit}" for index, unit in deadly}
    tables, n_units_seen = collected(Fragile(names, room, ends_after), blocks_of(4))
    rows = pl.concat(tables[index] for index in range(4))
    assert n_units_seen == rows.height == 4 * N_UNITS
    assert rows["text"].to_list() == [
        f"{i}:{unit}" for i in range(4) for unit in range(N_UNITS)
    ]
    refused = set(rows.filter(pl.col("reason").is_not_null())["text"])
    assert names <= refused
    assert len(refused - names) <= len(ends_after)


def test_an_engine_that_ends_whatever_it_is_asked_stops_the_run():
    source = Fragile({f"0:{unit}" for unit in range(N_UNITS)}, room=10)
    with pytest.raises(EngineError, match="SIGSEGV"):
        collected(source, blocks_of(1))
    assert source.starts < 12
    source = Fragile({"0:3"}, room=10)  # without a restart the error is the run's
    with pytest.raises(EngineError, match="SIGSEGV"):
        list(
            LocalExecutor(source).collect(
                Echo(), blocks_of(1), lambda *_: None, lambda *_: None
            )
        )


# How many tokens to decode, of one prompt and of all.

MATCHED = Budget(scope="matched", max_length=1024, max_model_len=2048)
WHOLE = Budget(scope="whole", max_length=1024, max_model_len=2048)


@pytest.mark.parametrize(
    ("budget", "prompt", "room", "first"),
    [
        (MATCHED, 100, 1948, 80 + 20 + 8),
        (WHOLE, 100, 924, 924),  # the paper's length, prompt included
        (MATCHED, 2048, 0, 0),
        (WHOLE, 1500, -476, -476),
        (replace(WHOLE, max_model_len=512), 500, 12, 12),
        (replace(MATCHED, max_model_len=512), 500, 12, 12),
        (replace(MATCHED, max_attempts=1), 100, 1948, 2 * (80 + 20 + 8)),
        (replace(MATCHED, spare=400), 100, 1948, 4 * 80),
        (replace(WHOLE, most_new=50), 100, 50, 50),
    ],
)
def test_room_and_first_budget_of_a_prompt_whose_reference_has_80_tokens(
    budget, prompt, room, first
):
    assert (budget.room(prompt), budget.first(prompt, 80)) == (room, first)
    rows = [(prompt, 80), (0, 0), (7, 3), (115, 80), (1000, 1), (5000, 9)]
    columns = pl.DataFrame(rows, schema=["prompt", "reference"], orient="row")
    n_tokens = columns.select(
        budget.expected(pl.col("prompt"), pl.col("reference"))
    ).to_series()
    assert n_tokens.to_list() == [max(budget.first(*row), 0) for row in rows]


def test_the_budget_doubles_twice_up_to_the_room_or_four_times_the_reference():
    assert MATCHED.attempts(100, 80) == [108, 216, 4 * 80]
    assert MATCHED.attempts(1900, 40) == [58, 116, 2048 - 1900]
    assert MATCHED.attempts(100, 1) == [4]
    assert replace(MATCHED, max_attempts=1).attempts(100, 80) == [216]
    assert replace(MATCHED, max_model_len=131_072).attempts(100, 80)[-1] == 320
    assert WHOLE.attempts(100, 80) == [924]
    assert MATCHED.most_tokens(100, 80) == 320  # who goes on decodes nothing twice
    assert replace(MATCHED, resumes=False).most_tokens(100, 80) == 108 + 216 + 320
    assert WHOLE.most_tokens(100, 80) == 924


# What there is to decode, added up before anything is.

BUDGET = Budget(scope="matched", max_length=1024, max_model_len=100)


def prompts_of(*rows: tuple[str, str]) -> Block:
    units = pl.DataFrame(rows, schema=["context", "text"], orient="row")
    units = units.with_columns(document_id=pl.col("context").str.slice(0, 1))
    return Block(index=0, first=0, last=10, attempt=0, label="", units=units)


def test_the_sums_of_two_targets_and_one_without_room():
    assert forecast([], estimate_tokens, BUDGET) == Workload()
    rows = [("a" * 40, "b" * 80), ("c" * 80, "d" * 40), ("e" * 400, "f")]
    workload = forecast(
        [prompts_of(*rows[:1]), prompts_of(*rows[1:])], estimate_tokens, BUDGET
    )
    first = [20 + 5 + 8, 10 + 2 + 8]
    assert workload == Workload(
        prompts=2,
        samples=20,
        too_long=1,
        unfit=Counter("e"),
        prompt_bytes=120,
        read_tokens=10 + 20,
        matched_tokens=10 * sum(first),
        first_tokens=10 * sum(first),
        most_tokens=10 * (80 + 40),
        resent_tokens=10 * (33 + 66 + 20),
    )
    lines = dict(workload.lines())
    assert lines["tokens to decode"] == "530, at most 1,200"
    assert lines["prompts that do not fit the context"] == "1, such as 1 of e"


def test_of_many_prompts_some_spread_evenly_stand_for_all():
    """Each of the 5,000 takes 33 tokens at first, but every tenth, which takes 20."""
    rows = [
        ("c" * 80, "d" * 40) if i % 10 == 0 else ("a" * 40, "b" * 80)
        for i in range(5000)
    ]
    n_measured: list[int] = []

    def measure(prefixes, references):
        n_measured.append(len(prefixes))
        return estimate_tokens(prefixes, references)

    blocks = [prompts_of(*rows[start : start + 64]) for start in range(0, 5000, 64)]
    outlook = forecast(blocks, measure, BUDGET)
    assert n_measured == [1250]
    assert (outlook.prompts, outlook.samples, outlook.prompt_bytes) == (
        5000,
        50_000,
        4500 * 40 + 40_000,
    )
    assert outlook.first_tokens == pytest.approx(10 * (4500 * 33 + 500 * 20), rel=0.05)
    assert dict(outlook.lines())["prompts"] == "5,000"
    assert dict(outlook.lines())["tokens to decode"].startswith("about ")


def test_the_work_of_prompts_is_what_is_decoded_and_a_quarter_of_what_is_read():
    units = prompts_of(("a" * 400, "b" * 78), ("ü" * 8, ""), ("", "b")).units
    whole = Budget(scope="whole", max_length=1024, max_model_len=4096)
    budget = Budget(scope="matched", max_length=1024, max_model_len=4096)
    assert units.select(estimate_work(whole, 2)).to_series().to_list() == [
        100 // 4 + 2 * (1024 - 100),
        4 // 4 + 2 * (1024 - 4),
        2 * 1024,
    ]
    assert units.select(estimate_work(budget, 10)).to_series().to_list() == [
        100 // 4 + 10 * (20 + 5 + 8),
        4 // 4 + 10 * 4,
        10 * 4,
    ]
