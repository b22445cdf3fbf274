"""Servers that read a part of a long prompt in silence, and those that only look like it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint.cutting import ReadingLimit
from mia_batch.evidence.request import Answer
from tests.hostile_server import Asked, HostileServer, Reply, TinyModel, failure
from tests.unit.evidence.endpoint.asking import (
    answered,
    opened,
    request,
    results,
    until_failure,
)

LIMIT = 400  # words, which are the tokens here


class Reader(TinyModel):
    """Counts words; reads the last ones of a prompt that is too long, or does as its kind does."""

    def __init__(self, kind: str, limit: int = LIMIT) -> None:
        super().__init__()
        self._kind = kind
        self._limit = limit
        self._cached: list[str] = []

    def __call__(self, wire_request: Asked) -> Reply:
        if wire_request.method == "GET":
            return super().__call__(wire_request)
        words = wire_request.prompt.split()
        n_words = len(words)
        if self._kind == "cuts":
            n_words = min(n_words, self._limit)
        elif self._kind == "refuses" and n_words > self._limit:
            return failure(400, "the context is too small for it")
        elif self._kind == "counts what is not cached":
            n_words -= self._count_cached(wire_request.prompt)
        elif self._kind == "counts a template":
            n_words += 5000
        counts: dict[str, Any] = {"prompt_tokens": n_words, "completion_tokens": 6}
        if self._kind == "counts nothing":
            counts["prompt_tokens"] = 0
        reply = super().__call__(wire_request)
        document = reply.content | {"usage": counts}
        if self._kind == "says nothing":
            del document["usage"]
        return replace(reply, content=document)

    def _count_cached(self, prompt: str) -> int:
        shared = [
            earlier.split() for earlier in self._cached if prompt.startswith(earlier)
        ]
        self._cached.append(prompt)
        return max(map(len, shared), default=0)


def prompts(*lengths: int) -> list[Any]:
    """Prompts of so many words, each the beginning of the longer ones."""
    words = [f"word{number}" for number in range(max(lengths))]
    return [
        replace(request(number), context=" ".join(words[:length]))
        for number, length in enumerate(lengths)
    ]


GROWING = (100, 200, 390, 399, 420, 500, 900, 2000)


def errors(answers: dict[int, Answer]) -> list[str | None]:
    return [answer.error for answer in answers.values()]


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_answers_to_prompts_that_were_cut_are_no_evidence(order, chat, tmp_path):
    lengths = GROWING[::order]
    reader = Reader("cuts")
    changed = {"chat": chat, "chat_instruction": "Go"}
    answers, server = answered(reader, tmp_path, prompts(*lengths), **changed)
    for length, error in zip(lengths, errors(answers), strict=True):
        if length < LIMIT - chat:  # the instruction has a word
            assert error is None
        else:
            assert error == (
                "the endpoint gave no usable answer: it reads at most 400 tokens of a"
                " prompt and cuts the rest, for it counts no more for one twice as"
                " long; let it read more (in Ollama by num_ctx or"
                " OLLAMA_CONTEXT_LENGTH), or take shorter texts"
            )
    assert len(server.asked) <= len(GROWING) + 3


def test_a_prompt_that_alone_is_too_long_is_found(tmp_path):
    answers, _ = answered(Reader("cuts"), tmp_path, prompts(100, 900))
    assert [error is None for error in errors(answers)] == [True, False]


@pytest.mark.parametrize(
    ("kind", "n_checks"),
    [
        ("reads all", 3),
        ("counts what is not cached", 3),
        ("counts a template", 5),
        ("counts nothing", 0),
        ("says nothing", 0),
    ],
)
def test_a_server_that_reads_all_is_not_suspected(kind, n_checks, tmp_path):
    answers, server = answered(Reader(kind), tmp_path, prompts(*GROWING))
    assert errors(answers) == [None] * len(GROWING)
    assert len(server.asked) - len(GROWING) <= n_checks


def test_a_server_that_refuses_what_is_too_long_is_believed_then(tmp_path):
    answers, server = answered(Reader("refuses"), tmp_path, prompts(*GROWING))
    for length, error in zip(GROWING, errors(answers), strict=True):
        assert (error is not None) == (length > LIMIT)
        assert "at most" not in str(error)
    assert len(server.asked) == len(GROWING) + 1


def test_short_prompts_cost_no_check(tmp_path):
    _, server = answered(Reader("cuts"), tmp_path, prompts(*range(10, 100, 10)))
    assert len(server.asked) == 9


def test_many_prompts_of_one_length_cost_one_check(tmp_path):
    requests = [
        replace(request(i), context=f"{i} " + "a word or so " * 80) for i in range(20)
    ]
    answers, server = answered(
        Reader("reads all"), tmp_path, requests, max_concurrency=8
    )
    assert errors(answers) == [None] * 20
    assert len(server.asked) == 21


def test_a_cut_answer_is_asked_for_again_and_kept_once_it_is_whole(tmp_path):
    with HostileServer(Reader("cuts")) as server:
        with opened(server, tmp_path) as endpoint:
            assert errors(results(endpoint, prompts(100, 900)))[0] is None
        n_asked = len(server.asked)
        server._answer = Reader("cuts", limit=4096)
        for n_new in (2, 0):  # the prompt and its check, then nothing
            with opened(server, tmp_path) as endpoint:
                answers = results(endpoint, prompts(100, 900))
            assert errors(answers) == [None, None]
            assert len(server.asked) == n_asked + n_new
            n_asked = len(server.asked)


def test_what_was_cut_is_paid_for(tmp_path):
    prices = {"price_in": 1e6, "price_out": 0.0}
    with HostileServer(Reader("cuts")) as server:
        with opened(server, tmp_path, **prices) as endpoint:
            results(endpoint, prompts(900))
        with opened(server, tmp_path, **prices) as endpoint:
            spent = endpoint._runner.ledger.spent
    # What a server says that it read is too little: the words count that were sent
    assert spent is not None
    assert spent >= 900 + 1800


def test_a_server_that_cuts_most_prompts_ends_the_run(tmp_path):
    requests = prompts(*range(30, 100, 10), *range(500, 530))
    with (
        HostileServer(Reader("cuts")) as server,
        opened(server, tmp_path) as endpoint,
    ):
        for item in requests:
            endpoint.submit(item)
        answers = until_failure(endpoint)
        with pytest.raises(
            EngineError, match=r"cuts most prompts: it reads at most 400 tokens .*again"
        ):
            endpoint.results()
    assert sum(answer.error is None for answer in answers) == 7
    assert sum(answer.error is not None for answer in answers) == 15


@pytest.mark.parametrize(
    ("kind", "expected"), [("reads all", True), ("counts nothing", False)]
)
def test_it_is_noted_whether_prompts_are_counted(kind, expected, tmp_path):
    with HostileServer(Reader(kind)) as server, opened(server, tmp_path) as endpoint:
        assert endpoint.capabilities.counts_prompts == expected


@given(
    st.integers(256, 5000),
    st.lists(st.integers(1, 12_000), min_size=1),
    st.integers(0, 300),
)
def test_no_whole_prompt_is_suspected_and_no_cut_one_passes(limit, lengths, template):
    cutting, honest = ReadingLimit(), ReadingLimit()
    for length in lengths:
        prompt = "word " * length
        whole = template + length
        n_read = min(whole, limit)
        if cutting.needs_check(n_read, prompt):
            cutting.compare(n_read, min(template + 2 * length + 4, limit))
        if len(prompt) >= 1024:
            assert cutting.is_cut(n_read) == (whole >= limit)
        if honest.needs_check(whole, prompt):
            honest.compare(whole, template + 2 * length + 4)
        assert not honest.is_cut(whole)
