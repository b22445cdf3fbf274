"""Retries and limits against an endpoint that misbehaves."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from random import Random
from typing import TYPE_CHECKING

import pytest

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint import Endpoint
from tests.hostile_server import HostileServer, Reply, Script, TinyModel, failure
from tests.unit.evidence.endpoint.asking import (
    opened,
    request,
    results,
    settings_for,
    texts,
    until_failure,
)

if TYPE_CHECKING:
    from pathlib import Path

MODEL = TinyModel()
SOUND = [MODEL.text("prompt number 1", 65536)]


def answer_after(*replies: Reply, folder: Path) -> HostileServer:
    """Ask one request of an endpoint that first gives these replies; it must come out sound."""
    with HostileServer(Script(*replies)) as server, opened(server, folder) as endpoint:
        (result,) = results(endpoint, [request(1)]).values()
        assert texts(result) == SOUND
    assert len(server.asked) == len(replies) + 1
    return server


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_refusals_that_pass_are_sat_out(status: int, tmp_path: Path):
    answer_after(*[failure(status, "not now")] * 3, folder=tmp_path)


def test_an_answer_cut_in_its_middle_is_asked_for_again(tmp_path: Path):
    whole = Reply(content={"choices": [{"index": 0, "text": "wrong"}]}, cut_after=20)
    answer_after(whole, whole, folder=tmp_path)


def test_a_cut_that_looks_like_an_end_is_asked_for_again(tmp_path: Path):
    answer_after(Reply(content=b'{"choices": [{"index": 0, "te'), folder=tmp_path)


def test_a_html_page_in_the_place_of_an_answer_is_asked_for_again(tmp_path: Path):
    page = b"<html><body><h1>We will be right back</h1></body></html>"
    answer_after(Reply(content=page), Reply(content=page, status=502), folder=tmp_path)


def test_an_answer_that_is_not_gzip_though_it_says_so_is_asked_for_again(tmp_path: Path):
    answer_after(Reply(content=b"x", headers={"Content-Encoding": "gzip"}), folder=tmp_path)


def test_seconds_of_retry_after_are_waited(tmp_path: Path):
    server = answer_after(failure(429, "slow", retry_after="0.3"), folder=tmp_path)
    assert server.asked[1].at - server.asked[0].at >= 0.3


def test_milliseconds_of_retry_after_are_waited(tmp_path: Path):
    server = answer_after(failure(503, "slow", retry_after_ms="300"), folder=tmp_path)
    assert server.asked[1].at - server.asked[0].at >= 0.3


def test_a_date_of_retry_after_is_waited_for(tmp_path: Path):
    date = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    reply = failure(429, "slow", retry_after=format_datetime(date, usegmt=True))
    answer_after(reply, folder=tmp_path)
    assert datetime.now(UTC) >= date


def test_a_stated_wait_holds_for_every_request(tmp_path: Path):
    script = Script(failure(429, "slow", retry_after="0.3"))
    with HostileServer(script) as server, opened(server, tmp_path) as endpoint:
        results(endpoint, [request(i) for i in range(3)])
    assert all(asked.at - server.asked[0].at >= 0.3 for asked in server.asked[1:])


def test_the_wait_between_tries_is_the_jitter_of_the_generator(tmp_path: Path):
    class Fixed(Random):
        def uniform(self, a: float, b: float) -> float:
            return (a + b) / 2

    script = Script(failure(500, "x"), failure(500, "x"))
    with HostileServer(script) as server:
        settings = settings_for(server)
        with Endpoint.open(settings, journal=tmp_path / "journal", rng=Fixed()) as endpoint:
            results(endpoint, [request(1)])
    first, second, third = (asked.at for asked in server.asked)
    assert second - first >= 0.25
    assert third - second >= 0.5


def test_an_answer_that_never_comes_is_given_up_after_its_retries(tmp_path: Path):
    with HostileServer(Script(then=TinyModel())) as server:
        server._answer = Script(*[server.never()] * 2, then=TinyModel())
        with opened(server, tmp_path, timeout=1.0, max_retries=1) as endpoint:
            found = results(endpoint, [request(1), request(2)])
        assert found[1].error == (
            "the endpoint gave no usable answer: no answer came within 1 s (after 2 tries)"
        )
        assert texts(found[2]) == [MODEL.text("prompt number 2", 2 * 65536)]


def test_bursts_of_errors_that_last_fail_their_request_alone(tmp_path: Path):
    script = Script(*[failure(500, "boom")] * 4)
    with HostileServer(script) as server, opened(server, tmp_path) as endpoint:
        found = results(endpoint, [request(1), request(2)])
    assert found[1].error == ("the endpoint refused the request: status 500: boom (after 4 tries)")
    assert found[2].error is None
    assert len(server.asked) == 5


@pytest.mark.parametrize("status", [400, 403, 413, 422])
def test_one_bad_prompt_among_good_ones_is_asked_once(status: int, tmp_path: Path):
    script = Script(failure(status, "this prompt is too long"))
    with HostileServer(script) as server, opened(server, tmp_path) as endpoint:
        found = results(endpoint, [request(i) for i in range(4)])
    assert found[0].error == (
        f"the endpoint refused the request: status {status}: this prompt is too long"
    )
    assert [found[i].error for i in (1, 2, 3)] == [None] * 3
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (failure(429, "empty", "insufficient_quota"), "status 429: empty.*exhausted: pay in, then"),
        (failure(402, "empty"), "status 402: empty.*account is exhausted"),
        (failure(401, "revoked"), "status 401: revoked.*check the API key"),
        (failure(404, "model is gone"), "status 404: model is gone.*and the model"),
        (failure(429, "busy", retry_after="900"), "asks to wait 900 s: wait, then"),
        (Reply(status=302, headers={"Location": "http://elsewhere/"}), "redirect to http://else"),
    ],
)
def test_what_would_refuse_every_request_ends_the_run_and_keeps_what_came(
    reply: Reply, message: str, tmp_path: Path
):
    good = MODEL
    script = Script(then=lambda asked: good(asked) if "number 0" in str(asked.prompt) else reply)
    with HostileServer(lambda a: good(a) if a.is_probe else script(a)) as server:
        with opened(server, tmp_path) as endpoint:
            for i in range(5):
                endpoint.submit(request(i))
            found = endpoint.results()
            assert [result.request_id for result in found] == [0]
            for _ in range(2):
                with pytest.raises(EngineError, match=message):
                    endpoint.results()
            endpoint.submit(request(9))  # goes nowhere
        assert len(server.asked) == 2


def test_a_server_that_dies_ends_the_run_after_the_retries(tmp_path: Path):
    with HostileServer(MODEL) as server:
        endpoint = opened(server, tmp_path)
        assert texts(results(endpoint, [request(1)])[1]) == SOUND
    with endpoint:
        endpoint.submit(request(2))
        with pytest.raises(EngineError, match=r"cannot be reached.*after 4 tries.*same command"):
            endpoint.results()


def test_refusals_lower_how_many_requests_are_in_flight(tmp_path: Path):
    script = Script(*[failure(429, "slow")] * 8)
    limits = {"max_concurrency": 8, "max_retries": 8}  # one request may meet all refusals
    with HostileServer(script) as server, opened(server, tmp_path, **limits) as endpoint:
        found = results(endpoint, [request(i) for i in range(30)])
        assert endpoint.has_room(requests=15, samples=150)
        assert not endpoint.has_room(requests=16, samples=16)
    assert all(result.error is None for result in found.values())
    assert len(server.asked) == 38


def test_requests_per_minute_are_obeyed(tmp_path: Path):
    start = time.monotonic()
    with (
        HostileServer(MODEL) as server,
        opened(server, tmp_path, requests_per_minute=1200.0, max_concurrency=8) as endpoint,
    ):
        results(endpoint, [request(i) for i in range(10)])
    sent = [*server.asked, *(asked for asked in server.probes if asked.method == "POST")]
    assert max(asked.at for asked in sent) - start >= (len(sent) - 1) * 60 / 1200


def test_tokens_per_minute_are_obeyed(tmp_path: Path):
    used = 3 + 6  # words of the prompt, tokens of the answer
    with (
        HostileServer(MODEL) as server,
        opened(server, tmp_path, tokens_per_minute=6000.0, max_concurrency=4) as endpoint,
    ):
        start = time.monotonic()
        results(endpoint, [request(i) for i in range(6)])
    assert max(asked.at for asked in server.asked) - start >= 5 * used * 60 / 6000


def test_the_limit_of_cost_is_never_passed_and_a_higher_one_goes_on(tmp_path: Path):
    prices = {"price_in": 0.0, "price_out": 1e6}  # a token, a coin
    with HostileServer(MODEL) as server:
        # The probe draws 6 tokens, and 12 for two at once; a request may draw 8, and draws 6.
        with opened(server, tmp_path, max_concurrency=8, max_cost=200.0, **prices) as endpoint:
            spent = 6 * sum(a.fields.get("n", 1) for a in server.probes if a.method == "POST")
            possible = (200 - spent - 8) // 6 + 1
            for i in range(20):
                endpoint.submit(request(i))
            found = until_failure(endpoint)
            with pytest.raises(EngineError, match=r"'max_cost' is 200, of which .* is spent"):
                endpoint.results()
        assert len(server.asked) == len(found) == possible
        with opened(server, tmp_path, max_concurrency=8, max_cost=600.0, **prices) as endpoint:
            everything = results(endpoint, [request(i) for i in range(20)])
        assert len(server.asked) == 20
        assert [texts(result) for result in everything.values()] == [
            [MODEL.text(f"prompt number {i}", 65536 * i)] for i in range(20)
        ]


def test_money_spent_before_counts(tmp_path: Path):
    prices = {"price_in": 0.0, "price_out": 1e6}
    with HostileServer(MODEL) as server:
        with opened(server, tmp_path) as endpoint:
            results(endpoint, [request(i) for i in range(20)])  # 120 tokens
        with pytest.raises(EngineError, match=r"'max_cost' is 125, of which 120 is spent"):
            opened(server, tmp_path, max_cost=125.0, **prices)
