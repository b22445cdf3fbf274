"""Where the key goes, limits, and which failures are tried again and when."""

import gzip
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.endpoint import Endpoint, transport
from tests.hostile_server import HostileServer, Reply, Script, TinyModel, failure
from tests.unit.evidence.endpoint.asking import (
    KEY,
    answered,
    opened,
    request,
    results,
    settings_for,
    texts,
    until_failure,
)

MODEL = TinyModel()
UNPACKED_MIB = 512
READ = """
import asyncio, re, sys
from pathlib import Path
from mia_batch.evidence.endpoint import ClientSettings
from mia_batch.evidence.endpoint.transport import Transport, UnansweredError

def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]) / 1024

async def ask():
    transport = Transport(ClientSettings(base_url=sys.argv[1], model="m"))
    try:
        await transport.send("/completions", {})
    except UnansweredError as error:
        print(error)
    await transport.aclose()

before = peak()
asyncio.run(ask())
print(peak() - before)
"""


@pytest.mark.parametrize("key", [KEY, None])
def test_the_key_is_sent_as_a_bearer_token(tmp_path, key):
    _, server = answered(MODEL, tmp_path, [request(1)], api_key=key)
    sent = {
        wire_request.headers.get("authorization")
        for wire_request in [*server.asked, *server.probes]
    }
    assert sent == {f"Bearer {KEY}" if key else None}


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_to_another_host_never_gets_the_key(status, tmp_path):
    with HostileServer(MODEL) as thief:
        redirect = Reply(
            status=status, headers={"Location": f"{thief.url}/completions"}
        )
        message = f"status {status}: a redirect to {thief.url}"
        with (
            HostileServer(lambda _: redirect) as server,
            pytest.raises(SettingsError, match=message),
        ):
            opened(server, tmp_path)
        with (
            HostileServer(Script(redirect)) as server,
            opened(server, tmp_path) as endpoint,
        ):
            endpoint.submit(request(1))
            with pytest.raises(EngineError, match=message):
                endpoint.results()
        assert thief.asked == thief.probes == []


def test_an_answer_without_end_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr("mia_batch.evidence.endpoint.transport._MOST_BYTES", 100_000)
    flood = Reply(content=b" " * 200_000)
    answers_by_id, _ = answered(
        Script(*[flood] * 4), tmp_path, [request(1), request(2)]
    )
    assert "an answer of more than" in str(answers_by_id[1].error)
    assert answers_by_id[2].error is None


@pytest.fixture(scope="module")
def zeros():
    """Half a gigabyte of zeros, packed."""
    packer, mebibyte = zlib.compressobj(level=1, wbits=31), bytes(1 << 20)
    packed = [packer.compress(mebibyte) for _ in range(UNPACKED_MIB)]
    return b"".join([*packed, packer.flush()])


@pytest.mark.parametrize(
    ("coding", "message"),
    [
        ("gzip", "an answer of more than 16 MiB"),
        ("gzip, gzip", "an answer packed as 'gzip, gzip', which was not asked for"),
    ],
)
def test_an_answer_that_unpacks_to_much_costs_little_memory(zeros, coding, message):
    packed = zeros if coding == "gzip" else gzip.compress(zeros)
    answer = Reply(content=packed, headers={"Content-Encoding": coding})
    with HostileServer(lambda _: answer) as server:
        command = [sys.executable, "-c", READ, server.url]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
    sentence, mib = ended.stdout.splitlines()
    assert message in sentence
    assert float(mib) < UNPACKED_MIB / 2


@pytest.mark.parametrize(
    ("coding", "message"),
    [
        ("br", "an answer packed as 'br', which was not asked for"),
        ("deflate", "an answer that cannot be unpacked"),
    ],
)
def test_an_answer_that_is_packed_otherwise_is_refused(coding, message, tmp_path):
    odd = Reply(content=b"odd", headers={"Content-Encoding": coding})
    answers_by_id, _ = answered(Script(*[odd] * 4), tmp_path, [request(1)])
    assert message in str(answers_by_id[1].error)


@pytest.mark.parametrize("coding", ["gzip", "GZIP ", "x-gzip", "deflate", "identity"])
def test_an_answer_that_is_packed_once_is_read(coding, tmp_path):
    packs: dict[str, Callable[[bytes], bytes]] = {
        "deflate": zlib.compress,
        "identity": bytes,
    }
    pack = packs.get(coding, gzip.compress)

    def packed(wire_request):
        content = pack(json.dumps(MODEL(wire_request).content).encode())
        return Reply(content=content, headers={"Content-Encoding": coding})

    answers_by_id, server = answered(packed, tmp_path, [request(1)])
    accepted = {
        wire_request.headers["accept-encoding"] for wire_request in server.asked
    }
    assert (answers_by_id[1].error, accepted) == (None, {"identity"})


# Limits in flight and per minute.


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_limit_grows_fast_until_the_first_refusal_then_by_one_a_round():
    concurrency = transport.Concurrency(64)
    assert concurrency.limit == 8
    for _ in range(8):
        concurrency.succeeded()
    assert concurrency.limit == 16
    concurrency.refused(concurrency.round)
    assert concurrency.limit == 8
    for _ in range(9):  # 8 + 1/8 + ... passes 9 with the ninth
        concurrency.succeeded()
    assert concurrency.limit == 9
    sent = concurrency.round
    for _ in range(8):  # of one round, which halve it once
        concurrency.refused(sent)
    assert concurrency.limit == 4


@given(st.integers(1, 100), st.lists(st.booleans()))
def test_the_limit_stays_between_one_and_the_most(most_at_once, answers):
    concurrency = transport.Concurrency(most_at_once)
    for good in answers:
        if good:
            concurrency.succeeded()
        else:
            concurrency.refused(concurrency.round)
        assert 1 <= concurrency.limit <= most_at_once


def test_takers_wait_until_what_was_taken_before_is_refilled():
    clock = Clock()
    bucket = transport.TokenBucket(120.0, clock)  # two a second
    assert [bucket.take(1) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]
    assert [bucket.take(6), bucket.take(1)] == [2.0, 5.0]
    clock.now += 1000.0  # time without takers is not saved up
    assert [bucket.take(1) for _ in range(3)] == [0.0, 0.5, 1.0]
    bucket.give_back(2)  # which shortens the next wait
    assert bucket.take(1) == 0.5
    bucket.give_back(1000)
    assert [bucket.take(1), bucket.take(1)] == [0.0, 0.5]


@given(st.integers(1, 40), st.lists(st.floats(0, 20), min_size=1, max_size=200))
def test_no_minute_has_more_requests_than_the_limit(limit, pauses):
    clock = Clock()
    bucket = transport.TokenBucket(float(limit), clock)
    times = []
    for pause in pauses:
        clock.now += pause
        times.append(clock.now + bucket.take(1))
    for start in times:
        assert sum(start <= moment < start + 60.0 - 1e-6 for moment in times) <= limit


# Which failures are tried again, and when.

NOW = datetime(2026, 11, 20, 8, 0, 0, tzinfo=UTC)


def decide(
    status: int, attempt: int = 0, codes: str = "", **headers: str
) -> transport.NextStep:
    return transport.choose_next_step(
        status,
        {name.replace("_", "-"): value for name, value in headers.items()},
        frozenset(codes.split()),
        NOW,
        last=attempt >= 4,
    )


PASSING = (408, 409, 429, 500, 502, 503, 504, 529)
LASTING = (301, 302, 307, 400, 401, 403, 404, 405, 413, 422)
EMPTY = {"codes": "insufficient_quota"}


@pytest.mark.parametrize(
    ("refusal_met", "changes", "step"),
    [
        *(((status, attempt), {}, "again") for status in PASSING for attempt in (0, 3)),
        *(((status, 4), {}, "give_up") for status in PASSING),
        *(((status,), {}, "give_up") for status in LASTING),
        ((400,), {"x_should_retry": "true"}, "again"),
        ((400, 4), {"x_should_retry": "true"}, "give_up"),
        ((503,), {"x_should_retry": "false"}, "give_up"),
        ((503,), {"x_should_retry": "perhaps"}, "again"),
        ((429,), EMPTY, "exhausted"),
        ((429,), EMPTY | {"x_should_retry": "true"}, "exhausted"),
        ((402,), {}, "exhausted"),
        ((429,), {"codes": "rate_limit_exceeded"}, "again"),
        ((429,), {"retry_after": "120"}, "again"),
        ((429,), {"retry_after": "121"}, "later"),
    ],
)
def test_what_is_done_after_a_refusal(refusal_met, changes, step):
    decision = decide(*refusal_met, **changes)
    stated = changes.get("retry_after")
    assert (decision.step, decision.wait) == (
        step,
        None if stated is None else float(stated),
    )


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "Fri, 20 Nov 2026 08:00:09 GMT"}, 9.0),
        ({"retry-after": "Fri, 20 Nov 2026 08:00:09"}, 9.0),
        ({"retry-after": "Fri, 20 Nov 2026 09:00:09 +0100"}, 9.0),
        ({"retry-after": "Fri, 20 Nov 2026 07:59:00 GMT"}, 0.0),
        ({"retry-after": "Friday, 20-Nov-26 08:00:09 GMT"}, 9.0),
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "Fri, 99 Nov 2026 08:00:09 GMT"}, None),
    ],
)
def test_waits_are_stated_in_three_forms(headers, seconds):
    assert transport.stated_wait(headers, NOW) == seconds


@given(st.text())
def test_no_header_is_too_odd_to_read(text):
    wait = transport.stated_wait({"retry-after": text, "retry-after-ms": text}, NOW)
    assert wait is None or wait >= 0


def test_unstated_waits_are_drawn_from_a_span_that_doubles_up_to_a_minute():
    class Latest(Random):
        def uniform(self, a, b):
            assert a == 0.0
            return b

    spans = [transport.backoff(attempt, Latest()) for attempt in range(10)]
    assert spans == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert transport.backoff(10**6, Latest()) == 60.0
    assert transport.backoff(5, Random(3)) == Random(3).uniform(0, 16)


SOUND = [MODEL.text("prompt number 1", 65536)]


CUT_REPLY = Reply(content={"choices": [{"index": 0, "text": "wrong"}]}, cut_after=20)
PAGE = b"<html><body><h1>We will be right back</h1></body></html>"


@pytest.mark.parametrize(
    "replies",
    [
        *([failure(status, "not now")] * 3 for status in (429, 503)),
        [CUT_REPLY, CUT_REPLY],
        # A cut that looks like an end
        [Reply(content=b'{"choices": [{"index": 0, "te')],
        [Reply(content=PAGE), Reply(content=PAGE, status=502)],
        [Reply(content=b"x", headers={"Content-Encoding": "gzip"})],
    ],
)
def test_what_passes_is_asked_for_again(replies, tmp_path):
    answers_by_id, server = answered(Script(*replies), tmp_path, [request(1)])
    assert texts(answers_by_id[1]) == SOUND
    assert len(server.asked) == len(replies) + 1


@pytest.mark.parametrize(
    "reply",
    [
        failure(429, "slow", retry_after="0.3"),
        failure(503, "slow", retry_after_ms="300"),
    ],
)
def test_a_stated_wait_holds_for_every_request(reply, tmp_path):
    _, server = answered(Script(reply), tmp_path, [request(i) for i in range(3)])
    assert len(server.asked) == 4
    assert all(
        wire_request.at - server.asked[0].at >= 0.3 for wire_request in server.asked[1:]
    )


def test_the_wait_between_tries_is_the_jitter_of_the_generator(tmp_path):
    class Fixed(Random):
        def uniform(self, a, b):
            return (a + b) / 2

    script = Script(failure(500, "x"), failure(500, "x"))
    with HostileServer(script) as server:
        settings = settings_for(server)
        with Endpoint.open(
            settings, journal=tmp_path / "journal", rng=Fixed()
        ) as endpoint:
            results(endpoint, [request(1)])
    first, second, third = (wire_request.at for wire_request in server.asked)
    assert second - first >= 0.25
    assert third - second >= 0.5


def test_an_answer_that_never_comes_is_given_up_after_its_retries(tmp_path):
    with HostileServer(MODEL) as server:
        server._answer = Script(*[server.never()] * 2, then=MODEL)
        with opened(server, tmp_path, timeout=1.0, max_retries=1) as endpoint:
            answers_by_id = results(endpoint, [request(1), request(2)])
        assert (
            answers_by_id[1].error
            == "the endpoint gave no usable answer: no answer came within 1 s (after 2"
            " tries)"
        )
        assert texts(answers_by_id[2]) == [MODEL.text("prompt number 2", 2 * 65536)]


@pytest.mark.parametrize(
    ("status", "times"), [(400, 1), (403, 1), (413, 1), (422, 1), (500, 4)]
)
def test_what_one_prompt_is_refused_for_fails_it_alone(status, times, tmp_path):
    script = Script(*[failure(status, "boom")] * times)
    answers_by_id, server = answered(script, tmp_path, [request(i) for i in range(4)])
    tries_told = " (after 4 tries)" if times > 1 else ""
    assert (
        answers_by_id[0].error
        == f"the endpoint refused the request: status {status}: boom{tries_told}"
    )
    assert [answers_by_id[i].error for i in (1, 2, 3)] == [None] * 3
    assert len(server.asked) == 3 + times


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            failure(429, "empty", "insufficient_quota"),
            "status 429: empty.*exhausted: pay in, then",
        ),
        (failure(402, "empty"), "status 402: empty.*account is exhausted"),
        (failure(401, "revoked"), "status 401: revoked.*check the API key"),
        (failure(404, "model is gone"), "status 404: model is gone.*and the model"),
        (failure(429, "busy", retry_after="900"), "asks to wait 900 s: wait, then"),
        (
            Reply(status=302, headers={"Location": "http://elsewhere/"}),
            "redirect to http://else",
        ),
    ],
)
def test_what_would_refuse_every_request_ends_the_run_and_keeps_what_came(
    reply, message, tmp_path
):
    good = MODEL
    script = Script(
        then=lambda wire_request: (
            good(wire_request) if "number 0" in str(wire_request.prompt) else reply
        )
    )
    with HostileServer(lambda a: good(a) if a.is_probe else script(a)) as server:
        with opened(server, tmp_path) as endpoint:
            for i in range(5):
                endpoint.submit(request(i))
            answers = endpoint.results()
            assert [result.request_id for result in answers] == [0]
            for _ in range(2):
                with pytest.raises(EngineError, match=message):
                    endpoint.results()
            endpoint.submit(request(9))  # goes nowhere
        assert len(server.asked) == 2


def test_a_server_that_dies_ends_the_run_after_the_retries(tmp_path):
    with HostileServer(MODEL) as server:
        endpoint = opened(server, tmp_path)
        assert texts(results(endpoint, [request(1)])[1]) == SOUND
    with endpoint:
        endpoint.submit(request(2))
        with pytest.raises(
            EngineError, match=r"cannot be reached.*after 4 tries.*same command"
        ):
            endpoint.results()
    with pytest.raises(
        EngineError, match=r"cannot be reached: no connection.*its server runs"
    ):
        opened(server, tmp_path)  # at once, where it never was there


def test_refusals_lower_how_many_requests_are_in_flight(tmp_path):
    script = Script(*[failure(429, "slow")] * 8)
    # One request may meet all refusals
    limits = {
        "max_concurrency": 8,
        "max_retries": 8,
    }
    with (
        HostileServer(script) as server,
        opened(server, tmp_path, **limits) as endpoint,
    ):
        answers_by_id = results(endpoint, [request(i) for i in range(30)])
        assert endpoint.has_room(requests=15, samples=150)
        assert not endpoint.has_room(requests=16, samples=16)
    assert all(result.error is None for result in answers_by_id.values())
    assert len(server.asked) == 38


def test_requests_and_tokens_per_minute_are_obeyed(tmp_path):
    start = time.monotonic()
    requests = [request(i) for i in range(6)]
    limit = {"requests_per_minute": 3000.0, "max_concurrency": 8}
    _, server = answered(MODEL, tmp_path, requests, **limit)
    sent = [
        *server.asked,
        *(
            wire_request
            for wire_request in server.probes
            if wire_request.method == "POST"
        ),
    ]
    assert (
        max(wire_request.at for wire_request in sent) - start
        >= (len(sent) - 1) * 60 / 3000
    )
    tokens_each = 3 + 6  # words of the prompt, tokens of the answer
    with (
        HostileServer(MODEL) as server,
        opened(
            server, tmp_path, tokens_per_minute=15_000.0, max_concurrency=4
        ) as endpoint,
    ):
        start = time.monotonic()
        results(endpoint, [request(10 + i) for i in range(6)])
    assert (
        max(wire_request.at for wire_request in server.asked) - start
        >= 5 * tokens_each * 60 / 15_000
    )


def test_the_limit_of_cost_is_never_passed_and_a_higher_one_goes_on(tmp_path):
    prices = {"price_in": 0.0, "price_out": 1e6}  # a token, a coin
    with HostileServer(MODEL) as server:
        # The probe draws 6 tokens, and 12 for two at once; a request may draw 8, and
        # draws 6.
        with opened(
            server, tmp_path, max_concurrency=8, max_cost=250.0, **prices
        ) as endpoint:
            spent = 6 * sum(
                a.fields.get("n", 1) for a in server.probes if a.method == "POST"
            )
            possible = (250 - spent - 8) // 6 + 1
            for i in range(20):
                endpoint.submit(request(i))
            answers = until_failure(endpoint)
            with pytest.raises(
                EngineError, match=r"max_cost= is 250, of which .* is spent"
            ):
                endpoint.results()
        assert len(server.asked) == len(answers) == possible
        with opened(
            server, tmp_path, max_concurrency=8, max_cost=800.0, **prices
        ) as endpoint:
            everything = results(endpoint, [request(i) for i in range(20)])
        assert len(server.asked) == 20
        assert [texts(result) for result in everything.values()] == [
            [MODEL.text(f"prompt number {i}", 65536 * i)] for i in range(20)
        ]


def test_money_spent_before_counts(tmp_path):
    prices = {"price_in": 0.0, "price_out": 1e6}
    with HostileServer(MODEL) as server:
        with opened(server, tmp_path) as endpoint:
            results(endpoint, [request(i) for i in range(20)])  # 120 tokens
        with pytest.raises(
            EngineError, match=r"max_cost= is 125, of which 120 is spent"
        ):
            opened(server, tmp_path, max_cost=125.0, **prices)
