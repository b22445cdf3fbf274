"""What the tests of the client share: requests, settings, and a client that never dawdles."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint import Endpoint, EndpointSettings
from mia_batch.evidence.source import TextRequest
from tests.hostile_server import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mia_batch.evidence.source import TextResult
    from tests.hostile_server import HostileServer

KEY = "sk-never-to-be-seen"


class NoJitter(Random):
    """Draws the shortest wait, so that retries follow at once."""

    def uniform(self, a: float, b: float) -> float:
        return a


def request(request_id: int, *, n: int = 1, prompt: str | None = None) -> TextRequest:
    return TextRequest(
        request_id=request_id,
        key=f"target-{request_id}:0:{n}:8",
        prompt=f"prompt number {request_id}" if prompt is None else prompt,
        seed=65536 * request_id,
        n=n,
        max_tokens=8,
    )


def settings_for(server: HostileServer, **changed: Any) -> EndpointSettings:
    usual: dict[str, Any] = {
        "base_url": server.url,
        "model": MODEL,
        "api_key": KEY,
        "max_concurrency": 1,
        "timeout": 30.0,
        "max_retries": 3,
    }
    return EndpointSettings(**(usual | changed))


def opened(server: HostileServer, folder: Path, **changed: Any) -> Endpoint:
    settings = settings_for(server, **changed)
    return Endpoint.open(settings, journal=folder / "journal.sqlite", rng=NoJitter())


def results(endpoint: Endpoint, requests: Iterable[TextRequest]) -> dict[int, TextResult]:
    """Submit all, then wait for all; results come in any order, each once."""
    waiting = set()
    for each in requests:
        endpoint.submit(each)
        waiting.add(each.request_id)
    found: dict[int, TextResult] = {}
    while waiting:
        for result in endpoint.results():
            waiting.remove(result.request_id)
            found[result.request_id] = result
    return dict(sorted(found.items()))


def until_failure(endpoint: Endpoint) -> list[TextResult]:
    """Take what comes before the client stops."""
    found: list[TextResult] = []
    with suppress(EngineError):
        while True:
            found += endpoint.results()
    return found


def texts(result: TextResult) -> list[str]:
    assert result.error is None
    return [output.text for output in result.outputs]
