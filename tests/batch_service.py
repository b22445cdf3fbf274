"""A batch service that answers files of requests as a scripted endpoint would."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile_server import Asked, Reply

CREATED = 1_790_000_000
"""When the service says that it made its answers."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_requests(folder: Path) -> list[dict[str, Any]]:
    """Every request of a folder, in the order of its files."""
    lines: list[dict[str, Any]] = []
    for path in sorted(folder.glob("requests-*.jsonl")):
        lines += read_lines(path)
    return lines


def reply_line(custom_id: str, status: int, body: Any) -> dict[str, Any]:
    response = {"status_code": status, "request_id": "r", "body": body}
    return {"id": "b", "custom_id": custom_id, "response": response, "error": None}


def failed_line(custom_id: str, code: str, message: str) -> dict[str, Any]:
    """What stands in a file of errors."""
    error = {"code": code, "message": message}
    return {"id": "b", "custom_id": custom_id, "response": None, "error": error}


def answer_line(
    line: dict[str, Any], answer: Callable[[Asked], Reply]
) -> dict[str, Any]:
    asked = Asked(
        method=line["method"], path=line["url"], headers={}, fields=line["body"], at=0.0
    )
    reply = answer(asked)
    body = reply.content
    if reply.status == 200:
        body = body | {"created": CREATED}
    return reply_line(line["custom_id"], reply.status, body)


def serve(folder: Path, answer: Callable[[Asked], Reply]) -> list[dict[str, Any]]:
    """Answer the requests of a folder, in another order."""
    lines = [answer_line(line, answer) for line in read_requests(folder)]
    Random(0).shuffle(lines)
    return lines


def write_answers(path: Path, lines: Iterable[dict[str, Any]]) -> str:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)
