"""Where the key goes, and what a connection may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mia_batch.errors import EngineError, SettingsError
from tests.hostile_server import HostileServer, Reply, Script, TinyModel
from tests.unit.evidence.endpoint.asking import KEY, opened, request, results

if TYPE_CHECKING:
    from pathlib import Path

MODEL = TinyModel()


def test_the_key_is_sent_as_a_bearer_token(tmp_path: Path):
    with HostileServer(MODEL) as server, opened(server, tmp_path) as endpoint:
        results(endpoint, [request(1)])
    sent = {asked.headers.get("authorization") for asked in [*server.asked, *server.probes]}
    assert sent == {f"Bearer {KEY}"}


def test_without_a_key_none_is_sent(tmp_path: Path):
    with HostileServer(MODEL) as server, opened(server, tmp_path, api_key=None) as endpoint:
        results(endpoint, [request(1)])
    assert not any("authorization" in asked.headers for asked in [*server.asked, *server.probes])


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_to_another_host_never_gets_the_key(status: int, tmp_path: Path):
    with HostileServer(MODEL) as thief:
        redirect = Reply(status=status, headers={"Location": f"{thief.url}/completions"})
        said = f"status {status}: a redirect to {thief.url}"
        with (
            HostileServer(lambda _: redirect) as server,
            pytest.raises(SettingsError, match=said),
        ):
            opened(server, tmp_path)
        with HostileServer(Script(redirect)) as server, opened(server, tmp_path) as endpoint:
            endpoint.submit(request(1))
            with pytest.raises(EngineError, match=said):
                endpoint.results()
        assert thief.asked == thief.probes == []


def test_an_answer_without_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mia_batch.evidence.endpoint.transport._MOST_BYTES", 100_000)
    flood = Reply(content=b" " * 200_000)
    script = Script(flood, flood, flood, flood)
    with HostileServer(script) as server, opened(server, tmp_path) as endpoint:
        found = results(endpoint, [request(1), request(2)])
    assert "an answer of more than" in str(found[1].error)
    assert found[2].error is None
