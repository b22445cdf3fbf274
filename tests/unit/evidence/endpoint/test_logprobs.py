from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.request import Request
from mia_batch.models.tokens import Tokenizer
from tests.checkpoints import TEXTS
from tests.hostile_server import MODEL, Garbling, HostileServer, Reply, Script, TinyModel, failure
from tests.unit.evidence.endpoint.asking import opened as opened_endpoint
from tests.unit.evidence.endpoint.asking import results, until_failure

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.evidence.request import Answer
    from tests.hostile_server import Asked


def value(tokens: list[str], index: int) -> float:
    """What the echoing model says of a token: it depends on all before it."""
    return -(len("".join(tokens[: index + 1])) % 7) - 0.5


def echo(asked: Asked) -> Reply:
    """A model whose tokens are words with the space before them, after a special token."""
    if asked.method == "GET":
        return Reply(content={"data": [{"id": MODEL, "max_model_len": 2048}]})
    tokens = ["<s>", *re.findall(r"\s*\S+|\s+$", asked.prompt), " drawn"]
    logprobs = [None, *(value(tokens[1:], i) for i in range(len(tokens) - 1))]
    choice = {
        "index": 0,
        "text": asked.prompt + " drawn",
        "finish_reason": "length",
        "logprobs": {"tokens": tokens, "token_logprobs": logprobs},
    }
    usage = {"prompt_tokens": len(tokens) - 1, "completion_tokens": 1}
    return Reply(content={"choices": [choice], "usage": usage})


def text_request(request_id: int, text: str, **changes: Any) -> Request:
    key = f"target-{request_id}:text:0"
    return Request(request_id=request_id, kind="logprobs", key=key, text=text, **changes)


opened = partial(opened_endpoint, kind="logprobs")


def logprobs(result: Answer) -> list[float]:
    assert result.tokens is not None, result.error
    assert result.tokens.keys() == {"logprob"}
    found: list[float] = result.tokens["logprob"].tolist()
    return found


def test_a_text_gets_the_values_of_its_tokens(tmp_path: Path):
    with HostileServer(echo) as server, opened(server, tmp_path) as endpoint:
        found = results(endpoint, [text_request(i, f"text number {i} of some") for i in range(9)])
        assert endpoint.capabilities.max_model_len == 2048
    for number, result in found.items():
        tokens = ["text", " number", f" {number}", " of", " some"]
        assert result.passes == 1
        assert logprobs(result) == [value(tokens, i) for i in range(5)]
        assert result.bos


def test_nothing_that_changes_probabilities_is_sent(tmp_path: Path):
    changed = {"temperature": 0.3, "top_k": 7, "top_p": 0.5}
    with HostileServer(echo) as server, opened(server, tmp_path, **changed) as endpoint:
        results(endpoint, [text_request(0, "a text")])
    (asked,) = server.asked
    assert asked.fields == {
        "model": MODEL,
        "prompt": "a text",
        "echo": True,
        "logprobs": 1,
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stream": False,
    }


def test_a_context_is_sent_but_not_scored(tmp_path: Path):
    with HostileServer(echo) as server, opened(server, tmp_path) as endpoint:
        request = text_request(0, " and text", context="some context")
        (result,) = results(endpoint, [request]).values()
    tokens = ["some", " context", " and", " text"]
    assert logprobs(result) == [value(tokens, 2), value(tokens, 3)]


def test_a_context_is_cut_to_its_last_tokens(checkpoint: Path, tmp_path: Path):
    tokenizer = Tokenizer.load(str(checkpoint))
    context = TEXTS[0][:300]
    request = text_request(0, " and text", context=context, context_tokens=5)
    with HostileServer(echo) as server:
        with opened(server, tmp_path, tokenizer=tokenizer) as endpoint:
            assert results(endpoint, [request])[0].error is None
        (asked,) = server.asked
    kept = asked.prompt.removesuffix(" and text")
    assert context.endswith(kept)
    assert tokenizer.count_tokens([kept]) == [5]


def test_without_a_tokenizer_no_context_is_cut(tmp_path: Path):
    request = text_request(0, "text", context="some context", context_tokens=1)
    with HostileServer(echo) as server, opened(server, tmp_path) as endpoint:
        (result,) = results(endpoint, [request]).values()
    assert (result.passes, server.asked) == (0, [])
    assert result.error == "the context cannot be cut without its tokens; set 'tokenizer'"


def test_a_limit_of_tokens_takes_the_first_and_refuses_shorter_texts(tmp_path: Path):
    requests = [text_request(i, "one two three", text_tokens=2 + 2 * i) for i in range(2)]
    with HostileServer(echo) as server, opened(server, tmp_path) as endpoint:
        found = results(endpoint, requests)
    assert len(logprobs(found[0])) == 2
    assert found[1].error == "the text has 3 tokens, fewer than the 4 wanted"
    assert not found[1].asked


def test_an_empty_text_is_not_asked_for(tmp_path: Path):
    with HostileServer(echo) as server, opened(server, tmp_path) as endpoint:
        (result,) = results(endpoint, [text_request(0, "", context="context")]).values()
    assert (result.error, server.asked) == ("the text has no token", [])


def test_answers_are_paid_for_once(tmp_path: Path):
    requests = [text_request(i, f"text number {i}") for i in range(5)]
    found = []
    with HostileServer(echo) as server:
        for n in (3, 5):
            with opened(server, tmp_path) as endpoint:
                found.append(results(endpoint, requests[:n]))
        assert len(server.asked) == 5
    for i in range(3):
        assert logprobs(found[0][i]) == logprobs(found[1][i])


def test_failures_are_repeated_and_refusals_are_their_requests_own(tmp_path: Path):
    bare = Reply(content={"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]})
    refusal = failure(400, "too long")
    script = Script(
        *[failure(500, "boom"), bare],
        then=lambda asked: refusal if "number 1" in str(asked.prompt) else echo(asked),
    )
    with HostileServer(script) as server, opened(server, tmp_path) as endpoint:
        found = results(endpoint, [text_request(i, f"text number {i}") for i in range(3)])
    assert [result.error for result in found.values()] == [
        None,
        "the endpoint refused the request: status 400: too long",
        None,
    ]
    assert len(server.asked) == 5


def test_tokens_that_are_not_the_prompts_fail_their_request(tmp_path: Path):
    def normalising(asked: Asked) -> Reply:
        reply = echo(asked)
        if asked.method == "POST" and not asked.is_probe:
            tokens = reply.content["choices"][0]["logprobs"]["tokens"]
            tokens[1] = tokens[1].lower()
        return reply

    with HostileServer(normalising) as server, opened(server, tmp_path) as endpoint:
        found = results(endpoint, [text_request(0, "Some text"), text_request(1, "some text")])
    assert found[0].error == "the endpoint's tokens, put together, are not the prompt"
    assert found[1].error is None


@pytest.mark.parametrize("honours", [(), ("echo_logprobs",)], ids=["ignores", "lacks tokens"])
def test_an_endpoint_that_does_not_echo_is_refused(honours: tuple[str, ...], tmp_path: Path):
    with HostileServer(TinyModel(honours=honours)) as server:
        match = r"does not echo log-probabilities of prompts \(.*\); take another endpoint, or"
        with pytest.raises(SettingsError, match=match):
            opened(server, tmp_path)


def test_a_gateway_that_garbles_each_prompt_twice_is_borne_from_the_probe_on(tmp_path: Path):
    with HostileServer(Garbling(2, then=echo)) as server, opened(server, tmp_path) as endpoint:
        found = results(endpoint, [text_request(i, f"text number {i}") for i in range(3)])
    assert [result.error for result in found.values()] == [None] * 3
    assert len(server.asked) == 3 * 3


def test_an_endpoint_answers_only_what_it_was_opened_for(tmp_path: Path):
    wrong = Request(request_id=0, kind="samples", context="a context")
    with HostileServer(echo) as server, opened(server, tmp_path) as endpoint:
        (result,) = results(endpoint, [wrong]).values()
    assert result.error == "the endpoint was opened for logprobs, not for samples"
    assert server.asked == []


def test_no_endpoint_gives_variants_of_a_text(tmp_path: Path):
    with HostileServer(echo) as server:
        with pytest.raises(SettingsError, match="gives samples and logprobs, but no fills"):
            opened_endpoint(server, tmp_path, kind="fills")
        assert (server.asked, server.probes) == ([], [])


def test_an_endpoint_that_refuses_to_echo_is_named(tmp_path: Path):
    match = r"does not echo log-prob.*unknown field \['echo'\].*take another"
    with (
        HostileServer(TinyModel(refuses=["echo"])) as server,
        pytest.raises(SettingsError, match=match),
    ):
        opened(server, tmp_path)


def test_a_chat_endpoint_is_refused_before_it_is_asked(tmp_path: Path):
    with HostileServer(echo) as server:
        with pytest.raises(SettingsError, match="'chat': a chat endpoint gives no log-prob"):
            opened(server, tmp_path, chat=True)
        assert (server.asked, server.probes) == ([], [])


def test_the_limit_of_cost_counts_texts(tmp_path: Path):
    prices = {"price_in": 1e6, "price_out": 0.0, "max_cost": 100.0}  # a token, a coin
    with HostileServer(echo) as server, opened(server, tmp_path, **prices) as endpoint:
        for i in range(40):
            endpoint.submit(text_request(i, f"text number {i}"))
        found = until_failure(endpoint)
        with pytest.raises(EngineError, match="'max_cost' is 100, of which"):
            endpoint.results()
    assert 0 < len(found) < 40
    assert len(server.asked) == len(found)


def test_values_are_float32_and_unscored_is_nan(tmp_path: Path):
    def headless(asked: Asked) -> Reply:
        reply = echo(asked)
        if asked.method == "POST":
            for values in reply.content["choices"][0]["logprobs"].values():
                del values[0]
        return reply

    with HostileServer(headless) as server, opened(server, tmp_path) as endpoint:
        (result,) = results(endpoint, [text_request(0, "one two")]).values()
    assert result.tokens is not None
    assert result.tokens["logprob"].dtype == np.float32
    assert not result.bos
    assert [math.isnan(each) for each in logprobs(result)] == [True, False]
