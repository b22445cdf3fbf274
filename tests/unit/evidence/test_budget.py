"""How many tokens to decode."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from mia_batch.evidence.request import Budget

MATCHED = Budget(scope="matched", max_length=1024, max_model_len=2048)
WHOLE = Budget(scope="whole", max_length=1024, max_model_len=2048)


def test_matched_decodes_the_references_tokens_with_a_margin():
    assert MATCHED.first(100, 80) == 80 + 20 + 8


def test_whole_decodes_to_the_papers_length_prompt_included():
    assert WHOLE.first(100, 80) == 924


@pytest.mark.parametrize(
    ("budget", "prompt", "room"),
    [(MATCHED, 100, 1948), (WHOLE, 100, 924), (MATCHED, 2048, 0), (WHOLE, 1500, -476)],
)
def test_room_is_what_context_and_length_leave(budget, prompt, room):
    assert budget.room(prompt) == room


def test_a_small_context_bounds_both():
    small = Budget(scope="whole", max_length=1024, max_model_len=512)
    assert small.first(500, 80) == 12
    assert Budget(scope="matched", max_length=1024, max_model_len=512).first(500, 80) == 12


def test_the_budget_doubles_up_to_the_room_and_then_ends():
    assert MATCHED.next(1900, 50, 1) == 100
    assert MATCHED.next(1900, 100, 2) == 148
    assert MATCHED.next(1900, 148, 3) is None


def test_attempts_end_where_each_is_paid_for():
    paid = replace(MATCHED, max_attempts=3)
    assert paid.next(100, 200, 2) == 400
    assert paid.next(100, 400, 3) is None


def test_a_single_attempt_has_twice_the_usual_budget():
    assert replace(MATCHED, max_attempts=1).first(100, 80) == 2 * (80 + 20 + 8)


def test_the_most_is_the_sum_of_all_attempts():
    assert replace(MATCHED, max_attempts=3).most(100, 80) == 108 + 216 + 432
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
