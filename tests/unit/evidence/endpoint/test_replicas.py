"""Several servers of one model as one source: balance, limits of each, and servers that fail."""

from __future__ import annotations

import re
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest

from mia_batch.errors import EngineError
from tests.hostile_server import Asked, HostileServer, Reply, Script, TinyModel, failure
from tests.processes import HANGS
from tests.unit.evidence.endpoint.asking import (
    all_sound,
    numbers,
    opened,
    opened_all,
    request,
    results,
    servers,
    texts,
    until_failure,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.evidence.request import Answer

MODEL = TinyModel()


class Gate:
    """An honest endpoint that holds its samples until it is opened; ``full``: so many are held."""

    def __init__(self, holds: int) -> None:
        self.full, self.open = threading.Event(), threading.Event()
        self._left = holds
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Reply:
        if asked.is_probe:
            return MODEL(asked)
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.full.set()
        return replace(MODEL(asked), hold=self.open)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_server_has_as_many_requests_in_flight_as_may_be_at_one(n: int, tmp_path: Path):
    gate = Gate(holds=3 * n)
    with (
        servers(*[gate] * n) as several,
        opened_all(several, tmp_path, max_concurrency=3) as endpoint,
    ):
        assert endpoint.has_room(requests=6 * n - 1, samples=0)
        assert not endpoint.has_room(requests=6 * n, samples=0)
        for i in range(12):
            endpoint.submit(request(i))
        assert gate.full.wait(HANGS)
        assert [len(server.asked) for server in several] == [3] * n
        gate.open.set()
        found: list[Answer] = []
        while len(found) < 12:
            found += endpoint.results()
    assert all_sound({answer.request_id: answer for answer in found})
    assert sorted(i for server in several for i in numbers(server)) == list(range(12))


def test_servers_that_are_equally_busy_take_turns(tmp_path: Path):
    with servers(MODEL, MODEL, MODEL) as several, opened_all(several, tmp_path) as endpoint:
        for i in range(9):
            results(endpoint, [request(i)])
    assert sorted(map(numbers, several)) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_the_less_busy_server_is_asked(tmp_path: Path):
    held = threading.Event()
    slow = Script(Reply(hold=threading.Event()), then=MODEL)

    def first_held(asked: Asked) -> Reply:
        reply = slow(asked)
        if not asked.is_probe:
            held.set()
        return reply

    with (
        servers(first_held, first_held) as several,
        opened_all(several, tmp_path, max_concurrency=2) as endpoint,
    ):
        endpoint.submit(request(0))
        assert held.wait(HANGS)
        for i in range(1, 7):
            results(endpoint, [request(i)])
    assert sorted(map(numbers, several)) == [[0], [1, 2, 3, 4, 5, 6]]


def test_answers_are_those_of_one_server_and_stay_the_same_with_other_servers(tmp_path: Path):
    asked = [request(i, n=2) for i in range(20)]
    with servers(MODEL, MODEL, MODEL) as several:
        one, two, three = several
        with opened(one, tmp_path) as endpoint:
            alone = {i: texts(answer) for i, answer in results(endpoint, asked[:8]).items()}
        with opened_all(several, tmp_path) as endpoint:
            together = {i: texts(answer) for i, answer in results(endpoint, asked[:14]).items()}
        assert len(numbers(one) + numbers(two) + numbers(three)) == 14
        others = {"base_url": one.url, "replicas": (two.url, three.url)}
        with opened(one, tmp_path, **others) as endpoint:
            later = {i: texts(answer) for i, answer in results(endpoint, asked).items()}
        assert sorted(numbers(one) + numbers(two) + numbers(three)) == list(range(20))
    assert later == {
        i: [MODEL.text(f"prompt number {i}", 65536 * i + j) for j in range(2)] for i in range(20)
    }
    assert alone.items() <= together.items() <= later.items()


def test_a_server_that_dies_is_left_to_the_others_and_asked_again_when_it_is_back(tmp_path: Path):
    dying = threading.Event()
    answered: list[int] = []

    def mortal(asked: Asked) -> Reply:
        if asked.is_probe:
            return MODEL(asked)
        if len(answered) < 4:
            answered.append(int(asked.prompt.rpartition(" ")[2]))
            return MODEL(asked)
        dying.set()
        return Reply(hold=first.closing)

    told: list[str] = []
    first = HostileServer(mortal)
    with ExitStack() as stack, HostileServer(MODEL) as second:
        stack.enter_context(first)
        settings = {"max_concurrency": 4, "tell": told.append}
        with opened_all([first, second], tmp_path, **settings) as endpoint:
            for i in range(40):
                endpoint.submit(request(i))
            assert dying.wait(HANGS)
            stack.close()
            found: dict[int, Answer] = {}
            while len(found) < 40:
                found |= {answer.request_id: answer for answer in endpoint.results()}
            assert all_sound(found)
            assert sorted(answered + numbers(second)) == list(range(40))
            more = count(40)
            while not told:
                assert all_sound(results(endpoint, [request(next(more))]))
            with HostileServer(MODEL, port=first.port) as again:
                while not again.asked:
                    assert all_sound(results(endpoint, [request(next(more))]))
    assert sorted(answered + numbers(second) + numbers(again)) == list(range(next(more)))
    cause, back = told
    why = r"(no connection|the connection was cut) \(.*\)"  # a trial may meet its last moments
    others = "the others go on, and it is tried again"
    assert re.fullmatch(rf"{first.url} fails \({why}\); {others}", cause)
    assert back == f"{first.url} answers again"


def test_when_no_server_is_left_the_run_ends_and_names_all(tmp_path: Path):
    with ExitStack() as stack:
        several = [stack.enter_context(HostileServer(MODEL)) for _ in range(2)]
        endpoint = opened_all(several, tmp_path)
        assert all_sound(results(endpoint, [request(1), request(2)]))
    with endpoint:
        endpoint.submit(request(3))
        with pytest.raises(EngineError, match=r"cannot be reached.*same command again") as caught:
            endpoint.results()
    lines = str(caught.value).splitlines()
    assert [line.split()[2] for line in lines] == [server.url for server in several]
    with HostileServer(MODEL) as third:
        others = {"base_url": several[0].url, "replicas": (third.url,)}
        with opened(third, tmp_path, **others) as endpoint:
            assert all_sound(results(endpoint, [request(i) for i in range(4)]))
    assert sorted(numbers(third)) == [0, 3]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (failure(401, "revoked"), "status 401: revoked"),
        (failure(404, "model is gone"), "status 404: model is gone"),
        (failure(429, "empty", "insufficient_quota"), "status 429: empty"),
        (failure(503, "busy", retry_after="900"), "status 503: busy"),
    ],
)
def test_what_would_end_a_run_at_one_server_leaves_it_to_the_others(
    reply: Reply, why: str, tmp_path: Path
):
    told: list[str] = []
    with (
        servers(lambda a: MODEL(a) if a.is_probe else reply, MODEL) as (bad, good),
        opened_all([bad, good], tmp_path, tell=told.append) as endpoint,
    ):
        assert all_sound(results(endpoint, [request(i) for i in range(10)]))
    assert len(bad.asked) >= 1
    assert sorted(numbers(good)) == list(range(10))
    assert told == [f"{bad.url} fails ({why}); the others go on, and it is tried again"]


@pytest.mark.parametrize("status", [429, 500])
def test_a_server_that_refuses_everything_costs_no_answer(status: int, tmp_path: Path):
    told: list[str] = []
    broken = failure(status, "out of memory")
    with (
        servers(lambda a: MODEL(a) if a.is_probe else broken, MODEL) as (bad, good),
        opened_all([bad, good], tmp_path, max_concurrency=4, tell=told.append) as endpoint,
    ):
        more = count(20)
        assert all_sound(results(endpoint, [request(i) for i in range(20)]))
        assert set(numbers(bad)) < set(range(20))
        while not told:
            assert all_sound(results(endpoint, [request(next(more))]))
    assert sorted(numbers(good)) == list(range(next(more)))
    assert told == [
        f"{bad.url} fails (status {status}: out of memory); the others go on, and it is tried again"
    ]


def test_a_prompt_that_no_server_can_answer_fails_alone_after_its_retries(tmp_path: Path):
    def brittle(asked: Asked) -> Reply:
        return failure(500, "crash") if asked.prompt == "prompt number 3" else MODEL(asked)

    with (
        servers(brittle, brittle) as several,
        opened_all(several, tmp_path, max_concurrency=2) as endpoint,
    ):
        found = results(endpoint, [request(i) for i in range(12)])
    poison = found.pop(3)
    assert poison.error == "the endpoint refused the request: status 500: crash (after 4 tries)"
    assert all_sound(found)
    assert sorted(i for server in several for i in numbers(server)) == sorted(
        [3] * 3 + [*range(12)]
    )


def test_a_stated_wait_holds_for_its_own_server(tmp_path: Path):
    busy = failure(429, "slow down", retry_after="100")
    with (
        servers(lambda a: MODEL(a) if a.is_probe else busy, MODEL) as (bad, good),
        opened_all([bad, good], tmp_path) as endpoint,
    ):
        assert all_sound(results(endpoint, [request(i) for i in range(10)]))
    assert len(bad.asked) == 1
    assert sorted(numbers(good)) == list(range(10))


def test_refusals_lower_the_requests_in_flight_at_their_own_server(tmp_path: Path):
    script = Script(*[failure(429, "slow down")] * 3, then=MODEL)
    with (
        servers(script, MODEL) as several,
        opened_all(several, tmp_path, max_concurrency=8, max_retries=8) as endpoint,
    ):
        assert all_sound(results(endpoint, [request(i) for i in range(40)]))
        halved, other = endpoint._dispatcher._runner.replicas
        assert 1 <= halved.concurrency.round <= 3
        assert (other.concurrency.round, other.concurrency.limit) == (0, 8)
    assert sum(len(server.asked) for server in several) == 43


def test_requests_per_minute_count_at_each_server(tmp_path: Path):
    start = time.monotonic()
    with (
        servers(MODEL, MODEL) as several,
        opened_all(several, tmp_path, requests_per_minute=1200.0, max_concurrency=8) as endpoint,
    ):
        assert all_sound(results(endpoint, [request(i) for i in range(10)]))
    for server in several:
        sent = [*server.asked, *(asked for asked in server.probes if asked.method == "POST")]
        assert server.asked
        assert max(asked.at for asked in sent) - start >= (len(sent) - 1) * 60 / 1200


def test_the_limit_of_cost_counts_over_all_servers(tmp_path: Path):
    prices = {"price_in": 0.0, "price_out": 1e6, "max_concurrency": 4}
    with servers(MODEL, MODEL) as several:
        with opened_all(several, tmp_path, max_cost=200.0, **prices) as endpoint:
            probes = [a for server in several for a in server.probes if a.method == "POST"]
            spent = 6 * sum(asked.fields.get("n", 1) for asked in probes)
            possible = (200 - spent - 8) // 6 + 1
            for i in range(40):
                endpoint.submit(request(i))
            found = until_failure(endpoint)
            with pytest.raises(EngineError, match=r"'max_cost' is 200, of which .* is spent"):
                endpoint.results()
        assert 0 < possible == len(found) == sum(len(server.asked) for server in several)
        with opened_all(several, tmp_path, max_cost=1000.0, **prices) as endpoint:
            assert all_sound(results(endpoint, [request(i) for i in range(40)]))
        assert sum(len(server.asked) for server in several) == 40
