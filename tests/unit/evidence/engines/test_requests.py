from __future__ import annotations

import re
from typing import Any

import pytest

from mia_batch.evidence.engines.batching import why_impossible
from mia_batch.evidence.request import Request
from tests.engine_conformance import text_request


def reason(**changes: Any) -> str | None:
    values: dict[str, Any] = {
        "request_id": 0,
        "kind": "samples",
        "context_ids": [1, 2],
        "seed": 0,
        "n": 1,
        "max_tokens": 1,
    }
    return why_impossible(Request(**(values | changes)), max_model_len=4, vocab_size=9)


@pytest.mark.parametrize("prompt", [[1], [0, 8, 8]])
def test_a_prompt_that_leaves_room_for_one_token_is_possible(prompt: list[int]):
    assert reason(context_ids=prompt) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context_ids": []}, "the prompt has no tokens"),
        ({"context_ids": [1] * 4}, "4 tokens, which leaves no room in .* context of 4"),
        ({"context_ids": [9]}, "outside the model's vocabulary of 9"),
        ({"context_ids": [-1]}, "outside the model's vocabulary of 9"),
        ({"n": 0}, "at least one sample"),
        ({"max_tokens": 0}, "and one token"),
    ],
)
def test_what_no_engine_can_answer_has_its_reason(changes: dict[str, Any], words: str):
    found = reason(**changes)
    assert found is not None
    assert re.search(words, found)


@pytest.mark.parametrize(
    ("token_ids", "first", "words"),
    [
        ([1, 2], 1, None),
        ([1, 2, 0, 8], 3, None),
        ([], 1, "a text of 0 tokens has none to score from token 0 on"),
        ([1], 1, "a text of 1 tokens has none"),
        ([1, 2], 2, "none to score from token 2 on"),
        ([1, 2], 0, "none to score from token 0 on"),
        ([1] * 5, 1, "5 tokens, more than the model's context of 4"),
        ([1, 9], 1, "outside the model's vocabulary of 9"),
        ([-1, 1], 1, "outside the model's vocabulary of 9"),
    ],
)
def test_what_no_engine_can_score_has_its_reason(
    token_ids: list[int], first: int, words: str | None
):
    request = text_request(0, token_ids, first)
    found = why_impossible(request, max_model_len=4, vocab_size=9)
    assert (found is None) if words is None else (found is not None and words in found)
