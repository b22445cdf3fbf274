"""Lengths estimated without a tokenizer."""

from __future__ import annotations

from mia_batch.models.weights import Measure, estimate_tokens


def test_a_token_for_every_four_bytes_rounded_up():
    assert estimate_tokens(["abcd", "\N{SNOWMAN}" * 3], ["abcde", ""]) == [
        Measure(prompt_token_ids=None, prompt_tokens=1, reference_tokens=2),
        Measure(prompt_token_ids=None, prompt_tokens=3, reference_tokens=0),
    ]
