"""Requests, the journal and the endpoint together."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mia_batch.errors import EngineError
from tests.hostile_server import EVERYTHING, Asked, HostileServer, Reply, Script, TinyModel
from tests.unit.evidence.endpoint.asking import opened, request, results, texts, until_failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mia_batch.evidence.request import Answer

MODEL = TinyModel()


def expected(request_id: int, n: int) -> list[str]:
    prompt = f"prompt number {request_id}"
    return [MODEL.text(prompt, 65536 * request_id + i) for i in range(n)]


def choice(index: int, text: Any, **more: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": "stop", **more}


def shown(found: dict[int, Answer]) -> dict[int, str]:
    """All that the answers say; they have no equality, because some hold arrays."""
    return {request_id: repr(answer) for request_id, answer in found.items()}


def asked_for(server: HostileServer) -> list[tuple[int, int]]:
    """Seed and number of every request for samples."""
    return [(asked.fields["seed"], asked.fields["n"]) for asked in server.asked]


def test_a_request_says_everything_that_decides_a_sample(tmp_path: Path):
    with (
        HostileServer(MODEL) as server,
        opened(server, tmp_path, temperature=0.7, top_p=0.9, top_k=40) as endpoint,
    ):
        (result,) = results(endpoint, [request(3, n=2)]).values()
    assert texts(result) == expected(3, 2)
    assert [output.n_tokens for output in result.continuations] == [6, 6]
    assert [output.finish_reason for output in result.continuations] == ["length", "length"]
    (asked,) = server.asked
    assert asked.path == "/v1/completions"
    assert asked.fields == {
        "model": "tiny",
        "prompt": "prompt number 3",
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stream": False,
        "max_tokens": 8,
        "n": 2,
        "seed": 3 * 65536,
        "return_token_ids": True,
    }


def test_what_the_endpoint_refuses_is_not_sent(tmp_path: Path):
    refused = ["n", "seed", "top_k", "return_token_ids", "min_p", "repetition_penalty"]
    model = TinyModel(refuses=refused)
    with HostileServer(model) as server, opened(server, tmp_path) as endpoint:
        (result,) = results(endpoint, [request(3, n=2)]).values()
    assert len(texts(result)) == 2
    assert [asked.fields.keys() for asked in server.asked] == [
        {"model", "prompt", "temperature", "top_p", "max_tokens"}
        | {"presence_penalty", "frequency_penalty", "stream"}
    ] * 2


def test_where_n_is_ignored_samples_are_asked_for_one_by_one(tmp_path: Path):
    model = TinyModel(honours=EVERYTHING - {"n"})
    with HostileServer(model) as server, opened(server, tmp_path) as endpoint:
        (result,) = results(endpoint, [request(1, n=3)]).values()
    assert texts(result) == expected(1, 3)
    assert asked_for(server) == [(65536, 1), (65537, 1), (65538, 1)]


def test_of_fewer_choices_only_the_rest_is_asked_for(tmp_path: Path):
    with HostileServer(TinyModel(most=4)) as server, opened(server, tmp_path) as endpoint:
        (result,) = results(endpoint, [request(1, n=10)]).values()
    assert texts(result) == expected(1, 10)
    assert asked_for(server) == [(65536, 10), (65540, 6), (65544, 2)]


def test_gaps_are_filled_with_their_own_seeds(tmp_path: Path):
    some = Reply(content={"choices": [choice(1, " b"), choice(2, None), choice(4, " e")]})
    with HostileServer(Script(some)) as server, opened(server, tmp_path) as endpoint:
        (result,) = results(endpoint, [request(1, n=5)]).values()
    right = expected(1, 5)
    assert texts(result) == [right[0], " b", right[2], right[3], " e"]
    assert asked_for(server) == [(65536, 5), (65536, 1), (65538, 2)]


def test_a_text_that_stays_null_fails_its_request_after_a_few_tries(tmp_path: Path):
    def half(asked: Asked) -> Reply:
        if asked.is_probe or asked.fields["seed"] >= 2 * 65536:
            return MODEL(asked)
        return Reply(content={"choices": [choice(0, " a"), choice(1, None)][: asked.fields["n"]]})

    def none(asked: Asked) -> Reply:
        reply = half(asked)
        if not asked.is_probe and asked.fields["seed"] == 65537:
            return Reply(content={"choices": [choice(0, None)]})
        return reply

    with HostileServer(none) as server:
        with opened(server, tmp_path) as endpoint:
            found = results(endpoint, [request(1, n=2), request(2, n=2)])
        assert found[1].error == (
            "the endpoint gave no usable answer: choice 0 cannot be used "
            "(it holds no text) (after 3 tries)"
        )
        assert found[1].continuations == []
        assert texts(found[2]) == expected(2, 2)
        assert asked_for(server)[:3] == [(65536, 2), (65537, 1), (65537, 1)]
        server._answer = MODEL
        with opened(server, tmp_path) as endpoint:  # asks for what is missing only
            (result,) = results(endpoint, [request(1, n=2)]).values()
        assert texts(result) == [" a", expected(1, 2)[1]]
        assert asked_for(server)[-1] == (65537, 1)


def test_journalled_answers_are_never_asked_for_again(tmp_path: Path):
    requests = [request(i, n=3) for i in range(6)]
    with HostileServer(MODEL) as server:
        with opened(server, tmp_path) as endpoint:
            first = shown(results(endpoint, requests[:4]))
        with opened(server, tmp_path) as endpoint:
            found = results(endpoint, requests)
            again = shown(found)
            assert shown(results(endpoint, requests)) == again
    assert len(server.asked) == 6
    assert {i: again[i] for i in range(4)} == first
    assert [texts(result) for result in found.values()] == [expected(i, 3) for i in range(6)]


@pytest.mark.parametrize("changed", [{"temperature": 0.5}, {"top_k": 7}, {"top_p": 0.5}])
def test_other_settings_share_no_answers(changed: dict[str, float], tmp_path: Path):
    with HostileServer(MODEL) as server:
        for settings in ({}, changed, {}, changed):
            with opened(server, tmp_path, **settings) as endpoint:
                results(endpoint, [request(1)])
    assert len(server.asked) == 2


def test_instructions_to_a_chat_model_are_a_setting_like_others(tmp_path: Path):
    with HostileServer(MODEL) as server:
        for changed in ({"chat": True}, {"chat": True, "chat_instruction": "Go on."}, {}):
            for _ in range(2):
                with opened(server, tmp_path, **changed) as endpoint:
                    (result,) = results(endpoint, [request(1)]).values()
                    assert result.error is None
    assert [asked.path for asked in server.asked] == [
        "/v1/chat/completions",
        "/v1/chat/completions",
        "/v1/completions",
    ]
    assert server.asked[0].prompt.endswith("no quotation marks.\n\nprompt number 1")
    assert server.asked[1].prompt == "Go on.\n\nprompt number 1"


def test_refusals_are_not_journalled(tmp_path: Path):
    script = Script(Reply(status=400, content={"error": {"message": "flagged"}}))
    with HostileServer(script) as server, opened(server, tmp_path) as endpoint:
        assert results(endpoint, [request(1)])[1].error is not None
        assert texts(results(endpoint, [request(1)])[1]) == expected(1, 1)
    assert len(server.asked) == 2


def test_as_many_requests_as_allowed_are_in_flight(tmp_path: Path):
    with HostileServer(MODEL) as server:
        server._answer = Script(*[server.never()] * 5, then=MODEL)
        with opened(server, tmp_path, max_concurrency=5) as endpoint:
            for i in range(9):
                endpoint.submit(request(i))
            assert endpoint.results(timeout=0.5) == []
            assert len(server.asked) == 5


def test_a_full_disk_ends_the_run_and_loses_no_answer(tmp_path: Path):
    requests = [request(i) for i in range(60)]
    with HostileServer(MODEL) as server:
        with opened(server, tmp_path, max_concurrency=4) as endpoint, disk_of(100_000):
            for each in requests:
                endpoint.submit(each)
            stored = until_failure(endpoint)
            with pytest.raises(EngineError, match=r"journal .* cannot be used .* same command"):
                endpoint.results()
        before = len(server.asked)
        assert 0 < len(stored) <= before < len(requests)
        with opened(server, tmp_path, max_concurrency=4) as endpoint:
            found = results(endpoint, requests)
    assert [texts(result) for result in found.values()] == [expected(i, 1) for i in range(60)]
    repeated = len(server.asked) - len(requests)
    assert repeated == before - len(stored) <= 4  # in flight when the disk was full


@contextmanager
def disk_of(n_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_mistake_of_the_caller_ends_the_run_with_a_sentence(tmp_path: Path):
    with HostileServer(MODEL) as server, opened(server, tmp_path) as endpoint:
        endpoint.submit(replace(request(1), context="\ud800"))  # half a character
        with pytest.raises(EngineError, match="the client of the endpoint has failed"):
            endpoint.results()
    assert server.asked == []
