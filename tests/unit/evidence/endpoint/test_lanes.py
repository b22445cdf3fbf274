"""Which request is sent next, to llama.cpp's server and to others."""

import threading
from random import Random

import pytest

from mia_batch.evidence.endpoint.lanes import Lanes
from mia_batch.evidence.request import Answer, Request
from tests.hostile_server import Asked, HostileServer, LlamaCpp, Reply, TinyModel
from tests.processes import HANGS
from tests.unit.evidence.endpoint.asking import opened, texts

LENGTHS = (2, 6, 4, 8)  # words of the prompts of a text, as the points are drawn
TEXTS = ("first", "second")
MODEL = TinyModel()


def point(request_id: int, text: str, n_words: int) -> Request:
    prompt = " ".join([text, *map(str, range(n_words - 1))])
    return Request(
        request_id=request_id,
        kind="samples",
        key=f"{text}:target:probe:{n_words}:0:1:8",
        context=prompt,
        max_tokens=8,
    )


def points() -> list[Request]:
    pairs = [(text, length) for text in TEXTS for length in LENGTHS]
    return [point(number, *pair) for number, pair in enumerate(pairs)]


class Together:
    """Holds replies until so many requests wait for theirs."""

    def __init__(self, n: int) -> None:
        self._all_here = threading.Barrier(n, timeout=HANGS)

    def __call__(self, request: Asked) -> Reply:
        reply = MODEL(request)
        if request.is_probe:
            return reply
        return Reply(content=reply.content, hold=self._all_here)


def answers_to_points(server, folder):
    """Ask about all points at once; the prompts as they came, and the answers."""
    answers: list[Answer] = []
    with opened(server, folder, max_concurrency=8) as endpoint:
        endpoint.submit(*points())
        while len(answers) < len(TEXTS) * len(LENGTHS):
            answers += endpoint.results()
    in_order = sorted(answers, key=lambda answer: answer.request_id)
    return [request.prompt.split() for request in server.asked], list(
        map(texts, in_order)
    )


def test_of_each_text_one_prompt_is_with_llama_cpp_and_the_next_one_is_longer(tmp_path):
    with HostileServer(LlamaCpp(2, then=Together(2))) as server:
        prompts, answers = answers_to_points(server, tmp_path)
        assert all(
            wire_request.fields["cache_prompt"] is True for wire_request in server.asked
        )
    # Of each pair that was held both came before the next
    for number, length in enumerate(sorted(LENGTHS)):
        pair = prompts[2 * number : 2 * number + 2]
        assert {prompt[0] for prompt in pair} == set(TEXTS)
        assert [len(prompt) for prompt in pair] == [length] * 2
    assert answers == [[MODEL.text(request.context, 0)] for request in points()]


def test_with_one_slot_a_text_is_at_its_end_before_the_next_one_begins(tmp_path):
    with HostileServer(LlamaCpp(1)) as server:
        prompts, _ = answers_to_points(server, tmp_path)
    expected = [(text, length) for text in TEXTS for length in sorted(LENGTHS)]
    assert [(prompt[0], len(prompt)) for prompt in prompts] == expected


def test_other_servers_are_asked_about_all_points_at_once(tmp_path):
    with HostileServer(Together(8)) as server:
        prompts, answers = answers_to_points(server, tmp_path)
        assert not any(
            "cache_prompt" in wire_request.fields for wire_request in server.asked
        )
    assert sorted(len(prompt) for prompt in prompts) == sorted(2 * LENGTHS)
    assert answers == [[MODEL.text(request.context, 0)] for request in points()]


def test_so_many_texts_are_submitted_as_fill_the_slots_twice(tmp_path):
    with HostileServer(LlamaCpp(2)) as server, opened(server, tmp_path) as endpoint:
        assert endpoint.has_room(requests=100, samples=100)
        assert not endpoint.has_room(requests=4096, samples=4096)
        arrived = threading.Event()

        def never(request: Asked) -> Reply:
            arrived.set()
            return server.never()

        server._answer = never
        endpoint.submit(*[point(number, f"text-{number}", 3) for number in range(4)])
        assert arrived.wait(HANGS)
        assert not endpoint.has_room(requests=100, samples=100)
        assert endpoint.has_room(requests=1, samples=1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with HostileServer(MODEL) as server, opened(server, elsewhere) as endpoint:
        assert not endpoint.has_room(requests=2, samples=2)


def test_no_more_samples_are_asked_for_at_once_than_there_are_slots(tmp_path):
    request = point(0, "text", 3)
    request.n = 10
    with HostileServer(LlamaCpp(4)) as server, opened(server, tmp_path) as endpoint:
        endpoint.submit(request)
        (answer,) = endpoint.results()
        assert [wire_request.fields["n"] for wire_request in server.asked] == [4, 4, 2]
    assert texts(answer) == [MODEL.text(request.context, seed) for seed in range(10)]


@pytest.mark.parametrize("seed", range(3))
def test_lanes_that_have_begun_go_on_before_others_begin(seed):
    lanes: Lanes[tuple[str, int]] = Lanes()
    jobs = [(lane, length) for lane in "abcd" for length in range(5)]
    Random(seed).shuffle(jobs)
    for lane, length in jobs:
        lanes.put(lane, length, (lane, length))
    assert len(lanes) == 4
    in_order = list(dict.fromkeys(lane for lane, _ in jobs))
    expected = [(lane, length) for lane in in_order for length in range(5)]
    jobs_taken = []
    for _ in jobs:
        lane, job = lanes.take() or ("", ("", 0))
        jobs_taken.append(job)
        lanes.end(lane)
    assert jobs_taken == expected
    assert lanes.take() is None
    assert len(lanes) == 0


def test_what_comes_while_a_lane_is_in_flight_waits_and_can_be_forgotten():
    lanes: Lanes[int] = Lanes()
    lanes.put("a", 1, 1)
    assert lanes.take() == ("a", 1)
    lanes.put("a", 2, 2)
    lanes.put("b", 1, 3)
    assert lanes.take() == ("b", 3)
    assert lanes.take() is None
    lanes.end("a")
    assert lanes.take() == ("a", 2)
    lanes.put("a", 3, 4)
    lanes.put("c", 1, 5)
    lanes.clear()
    lanes.end("a")
    lanes.end("b")
    assert (lanes.take(), len(lanes)) == (None, 0)
