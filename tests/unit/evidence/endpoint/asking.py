"""What the tests of the client share: requests, settings, and a client that never dawdles."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint import ClientSettings, Endpoint
from mia_batch.evidence.request import Answer, AnswerSource, Request
from tests.hostile_server import MODEL, Asked, HostileServer, Reply
from tests.processes import HANGS

KEY = "sk-never-to-be-seen"


class NoJitter(Random):
    """Draws the shortest wait, so that retries follow at once."""

    def uniform(self, a: float, b: float) -> float:
        return a


def request(request_id: int, *, n: int = 1) -> Request:
    return Request(
        request_id=request_id,
        kind="samples",
        key=f"target-{request_id}:0:{n}:8",
        context=f"prompt number {request_id}",
        seed=65536 * request_id,
        n=n,
        max_tokens=8,
    )


def settings_for(server: HostileServer, **changed: Any) -> ClientSettings:
    usual: dict[str, Any] = {
        "base_url": server.url,
        "model": MODEL,
        "api_key": KEY,
        "max_concurrency": 1,
        "timeout": HANGS,
        "max_retries": 3,
    }
    return ClientSettings(**(usual | changed))


def opened(server: HostileServer, folder: Path, **changed: Any) -> Endpoint:
    """``kind``, ``tokenizer`` and ``at_points`` are not settings; all else is."""
    usual: dict[str, Any] = {"kind": "samples", "tokenizer": None, "at_points": False}
    endpoint_options = {name: changed.pop(name, value) for name, value in usual.items()}
    settings = settings_for(server, **changed)
    return Endpoint.open(
        settings, journal=folder / "journal.sqlite", rng=NoJitter(), **endpoint_options
    )


def results(endpoint: AnswerSource, requests: Iterable[Request]) -> dict[int, Answer]:
    """Submit all, then wait for all; results come in any order, each once."""
    waiting = set()
    for client_request in requests:
        endpoint.submit(client_request)
        waiting.add(client_request.request_id)
    answers_by_id: dict[int, Answer] = {}
    while waiting:
        for result in endpoint.results():
            waiting.remove(result.request_id)
            answers_by_id[result.request_id] = result
    return dict(sorted(answers_by_id.items()))


def answered(
    answer: Callable[[Asked], Reply],
    folder: Path,
    requests: Iterable[Request],
    **changed: Any,
) -> tuple[dict[int, Answer], HostileServer]:
    """Ask an endpoint all requests, within one client; its server remembers what it was asked."""
    with HostileServer(answer) as server, opened(server, folder, **changed) as endpoint:
        return results(endpoint, requests), server


def until_failure(endpoint: Endpoint) -> list[Answer]:
    """Take what comes before the client stops."""
    answers: list[Answer] = []
    with suppress(EngineError):
        while True:
            answers += endpoint.results()
    return answers


def texts(result: Answer) -> list[str | None]:
    assert result.error is None
    return [output.text for output in result.continuations]
