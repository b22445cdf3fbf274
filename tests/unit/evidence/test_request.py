"""How many tokens to decode, of one prompt and of all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import polars as pl
import pytest

from mia_batch.evidence.parts import Block
from mia_batch.evidence.request import Budget, Workload, forecast, work_of
from mia_batch.models.weights import estimate_tokens

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
    ],
)
def test_room_and_first_budget_of_a_prompt_whose_reference_has_80_tokens(
    budget, prompt, room, first
):
    assert (budget.room(prompt), budget.first(prompt, 80)) == (room, first)


def test_the_budget_doubles_up_to_the_room_or_the_last_attempt():
    tried = [(50, 1), (100, 2), (148, 3)]
    assert [MATCHED.next(1900, *each) for each in tried] == [100, 148, None]
    paid = replace(MATCHED, max_attempts=3)
    assert [paid.next(100, 200, 2), paid.next(100, 400, 3)] == [400, None]
    assert paid.most(100, 80) == 108 + 216 + 432
    assert MATCHED.most(1900, 40) == 58 + 116 + 148
    assert WHOLE.most(100, 80) == 924


@pytest.mark.parametrize(
    "budget",
    [
        MATCHED,
        WHOLE,
        replace(MATCHED, max_attempts=1),
        replace(MATCHED, max_model_len=120),
        replace(WHOLE, most_new=50),
    ],
)
def test_what_is_expected_of_columns_is_the_first_of_each(budget):
    rows = [(0, 0), (7, 3), (100, 80), (115, 80), (1000, 1), (5000, 9)]
    columns = pl.DataFrame(rows, schema=["prompt", "reference"], orient="row")
    found = columns.select(budget.expected(pl.col("prompt"), pl.col("reference"))).to_series()
    assert found.to_list() == [max(budget.first(*row), 0) for row in rows]


# What there is to decode, added up before anything is.

BUDGET = Budget(scope="matched", max_length=1024, max_model_len=100)


def block(*rows: tuple[str, str]) -> Block:
    units = pl.DataFrame(rows, schema=["context", "text"], orient="row")
    units = units.with_columns(document_id=pl.col("context").str.slice(0, 1))
    return Block(index=0, first=0, last=10, attempt=0, label="", units=units)


def test_the_sums_of_two_targets_and_one_without_room():
    assert forecast([], estimate_tokens, BUDGET) == Workload()
    rows = [("a" * 40, "b" * 80), ("c" * 80, "d" * 40), ("e" * 400, "f")]
    workload = forecast([block(*rows[:1]), block(*rows[1:])], estimate_tokens, BUDGET)
    first = [20 + 5 + 8, 10 + 2 + 8]
    assert workload == Workload(
        prompts=2,
        samples=20,
        too_long=1,
        unfit=Counter("e"),
        prompt_bytes=120,
        first_tokens=10 * sum(first),
        most_tokens=10 * (33 + 66 + 90 + 20 + 40 + 80),
    )
    lines = dict(workload.lines())
    assert lines["tokens to decode"] == "530, at most 3,290"
    assert lines["prompts that do not fit the context"] == "1, such as 1 of e"


def test_of_many_prompts_some_spread_evenly_stand_for_all():
    """Each of the 5,000 takes 33 tokens at first, but every tenth, which takes 20."""
    rows = [("c" * 80, "d" * 40) if i % 10 == 0 else ("a" * 40, "b" * 80) for i in range(5000)]
    counted: list[int] = []

    def measure(prefixes, references):
        counted.append(len(prefixes))
        return estimate_tokens(prefixes, references)

    blocks = [block(*rows[start : start + 64]) for start in range(0, 5000, 64)]
    found = forecast(blocks, measure, BUDGET)
    assert counted == [1250]
    assert (found.prompts, found.samples, found.prompt_bytes) == (5000, 50_000, 4500 * 40 + 40_000)
    assert found.first_tokens == pytest.approx(10 * (4500 * 33 + 500 * 20), rel=0.05)
    assert dict(found.lines())["prompts"] == "5,000"
    assert dict(found.lines())["tokens to decode"].startswith("about ")


def test_the_work_of_prompts_is_what_is_decoded_and_a_quarter_of_what_is_read():
    units = block(("a" * 400, "b" * 78), ("ü" * 8, ""), ("", "b")).units
    whole = Budget(scope="whole", max_length=1024, max_model_len=4096)
    budget = Budget(scope="matched", max_length=1024, max_model_len=4096)
    assert units.select(work_of(whole, 2)).to_series().to_list() == [
        100 // 4 + 2 * (1024 - 100),
        4 // 4 + 2 * (1024 - 4),
        2 * 1024,
    ]
    assert units.select(work_of(budget, 10)).to_series().to_list() == [
        100 // 4 + 10 * (20 + 5 + 8),
        4 // 4 + 10 * 8,
        10 * (1 + 8),
    ]
