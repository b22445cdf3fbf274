"""How many tokens to decode."""

from __future__ import annotations

import pytest

from mia_batch.evidence.budget import Budget

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
    assert MATCHED.next(1900, 50) == 100
    assert MATCHED.next(1900, 100) == 148
    assert MATCHED.next(1900, 148) is None
