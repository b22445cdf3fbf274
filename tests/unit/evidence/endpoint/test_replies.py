"""Bodies of replies, sound and broken."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.endpoint import EndpointSettings
from mia_batch.evidence.endpoint.replies import Chat, RequestFormat, WireRequest
from mia_batch.evidence.endpoint.settings import Tokens
from mia_batch.evidence.request import Continuation
from tests.unit.evidence.endpoint.asking import KEY

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.replies import Choices

SETTINGS = EndpointSettings(base_url="http://host/v1", model="m", api_key=KEY)


def read(document: Any, n: int = 2) -> Choices:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return RequestFormat(SETTINGS).read(body, WireRequest({}, n, 0, Tokens(1, 1)))


def choices(*items: Any, **more: Any) -> dict[str, Any]:
    return {"choices": list(items), **more}


def continuation(text: str, n_tokens: int | None = None, finish: Any = None) -> Continuation:
    return Continuation(text=text, n_tokens=n_tokens, finish_reason=finish)


def test_choices_are_put_in_the_order_of_their_index():
    answer = read(
        choices(
            {"index": 1, "text": " b", "finish_reason": "stop", "token_ids": [7]},
            {"index": 0, "text": " a", "finish_reason": "length", "token_ids": [7, 8]},
            usage={"prompt_tokens": 3, "completion_tokens": 3},
        )
    )
    assert answer.found == {0: continuation(" a", 2, "length"), 1: continuation(" b", 1, "stop")}
    assert (answer.used, answer.problem) == (Tokens(3, 3), None)


def test_of_a_single_choice_the_usage_tells_the_tokens():
    usage = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    answer = read(choices({"text": "a", "finish_reason": "eos_token"}, usage=usage))
    assert answer.found == {0: continuation("a", 9, "stop")}
    answer = read(choices({"text": "a"}, {"text": ""}, usage=usage))
    assert answer.found == {0: continuation("a"), 1: continuation("")}


@pytest.mark.parametrize(
    "usage", [None, 3, {}, {"prompt_tokens": -1}, {"prompt_tokens": "3"}, {"prompt_tokens": 2**70}]
)
def test_a_usage_that_makes_no_sense_counts_as_unknown(usage: Any):
    answer = read(choices({"text": "a"}, usage=usage))
    assert (answer.used, answer.problem) == (None, None)


def test_fewer_choices_are_no_problem_here():
    answer = read(choices({"index": 1, "text": "b"}))
    assert (answer.found, answer.problem) == ({1: continuation("b")}, None)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"text": None}, "choice 0 cannot be used (it holds no text)"),
        ({}, "choice 0 cannot be used (it holds no text)"),
        ({"text": 3}, "choice 0 cannot be used (it holds no text)"),
        ({"text": "a", "index": "0"}, "choice 0 cannot be used (Input should be a valid integer)"),
        ({"text": "\ud800"}, "choice 0 cannot be used (its text is not valid Unicode)"),
        (
            {"text": "a", "finish_reason": "ERROR"},
            "choice 0 cannot be used (the endpoint ended it with 'error')",
        ),
        ("a", "choice 0 cannot be used (it is not an object)"),
    ],
)
def test_a_choice_that_cannot_be_used_leaves_the_others(bad: Any, problem: str):
    answer = read(choices(bad, {"index": 1, "text": "b"}))
    assert answer.found == {1: continuation("b")}
    assert answer.problem == problem


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (choices(), "it holds no choices"),
        ({"error": {"message": "no"}}, "it holds no choices: {'message': 'no'}"),
        ({"choices": {"text": "a"}}, "it holds no choices"),
        (choices({"text": "a"}, {"text": "b"}, {"text": "c"}), "it holds 3 choices where 2"),
        (choices({"index": 0, "text": "a"}, {"index": 0, "text": "b"}), "index 0 twice or beyond"),
        (choices({"index": 2, "text": "a"}), "index 2 twice or beyond 1"),
        (choices({"index": -1, "text": "a"}), "index -1 twice or beyond 1"),
        (b'{"choices": [{"text": "a"', 'it is not JSON: {"choices": [{"text": "a"'),
        (b"[1]", "it is not JSON: [1]"),
        (b"", "it is not JSON: nothing"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON: [[["),
        (b'{"choices": ' + b"9" * 5000 + b"}", "it is not JSON"),
        (
            b"<html><style>p {}</style><body>\n<h1>Bad\x1b[31m gateway</h1></body></html>",
            "it is not JSON: Bad [31m gateway",
        ),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_has_nothing(document: Any, problem: str):
    answer = read(document)
    assert answer.found == {}
    assert answer.problem is not None
    assert problem in answer.problem


def test_the_key_is_not_quoted():
    assert KEY not in str(read(f"you sent {KEY}".encode()).problem)
    assert KEY not in str(read({"error": f"you sent {KEY}"}).problem)
    assert KEY not in str(read(choices({"text": "a", "finish_reason": KEY})).problem)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
choice_like = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(["text", "index", "finish_reason", "token_ids"], json_values)
)
document_like = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(choice_like | json_values, max_size=3) | json_values,
        "usage": json_values,
        "error": json_values,
    },
)


@given(document_like | json_values)
def test_nothing_that_json_can_say_breaks_the_reader(document: Any):
    answer = read(document)
    assert set(answer.found) <= {0, 1}
    assert all(isinstance(found.text, str) for found in answer.found.values())
    assert answer.found or answer.problem is not None


def test_chat_answers_hold_the_text_in_a_message():
    chat = Chat(replace(SETTINGS, chat_instruction="Go on."))
    assert chat.prompt_fields("Once") == {
        "messages": [{"role": "user", "content": "Go on.\n\nOnce"}]
    }
    body = json.dumps(
        choices({"message": {"content": "upon"}, "finish_reason": "stop"}, {"message": None})
    ).encode()
    answer = chat.read(body, WireRequest({}, 2, 0, Tokens(1, 1)))
    assert answer.found == {0: continuation("upon", None, "stop")}
    assert answer.problem == "choice 1 cannot be used (it holds no text)"
