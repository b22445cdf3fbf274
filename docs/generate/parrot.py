"""An endpoint that knows one text by heart, for pictures of an audit of one."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["serve_parrot"]

_N_KNOWN_BY = 8  # words of a prompt by which a place in the text is found


@contextmanager
def serve_parrot(text: str) -> Iterator[str]:
    """Serve completions of a text's passages, other words for any other; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = (
            "HTTP/1.1"  # connections are kept: thousands of words are asked for
        )

        def do_GET(self) -> None:
            self.answer({"data": [{"id": "parrot"}]})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            request = json.loads(self.rfile.read(length))
            prompt = request["prompt"]
            continued = _continue(text, prompt, request.get("max_tokens", 16))
            choice = {"index": 0, "text": continued, "finish_reason": "length"}
            usage = {
                "prompt_tokens": len(prompt.split()),
                "completion_tokens": len(continued.split()),
            }
            self.answer({"choices": [choice], "usage": usage})

        def answer(self, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def _continue(text: str, prompt: str, n_words: int) -> str:
    words = prompt.split()
    _, found, rest = text.partition(" ".join(words[-_N_KNOWN_BY:]))
    if not (found and words):
        rest = " ".join(Random(prompt).choices(words or ["the"], k=n_words))
    continued = " ".join(rest.split()[:n_words])
    return continued if prompt.endswith(" ") else f" {continued}"
