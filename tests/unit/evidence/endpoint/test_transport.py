"""Where the key goes, and what a connection may do."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import pytest

from mia_batch.errors import EngineError, SettingsError
from tests.hostile_server import Asked, HostileServer, Reply, Script, TinyModel
from tests.unit.evidence.endpoint.asking import KEY, opened, request, results

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = TinyModel()
MOST_MIB = 500
READ = """
import asyncio, re, sys
from pathlib import Path
from mia_batch.evidence.endpoint import EndpointSettings
from mia_batch.evidence.endpoint.transport import Transport, UnansweredError

def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]) / 1024

async def ask():
    transport = Transport(EndpointSettings(base_url=sys.argv[1], model="m"))
    try:
        await transport.send("/completions", {})
    except UnansweredError as error:
        print(error)
    await transport.aclose()

before = peak()
asyncio.run(ask())
print(peak() - before)
"""


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


@pytest.fixture(scope="module")
def gigabyte() -> bytes:
    """A gigabyte of zeros, packed."""
    packer = zlib.compressobj(wbits=31)
    zeros = bytes(1 << 20)
    return b"".join([packer.compress(zeros) for _ in range(1024)] + [packer.flush()])


@pytest.mark.parametrize(
    ("coding", "said"),
    [
        ("gzip", "an answer of more than 16 MiB"),
        ("GZIP ", "an answer of more than 16 MiB"),
        ("gzip, gzip", "an answer packed as 'gzip, gzip', which was not asked for"),
        ("br", "an answer packed as 'br', which was not asked for"),
        ("deflate", "an answer that cannot be unpacked"),
    ],
)
def test_an_answer_that_unpacks_to_a_gigabyte_costs_little_memory(
    gigabyte: bytes, coding: str, said: str
):
    packed = gzip.compress(gigabyte) if coding == "gzip, gzip" else gigabyte
    answer = Reply(content=packed, headers={"Content-Encoding": coding})
    with HostileServer(lambda _: answer) as server:
        command = [sys.executable, "-c", READ, server.url]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
    sentence, mib = ended.stdout.splitlines()
    assert said in sentence
    assert float(mib) < MOST_MIB


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "identity"])
def test_an_answer_that_is_packed_once_is_read(coding: str, tmp_path: Path):
    packs: dict[str, Callable[[bytes], bytes]] = {"deflate": zlib.compress, "identity": bytes}
    pack = packs.get(coding, gzip.compress)

    def packed(asked: Asked) -> Reply:
        content = pack(json.dumps(MODEL(asked).content).encode())
        return Reply(content=content, headers={"Content-Encoding": coding})

    with HostileServer(packed) as server, opened(server, tmp_path) as endpoint:
        found = results(endpoint, [request(1)])
        (accepted,) = {asked.headers["accept-encoding"] for asked in server.asked}
    assert (found[1].error, accepted) == (None, "identity")
