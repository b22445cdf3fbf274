"""Several servers of one model as one source: balance, limits of each, and servers that fail."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from mia_batch.errors import EngineError, SettingsError
from tests.hostile_server import EVERYTHING, Asked, HostileServer, Reply, Script, TinyModel, failure
from tests.unit.evidence.endpoint.asking import opened, request, results, texts, until_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mia_batch.evidence.endpoint import Endpoint
    from mia_batch.evidence.request import Answer

MODEL = TinyModel()


@contextmanager
def servers(*answers: Callable[[Asked], Reply]) -> Iterator[list[HostileServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(HostileServer(answer)) for answer in answers]


def opened_all(found: list[HostileServer], folder: Path, **changed: Any) -> Endpoint:
    replicas = tuple(server.url for server in found)
    return opened(found[0], folder, **{"replicas": replicas, **changed})


def numbers(server: HostileServer) -> list[int]:
    """Which requests a server got, in order."""
    return [int(asked.prompt.rpartition(" ")[2]) for asked in server.asked]


def all_sound(found: dict[int, Answer]) -> bool:
    return all(
        texts(answer) == [MODEL.text(f"prompt number {i}", 65536 * i)]
        for i, answer in found.items()
    )


class Gate:
    """An honest endpoint whose samples wait until as many have been asked for, of all servers."""

    def __init__(self, opens_at: int) -> None:
        self.open = threading.Event()
        self._left = opens_at
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Reply:
        if asked.is_probe:
            return MODEL(asked)
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self.open.set()
        return replace(MODEL(asked), hold=self.open)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_server_has_as_many_requests_in_flight_as_may_be_at_one(n: int, tmp_path: Path):
    gate = Gate(opens_at=3 * n)
    with (
        servers(*[gate] * n) as several,
        opened_all(several, tmp_path, max_concurrency=3) as endpoint,
    ):
        assert endpoint.has_room(requests=6 * n - 1, samples=0)
        assert not endpoint.has_room(requests=6 * n, samples=0)
        for i in range(12):
            endpoint.submit(request(i))
        assert gate.open.wait(60)
        assert [len(server.asked) for server in several] == [3] * n
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
        assert held.wait(60)
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
            assert dying.wait(60)
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
    assert cause.startswith(f"{first.url} fails (no connection (")
    assert cause.endswith("); the others go on, and it is tried again")
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


def test_a_server_with_errors_of_its_own_costs_no_answer(tmp_path: Path):
    told: list[str] = []
    broken = failure(500, "out of memory")
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
        f"{bad.url} fails (status 500: out of memory); the others go on, and it is tried again"
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
    with (
        servers(MODEL, MODEL) as several,
        opened_all(several, tmp_path, requests_per_minute=1200.0, max_concurrency=8) as endpoint,
    ):
        assert all_sound(results(endpoint, [request(i) for i in range(10)]))
    for server in several:
        sent = [*server.asked, *(asked for asked in server.probes if asked.method == "POST")]
        times = sorted(asked.at for asked in sent)
        assert len(server.asked) == 5
        assert times[-1] - times[0] >= (len(times) - 2) * 60 / 1200


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


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (
            failure(401, "who?"),
            SettingsError,
            "refuses model 'tiny' (status 401: who?); check the A",
        ),
        (
            failure(404, "no such"),
            SettingsError,
            "refuses model 'tiny' (status 404: no such); check",
        ),
        (
            Reply(content=b"<html>"),
            EngineError,
            "gives no usable answer (it is not JSON: no message",
        ),
    ],
)
def test_a_server_that_cannot_be_asked_from_the_first_is_named(
    reply: Reply, error: type[Exception], message: str, tmp_path: Path
):
    with servers(MODEL, lambda _: reply) as several:
        with pytest.raises(error) as caught:
            opened_all(several, tmp_path)
        assert str(caught.value).startswith(f"the endpoint {several[1].url} {message[:40]}")


def test_a_server_that_is_not_there_from_the_first_is_named(tmp_path: Path):
    with HostileServer(MODEL) as gone:
        pass
    with HostileServer(MODEL) as server, pytest.raises(EngineError) as caught:
        opened_all([server, gone], tmp_path)
    assert str(caught.value).startswith(f"the endpoint {gone.url} cannot be reached: no connection")


@pytest.mark.parametrize("name", ["n", "seed", "top_k"])
def test_what_one_server_ignores_or_refuses_is_asked_of_none(name: str, tmp_path: Path):
    told: list[str] = []
    others: list[tuple[str, dict[str, Any]]] = [
        ("ignored", {"honours": EVERYTHING - {name}}),
        ("refused", {"refuses": [name]}),
    ]
    for found, lacking in others:
        told.clear()
        with servers(MODEL, TinyModel(**lacking)) as several:
            folder = tmp_path / found
            folder.mkdir()
            with opened_all(several, folder, tell=told.append) as endpoint:
                assert getattr(endpoint.capabilities, name) == found
                answers = results(endpoint, [request(i, n=2) for i in range(4)])
        assert [len(texts(answer)) for answer in answers.values()] == [2] * 4
        one, two = (server.url for server in several)
        (sentence,) = told
        assert sentence.startswith(f"{two} differs from {one}: ")
        assert f"{name} is {found!r}, not 'honoured'" in sentence
        if found == "refused" or name == "top_k":
            assert not any(
                asked.fields.get(name, 1) != 1 for server in several for asked in server.asked
            )


def test_the_shortest_context_is_that_of_all(tmp_path: Path):
    class Short(TinyModel):
        def __call__(self, asked: Asked) -> Reply:
            if asked.method == "GET":
                return Reply(content={"data": [{"id": "tiny", "max_model_len": 1024}]})
            return super().__call__(asked)

    told: list[str] = []
    with (
        servers(MODEL, Short()) as several,
        opened_all(several, tmp_path, tell=told.append) as endpoint,
    ):
        assert endpoint.capabilities.max_model_len == 1024
    one, two = (server.url for server in several)
    assert told == [
        f"{two} differs from {one}: max_model_len is 1024, not 2048; of each, what all can do is "
        "used"
    ]


def test_servers_that_draw_other_texts_with_the_same_seed_do_not_repeat_each_other(tmp_path: Path):
    class Other(TinyModel):
        def text(self, prompt: Any, seed: int) -> str:
            return super().text(prompt, seed + 1)

    told: list[str] = []
    with (
        servers(MODEL, Other()) as several,
        opened_all(several, tmp_path, tell=told.append) as endpoint,
    ):
        assert endpoint.capabilities.seed == "ignored"
        assert not endpoint.repeats
    assert told == ["with the same seed the servers of 'base_url' draw different texts"]


def test_a_server_that_gives_copies_where_others_draw_is_refused(tmp_path: Path):
    class Copying(TinyModel):
        def text(self, prompt: Any, seed: int) -> str:
            return super().text(prompt, 0)

    with servers(Copying(), MODEL) as several:
        with pytest.raises(SettingsError) as caught:
            opened_all(several, tmp_path)
        copies, draws = (server.url for server in several)
    assert str(caught.value) == (
        f"setting 'base_url': {copies} gives the same text whatever the seed, and {draws} does "
        "not; leave one of them out"
    )
