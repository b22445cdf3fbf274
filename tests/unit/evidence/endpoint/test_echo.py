from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mia_batch.evidence.endpoint import EndpointSettings
from mia_batch.evidence.endpoint.replies import Echo, read_echo


def read(
    tokens: Any, logprobs: Any, text: str, context: str = "", n_drawn: int | None = 1
) -> tuple[bool, list[float | None]] | str:
    """Whether a special token came first, and the values, None for NaN; or the reason."""
    found = read_echo(json.dumps([tokens, logprobs]), context, text, n_drawn=n_drawn)
    if isinstance(found, str):
        return found
    bos, logprob = found
    return bos, [None if math.isnan(value) else value for value in logprob.tolist()]


def test_a_first_token_without_a_start_is_unscored():
    assert read(["a", " b", " x"], [None, -1.0, -9.0], "a b") == (False, [None, -1.0])


def test_a_first_token_after_a_start_is_scored():
    found = read(["<s>", "a", " b", " x"], [None, -2.0, -1.0, -9.0], "a b")
    assert found == (True, [-2.0, -1.0])


def test_a_value_of_a_first_token_without_a_start_is_not_believed():
    assert read(["a", " b", " x"], [-7.0, -1.0, -9.0], "a b") == (False, [None, -1.0])


@pytest.mark.parametrize("n_drawn", [0, 1, None])
def test_an_endpoint_that_lists_no_drawn_token_is_read(n_drawn: int | None):
    assert read(["a", " b"], [None, -1.0], "a b", n_drawn=n_drawn) == (False, [None, -1.0])


@pytest.mark.parametrize("n_drawn", [1, None])
def test_a_drawn_token_without_text_is_not_the_texts(n_drawn: int | None):
    found = read(["a", " b", ""], [None, -1.0, -9.0], "a b", n_drawn=n_drawn)
    assert found == (False, [None, -1.0])


def test_only_tokens_that_start_in_the_text_count():
    tokens, logprobs = ["<s>", "one", " t", "wo", " x"], [None, -1.0, -2.0, -3.0, -9.0]
    assert read(tokens, logprobs, " two", "one") == (True, [-2.0, -3.0])
    assert read(tokens, logprobs, "two", "one ") == (True, [-3.0])  # " t" reaches into the text


def test_characters_cut_into_bytes_are_put_together():
    tokens = ["a", "bytes:\\xe2\\x80", "bytes:\\x9d", "b", " x"]
    found = read(tokens, [None, -1.0, -2.0, -3.0, -9.0], "a\u201db")
    assert found == (False, [None, -1.0, -2.0, -3.0])


@pytest.mark.parametrize(
    ("tokens", "logprobs", "words"),
    [
        (None, [None, -1.0], "not one for each token"),
        (["a", 5], [None, -1.0], "not one for each token"),
        (["a", " b"], None, "not one for each token"),
        (["a", " b", " x"], [None, -1.0], "not one for each token"),
        ([], [], "are not the prompt"),
        (["a", " c", " x"], [None, -1.0, -1.0], "are not the prompt"),
        (["a", " b", " x", " y"], [None, -1.0, -1.0, -1.0], "are not the prompt"),
        (["<s>", "<s>", "a", " b"], [None, -1.0, -1.0, -1.0], "are not the prompt"),
        (["a b", " x"], [None, -1.0], "no token that something precedes"),
        (["a", " b", " x"], [None, None, -1.0], "not a number up to 0"),
        (["a", " b", " x"], [None, 0.5, -1.0], "not a number up to 0"),
        (["a", " b", " x"], [None, "-1", -1.0], "not a number up to 0"),
        (["a", " b", " x"], [None, -9999.0, -1.0], "not a number up to 0"),
        (["a", " b", " x"], [None, math.nan, -1.0], "not a number up to 0"),
        (["a", " b", " x"], [None, -math.inf, -1.0], "not a number up to 0"),
    ],
)
def test_an_echo_that_does_not_fit_has_its_reason(tokens: Any, logprobs: Any, words: str):
    found = read(tokens, logprobs, "a b")
    assert isinstance(found, str)
    assert words in found


def test_an_answer_without_log_probabilities_has_no_text():
    settings = EndpointSettings(base_url="http://host/v1", model="m")
    assert Echo(settings).text({"text": "a b", "logprobs": None}) is None
