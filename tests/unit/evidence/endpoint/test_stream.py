"""Streams of events, sound and broken, and the answers that they make."""

import json
from itertools import pairwise, repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.evidence.endpoint import ClientSettings, wire
from mia_batch.evidence.endpoint.stream import (
    Event,
    EventReader,
    join_stream,
)
from mia_batch.evidence.request import Continuation
from tests.hostile_server import (
    Asked,
    HostileServer,
    Reply,
    Script,
    StreamOnly,
    TinyModel,
    chunks_of,
    event_bytes,
)
from tests.unit.evidence.endpoint.asking import (
    KEY,
    answered,
    opened,
    request,
    results,
    texts,
)

MODEL = TinyModel()
SETTINGS = ClientSettings(base_url="http://host/v1", model="m", api_key=KEY)
USAGE = {"prompt_tokens": 7, "completion_tokens": 9}


def read_events(*pieces: bytes) -> list[Event]:
    reader = EventReader()
    for piece in pieces:
        reader.feed(piece)
    reader.end()
    return reader.events


def stream(*chunks: Any, end: str = "data: [DONE]\n\n") -> bytes:
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return (events + end).encode()


def part(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "finish_reason": finish} | fields


def chunk(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"choices": list(parts)} | fields


def read(body: bytes, n: int = 1, *, chat: bool = False) -> wire.Choices:
    request_format = (wire.Chat if chat else wire.RequestFormat)(SETTINGS)
    return request_format.read(body, wire.WireRequest({}, n, 0, wire.Tokens(9, 9)))


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [("", "a"), ("", "b")]),
        (b"\xef\xbb\xbfdata: a\r\n\r\ndata:b\r\r", [("", "a"), ("", "b")]),
        (b": wait\n\n:\n\ndata: a\n: wait\ndata: b\n\n", [("", "a\nb")]),
        (b"id: 1\nevent: error\nretry: 3\ndata:  a\n\n", [("error", " a")]),
        (b"event: empty\n\ndata: a\n\n", [("", "a")]),
        (b"data: a\n\ndata: [DONE]\n\ndata: b\n\n", [("", "a"), ("", "[DONE]")]),
        (b"data: a\n\ndata: [DONE]", [("", "a"), ("", "[DONE]")]),
        (b"data: a", [("", "a")]),
        (b"data\nnothing: b\n\n", []),
        (b"", []),
    ],
)
def test_events_are_read_by_their_lines(body, events):
    assert read_events(body) == events
    assert read_events(*(body[i : i + 1] for i in range(len(body)))) == events


DOCUMENT = {
    "id": "a",
    "model": "m",
    "choices": [
        {
            "index": index,
            "text": f"{index}: sung Δ by \U0001f426 at dawn",
            "finish_reason": "length",
            "token_ids": [1, 2, 3],
            "logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, -1.5]},
        }
        for index in range(3)
    ],
    "usage": USAGE,
}
LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@given(LINE_ENDS, st.lists(st.integers(0, 8000), max_size=40))
def test_any_cut_of_the_bytes_gives_the_same_answer(line_end, cuts):
    body = event_bytes(chunks_of(DOCUMENT), line_end=line_end)
    places = [0, *sorted(cut_place % len(body) for cut_place in cuts), len(body)]
    pieces = [body[start:end] for start, end in pairwise(places)]
    assert read_events(*pieces) == read_events(event_bytes(chunks_of(DOCUMENT)))
    assert join_stream(body) == DOCUMENT


@given(st.lists(st.text(), min_size=1), st.lists(st.text(), min_size=1), st.randoms())
def test_choices_that_take_turns_in_any_order_are_told_apart(first, second, rng):
    turns = [(0, piece) for piece in first] + [(1, piece) for piece in second]
    order = sorted(turns, key=lambda _: rng.random())
    pieces: dict[int, list[str]] = {0: [], 1: []}
    for index, piece in order:
        pieces[index].append(piece)
    chunks = [chunk(part(index, text=piece)) for index, piece in order]
    document = join_stream(stream(*chunks))
    joined = {choice["index"]: choice["text"] for choice in document["choices"]}
    assert joined == {index: "".join(parts) for index, parts in pieces.items()}


@given(st.binary() | st.lists(st.text()).map("\ndata: ".join).map(str.encode))
def test_no_stream_is_too_odd_for_a_sentence(noise):
    answer = read(b"data: " + noise)
    assert answer.continuations == {}
    assert str(answer.problem).startswith("it ")


def test_a_chat_in_pieces_is_read_with_its_usage_finish_and_listings():
    listing = [{"token": " a", "logprob": -1.0, "top_logprobs": []}]
    body = stream(
        chunk(part(delta={"role": "assistant", "content": ""}), system_fingerprint="f"),
        chunk(part(delta={"content": " a"}, logprobs={"content": listing})),
        chunk(part(delta={"content": " b"}, logprobs={"content": listing})),
        chunk(part(delta={}, finish="length")),
        chunk(usage=USAGE),
    )
    answer = read(body, chat=True)
    assert answer.continuations == {
        0: Continuation(text=" a b", n_tokens=9, finish_reason="length")
    }
    assert (answer.tokens, answer.problem) == (wire.Tokens(7, 9), None)
    assert answer.system_fingerprint == "f"
    assert answer.document["choices"][0]["logprobs"] == {"content": listing * 2}


@pytest.mark.parametrize(
    ("deltas", "text"),
    [
        # Halves of one character
        ([{"content": "\ud83d"}, {"content": "\udc26"}], "\U0001f426"),
        ([{"content": [{"type": "text", "text": "a"}]}, {"content": "b"}], "ab"),
        ([{"reasoning_content": "hm"}, {"content": "a"}], "a"),
        ([{"content": "a"}, {"content": None}], "a"),
    ],
)
def test_pieces_of_every_form_make_the_text(deltas, text):
    chunks = [chunk(part(delta=delta)) for delta in deltas]
    answer = read(stream(*chunks, chunk(part(finish="stop"))), chat=True)
    assert answer.text == text


@pytest.mark.parametrize(
    ("messages", "text", "problem"),
    [
        ([{"message": {"content": "a b"}}], "a b", None),
        ([{"delta": {"content": "a b"}}, {"message": {"content": "a b"}}], "a b", None),
        (
            [{"delta": {"content": "a"}}, {"message": {"content": "a b"}}],
            "",
            "it is a stream of events that say two texts of one choice",
        ),
    ],
)
def test_a_whole_message_in_a_stream_counts_once(messages, text, problem):
    chunks = [chunk(part(**message)) for message in messages]
    answer = read(stream(*chunks), chat=True)
    assert (answer.text, answer.problem) == (text, problem)


SOUND = chunk(part(text=" a"))
CUT_STREAM = "it is a stream of events that ends before its answer does"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (stream(SOUND, end=""), CUT_STREAM),
        (stream(SOUND, chunk(part(finish="")), end=""), CUT_STREAM),
        (stream(chunk(part(0, "stop")), chunk(part(1, text="a")), end=""), CUT_STREAM),
        (b": keep-alive\n\n", CUT_STREAM),
        (stream(), "it holds no choices"),
        (
            stream(SOUND, end='data: {"choices": [{"te'),
            'it is a stream of events, one of which is not JSON: {"choices": [{"te',
        ),
        (
            stream(SOUND, {"error": {"message": f"no memory {KEY}"}}, SOUND),
            "it holds no choices: {'message': 'no memory [key]'}",
        ),
        (
            b'event: error\ndata: {"message": "no memory"}\n\n',
            "it holds no choices: {'message': 'no memory'}",
        ),
        (
            stream(chunk("a")),
            "it is a stream of events, one of which has a choice that is no object",
        ),
        (b"data: " + b"[" * 100_000, "one of which is not JSON: [[["),
    ],
)
def test_a_stream_that_is_not_whole_gives_no_answer(body, problem):
    answer = read(body, n=2)
    assert answer.continuations == {}
    assert answer.problem is not None
    assert problem in answer.problem


@pytest.mark.parametrize(
    "body",
    [
        stream(SOUND, chunk(part(finish="stop")), end=""),  # nothing says [DONE]
        stream(SOUND),  # no reason why it ended
        stream(SOUND, chunk(part(finish="stop")), end="data: [DONE]"),
        stream(chunk({"text": " a"}), chunk({"text": ""})),  # no index
    ],
)
def test_an_end_that_is_said_once_suffices(body):
    assert read(body).text == " a"


def test_a_filter_that_ends_a_stream_is_a_refusal():
    error = {"code": "content_filter", "message": "no"}
    answer = read(stream(SOUND, {"error": error}))
    assert answer.continuations[0].answer == "filtered"


# Over the wire.


class Once:
    """Sends some pieces in place of the first answers, then streams as it should."""

    def __init__(self, *bodies: Any) -> None:
        replies = [Reply(pieces=pieces) for pieces in bodies]
        self._script = Script(*replies, then=StreamOnly(MODEL))

    def __call__(self, wire_request: Asked) -> Reply:
        return self._script(wire_request)


SOUND_TEXTS = [MODEL.text("prompt number 1", 65536)]


@pytest.mark.parametrize(
    "body", [[stream(SOUND, end="")], [stream({"error": "no memory"})], [b"data: {"]]
)
def test_a_stream_that_breaks_is_asked_for_again(body, tmp_path):
    answers, server = answered(Once(body, body), tmp_path, [request(1)])
    assert texts(answers[1]) == SOUND_TEXTS
    assert len(server.asked) == 3
    answers, _ = answered(Once(*[body] * 3), tmp_path, [request(2)])
    assert str(answers[2].error).startswith("the endpoint gave no usable answer: it ")


def test_a_stream_without_end_is_cut_off_by_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("mia_batch.evidence.endpoint.transport._MOST_BYTES", 100_000)
    endless = [repeat(b": keep-alive\n\n" * 100) for _ in range(4)]
    answers, _ = answered(Once(*endless), tmp_path, [request(1), request(2)])
    assert "an answer of more than" in str(answers[1].error)
    assert answers[2].error is None


def test_a_stream_without_end_is_cut_off_by_its_time(tmp_path):
    with HostileServer(StreamOnly(MODEL)) as server:

        def fall_silent():
            yield stream(SOUND, end="")
            server.closing.wait()

        server._answer = Once(fall_silent(), fall_silent())
        with opened(server, tmp_path, timeout=1.0, max_retries=1) as endpoint:
            answers = results(endpoint, [request(1), request(2)])
    assert "no answer came within 1 s (after 2 tries)" in str(answers[1].error)
    assert answers[2].error is None


def test_a_stream_that_stays_open_after_its_last_word_is_read(tmp_path):
    with HostileServer(StreamOnly(MODEL)) as server:

        def stay_open():
            yield stream(SOUND)
            server.closing.wait()

        server._answer = Once(stay_open())
        with opened(server, tmp_path) as endpoint:
            answers = results(endpoint, [request(1)])
    assert texts(answers[1]) == [" a"]
