"""An OpenAI-compatible endpoint on loopback that does whatever a test scripts it to do."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, zip_longest
from typing import Any, Self, cast

from mia_batch.evidence.dress import known_openings
from mia_batch.evidence.endpoint.probe import PROBE_PROMPT

MODEL = "tiny"
PENALTIES = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
"""Fields that act on the draw, with the values at which they do not."""
EVERYTHING = frozenset(
    {"n", "seed", "top_k", "temperature", "min_p", "output_token_ids", *PENALTIES}
)


_LIKELIEST = (("top_k", 1), ("temperature", 0), ("min_p", 1))
"""Values at which only the most likely token can be drawn."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    fields: dict[str, Any]
    at: float

    @property
    def prompt(self) -> Any:
        """What is to be continued; of a chat, the message."""
        messages = self.fields.get("messages")
        return messages[-1]["content"] if messages else self.fields.get("prompt")

    @property
    def is_probe(self) -> bool:
        """Whether the client only tries what the endpoint can do."""
        prompts = [PROBE_PROMPT, *(prompt for prompt, _ in known_openings())]
        return any(each in (self.prompt or PROBE_PROMPT) for each in prompts)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What is sent back: JSON, or bytes as they are."""

    status: int = 200
    content: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Bytes of the body that are sent before the connection is cut."""
    hold: threading.Event | threading.Barrier | None = None
    """Nothing is sent before this is set, or before so many requests wait for it."""
    pieces: Iterable[bytes] | None = None
    """The body, sent as a stream of events piece by piece."""


def failure(
    status: int, message: str, code: str | None = None, **headers: str
) -> Reply:
    """Refuse as OpenAI does."""
    error = {"message": message, "type": "an_error", "code": code}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, content={"error": error}, headers=named)


class TinyModel:
    """An honest endpoint: prompt and seed give the text; what it does not honour, it ignores."""

    def __init__(
        self,
        *,
        honours: Iterable[str] = EVERYTHING,
        refuses: Iterable[str] = (),
        most: int = 99,
    ) -> None:
        self.honours = frozenset(honours)
        self.refuses = frozenset(refuses)
        self.most = most
        self._unseeded = count(-1, -1)

    def __call__(self, asked: Asked) -> Reply:
        if asked.method == "GET":
            return Reply(content={"data": [{"id": MODEL, "max_model_len": 2048}]})
        fields = asked.fields
        if refused := self.refuses & fields.keys():
            return failure(400, f"unknown field {sorted(refused)}")
        n = min(fields.get("n", 1) if "n" in self.honours else 1, self.most)
        return Reply(content=self._document(asked, n))

    def text(self, prompt: Any, seed: int) -> str:
        dice = random.Random(f"{prompt}:{seed}")
        return "".join(
            f" {dice.choice('abcdefgh')}{dice.randrange(100)}" for _ in range(6)
        )

    def _document(self, asked: Asked, n: int) -> dict[str, Any]:
        given = len(asked.prompt.split())
        return {
            "choices": [self._choice(asked, index, given) for index in range(n)],
            "usage": {"prompt_tokens": given, "completion_tokens": 6 * n},
        }

    def _choice(self, asked: Asked, index: int, given: int) -> dict[str, Any]:
        fields = asked.fields
        seed = (
            fields["seed"] + index
            if self._takes(fields, "seed")
            else next(self._unseeded)
        )
        if any(
            self._takes(fields, name) and fields[name] == value
            for name, value in _LIKELIEST
        ):
            seed = 0
        taken = {name: fields[name] for name in PENALTIES if self._takes(fields, name)}
        penalised = {
            name: value for name, value in taken.items() if value != PENALTIES[name]
        }
        text = self.text(
            f"{asked.prompt} {penalised}" if penalised else asked.prompt, seed
        )
        choice: dict[str, Any] = {"index": index, "finish_reason": "length"}
        if fields.get("return_token_ids") and "output_token_ids" in self.honours:
            choice["token_ids"] = list(range(6))
        if fields.get("echo") and "echo_logprobs" in self.honours:
            text = asked.prompt + text
            choice["logprobs"] = {"token_logprobs": [None] + [-1.0] * given}
        if asked.path.endswith("/chat/completions"):
            return {**choice, "message": {"role": "assistant", "content": text}}
        return {**choice, "text": text}

    def _takes(self, fields: dict[str, Any], name: str) -> bool:
        return name in self.honours and name in fields


class LlamaCpp:
    """Names itself as llama.cpp's server does; with ``slots`` it says how many it has."""

    def __init__(
        self,
        slots: int | None = None,
        *,
        then: Callable[[Asked], Reply] | None = None,
    ) -> None:
        self._slots = slots
        self._then = then or TinyModel()

    def __call__(self, asked: Asked) -> Reply:
        reply = self._then(asked)
        if asked.path == "/props":
            reply = Reply(content={"total_slots": self._slots})
        return replace(reply, headers=reply.headers | {"Server": "llama.cpp"})


class Script:
    """Replies to the first requests for samples, in order; an honest endpoint for all else."""

    def __init__(
        self, *replies: Reply, then: Callable[[Asked], Reply] | None = None
    ) -> None:
        self._replies = iter(replies)
        self._then = then or TinyModel()

    def __call__(self, asked: Asked) -> Reply:
        reply = None if asked.is_probe else next(self._replies, None)
        return reply or self._then(asked)


class Garbling:
    """Answers each prompt a few times with what is no JSON, status 200; then as an endpoint does.

    ``by`` says which requests count as one; left out, those with the same prompt.
    """

    def __init__(
        self,
        times: int,
        *,
        by: Callable[[Asked], object] = lambda asked: asked.prompt,
        then: Callable[[Asked], Reply] | None = None,
    ) -> None:
        self._times = times
        self._by = by
        self._then = then or TinyModel()
        self._seen: Counter[str] = Counter()

    def __call__(self, asked: Asked) -> Reply:
        which = str(self._by(asked))
        self._seen[which] += asked.method == "POST"
        garbled = asked.method == "POST" and self._seen[which] <= self._times
        return Reply(content=b'{"choices": [{"te') if garbled else self._then(asked)


_PIECE = 5  # characters of a text in a chunk


def chunks_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut a whole answer into the chunks of a stream; choices take turns, the usage is last."""
    head = {name: document[name] for name in document.keys() - {"choices", "usage"}}
    turns = [_choice_chunks(choice) for choice in document["choices"]]
    parts = [part for turn in zip_longest(*turns) for part in turn if part is not None]
    chunks: list[dict[str, Any]] = [head | {"choices": []}]
    chunks += (head | {"choices": [part], "usage": None} for part in parts)
    return [*chunks, head | {"choices": [], "usage": document.get("usage")}]


def _choice_chunks(choice: dict[str, Any]) -> list[dict[str, Any]]:
    message = choice.get("message")
    text = choice["text"] if message is None else message["content"]
    pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
    further = choice.keys() - {"text", "message", "finish_reason", "logprobs", "index"}
    last = {name: choice[name] for name in ("finish_reason", *further)}
    index = {"index": choice["index"]}
    parts = []
    for number, piece in enumerate(pieces):
        part = {"text": piece} if message is None else {"delta": {"content": piece}}
        logprobs = choice.get("logprobs") or {}
        named = {name: values[number : number + 1] for name, values in logprobs.items()}
        if number == len(pieces) - 1:
            named = {name: values[number:] for name, values in logprobs.items()}
        parts.append(index | part | {"logprobs": named or None, "finish_reason": None})
    return [*parts, index | {"text": ""} | last]


def event_bytes(chunks: Iterable[dict[str, Any]], *, line_end: str = "\n") -> bytes:
    """Write chunks as events, with comments between them, and their usual end."""
    lines = []
    for chunk in chunks:
        lines += [": keep-alive", "", f"data: {json.dumps(chunk)}", ""]
    return "".join(line + line_end for line in [*lines, "data: [DONE]", ""]).encode()


class StreamOnly:
    """Answers as another endpoint does, in a stream whatever is asked, of small pieces."""

    def __init__(
        self,
        then: Callable[[Asked], Reply],
        *,
        line_end: str = "\n",
        size: int = 41,
    ) -> None:
        self._then = then
        self._line_end = line_end
        self._size = size

    def __call__(self, asked: Asked) -> Reply:
        reply = self._then(asked)
        if asked.method == "GET" or reply.status != 200:
            return reply
        body = event_bytes(chunks_of(reply.content), line_end=self._line_end)
        starts = range(0, len(body), self._size)
        return Reply(pieces=[body[start : start + self._size] for start in starts])


class HostileServer:
    """Runs in threads of its own; a context manager.

    ``asked`` holds the requests for samples in the order of their arrival, ``probes``
    the others.
    """

    def __init__(self, answer: Callable[[Asked], Reply], *, port: int = 0) -> None:
        self.asked: list[Asked] = []
        self.probes: list[Asked] = []
        self.closing = threading.Event()
        self._answer = answer
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.reply = self._reply
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def port(self) -> int:
        """Port, which another server may take when this one has ended."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def never(self) -> Reply:
        return Reply(hold=self.closing)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _reply(self, asked: Asked) -> Reply | None:
        with self._lock:
            (self.probes if asked.is_probe else self.asked).append(asked)
            reply = self._answer(asked)
        if reply.hold is not None:
            reply.hold.wait()
        return None if self.closing.is_set() else reply


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    reply: Callable[[Asked], Reply | None]

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._handle({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self._handle(json.loads(body))

    def log_message(self, *_: object) -> None:
        """Be quiet."""

    def _handle(self, fields: dict[str, Any]) -> None:
        asked = Asked(
            method=self.command,
            path=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            fields=fields,
            at=time.monotonic(),
        )
        reply = cast("_Server", self.server).reply(asked)
        if reply is None:
            self.close_connection = True
        elif reply.pieces is not None:
            self._stream(reply.pieces)
        else:
            self._send(reply)

    def _stream(self, pieces: Iterable[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, reply: Reply) -> None:
        content = reply.content
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        # Else the header would have the name of Python's server before that
        names_itself = "Server" in reply.headers
        start = self.send_response_only if names_itself else self.send_response
        start(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: reply.cut_after])
        self.close_connection = self.close_connection or reply.cut_after is not None
