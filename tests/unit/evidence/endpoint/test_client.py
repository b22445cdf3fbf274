"""The client as a whole: killed and started again, closed, and silent about its key."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mia_batch.errors import EngineError, MiaBatchError
from tests.conftest import REPOSITORY
from tests.hostile_server import Asked, HostileServer, Reply, Script, TinyModel, failure
from tests.processes import HANGS
from tests.unit.evidence.endpoint.asking import KEY, opened, request, results, texts

if TYPE_CHECKING:
    from pathlib import Path

MODEL = TinyModel()
REQUESTS = 60
IN_FLIGHT = 4
CLIENT = f"""
import sys
from pathlib import Path
from random import Random
from mia_batch.evidence.endpoint import Endpoint, EndpointSettings
from tests.unit.evidence.endpoint.asking import KEY, request, results, texts
settings = EndpointSettings(
    base_url=sys.argv[1],
    model="tiny",
    api_key=KEY,
    max_concurrency={IN_FLIGHT},
)
with Endpoint.open(settings, journal=Path(sys.argv[2])) as endpoint:
    found = results(endpoint, [request(i, n=2) for i in range({REQUESTS})])
    print([texts(result) for result in found.values()])
"""


class Tripwire:
    """An honest endpoint that from some request on holds its answers and raises an alarm."""

    def __init__(self, served: int, in_flight: int = IN_FLIGHT) -> None:
        self.alarm = threading.Event()
        self._left = served
        self._to_hold = in_flight
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Reply:
        if asked.is_probe:
            return MODEL(asked)
        with self._lock:
            self._left -= 1
            if self._left >= 0:
                return MODEL(asked)
            self._to_hold -= 1
            if self._to_hold == 0:
                self.alarm.set()
        return Reply(hold=threading.Event())


def start_client(server: HostileServer, journal: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLIENT, server.url, str(journal)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def test_killed_clients_ask_nothing_again_but_what_was_in_flight(tmp_path: Path):
    kills = [0, 7, 20]
    journal = tmp_path / "journal.sqlite"
    with HostileServer(MODEL) as server:
        for served in kills:
            tripwire = Tripwire(served)
            server._answer = tripwire
            client = start_client(server, journal)
            assert tripwire.alarm.wait(HANGS)  # the slots are full, so all before is journalled
            client.send_signal(signal.SIGKILL)
            client.communicate()
            assert client.returncode == -signal.SIGKILL
        server._answer = MODEL
        client = start_client(server, journal)
        output, _ = client.communicate(timeout=HANGS)
    expected = [
        [MODEL.text(f"prompt number {i}", 65536 * i + j) for j in range(2)] for i in range(REQUESTS)
    ]
    assert output.strip() == str(expected)
    assert len(server.asked) == REQUESTS + IN_FLIGHT * len(kills)
    times = Counter(asked.prompt for asked in server.asked)
    assert len(times) == REQUESTS
    assert journal.read_bytes().count(KEY.encode()) == 0


def test_a_client_killed_at_any_moment_repeats_at_most_what_was_in_flight(tmp_path: Path):
    kills = 2
    with HostileServer(MODEL) as server:
        for _ in range(kills):
            reached = threading.Event()
            after = len(server.asked) + 9

            def count(
                asked: Asked, reached: threading.Event = reached, after: int = after
            ) -> Reply:
                if len(server.asked) >= after:
                    reached.set()
                return MODEL(asked)

            server._answer = count
            client = start_client(server, tmp_path / "journal")
            assert reached.wait(HANGS)
            client.kill()  # while answers are on their way and being written
            client.communicate()
        server._answer = MODEL
        client = start_client(server, tmp_path / "journal")
        output, _ = client.communicate(timeout=HANGS)
    assert output.count(MODEL.text("prompt number 7", 65536 * 7 + 1)) == 1
    assert len(server.asked) <= REQUESTS + IN_FLIGHT * kills


def test_results_come_first_and_time_passes(tmp_path: Path):
    with HostileServer(MODEL) as server, opened(server, tmp_path) as endpoint:
        assert endpoint.results(timeout=0.01) == []
        endpoint.submit(request(1))
        (result,) = endpoint.results()
        assert result.request_id == 1
        assert endpoint.results(timeout=0.0) == []


def test_closing_does_not_wait_for_answers_that_never_come(tmp_path: Path):
    with HostileServer(MODEL) as server:
        server._answer = Script(*[server.never()] * 9, then=MODEL)
        endpoint = opened(server, tmp_path, timeout=3600.0)
        endpoint.submit(request(1))
        assert endpoint.results(timeout=0.2) == []
        endpoint.close()
        endpoint.close()
        with pytest.raises(EngineError, match="has been closed; open another"):
            endpoint.submit(request(2))
        assert "endpoint" not in {thread.name for thread in threading.enumerate()}
        server._answer = MODEL
        with opened(server, tmp_path) as endpoint:  # the journal is free again
            assert texts(results(endpoint, [request(1)])[1]) == [
                MODEL.text("prompt number 1", 65536)
            ]


def test_a_client_that_cannot_start_leaves_nothing_behind(tmp_path: Path):
    with HostileServer(MODEL) as server:
        for _ in range(2):
            with pytest.raises(EngineError, match="unable to open database file"):
                opened(server, tmp_path / "missing")
    assert "endpoint" not in {thread.name for thread in threading.enumerate()}


def test_the_most_talkative_log_does_not_hold_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    with HostileServer(MODEL) as server, opened(server, tmp_path) as endpoint:
        results(endpoint, [request(1)])
    assert "send_request_headers.complete" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    "reply",
    [
        failure(401, f"Incorrect API key provided: {KEY}"),
        failure(400, f"header Authorization: Bearer {KEY} is not understood"),
        failure(500, f"crash while handling {KEY}"),
        Reply(content=f"<html>{KEY}</html>".encode()),
        Reply(content={"choices": [{"text": "a", "finish_reason": KEY}]}),
        Reply(status=302, headers={"Location": f"http://elsewhere/{KEY}"}),
        Reply(content={}, cut_after=1, headers={"X-Key": KEY}),
    ],
    ids=["401", "400", "500", "html", "finish", "redirect", "cut"],
)
@pytest.mark.parametrize("first", [True, False])
def test_the_key_shows_up_nowhere(
    reply: Reply, first: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)  # of a header that quotes the key, httpcore's DEBUG would tell
    seen = []
    script = Script(*[reply] * 9)
    with HostileServer((lambda _: reply) if first else script) as server:
        try:
            with opened(server, tmp_path) as endpoint:
                seen += [repr(endpoint), repr(endpoint.capabilities)]
                seen += [repr(result) for result in results(endpoint, [request(1)]).values()]
        except MiaBatchError as error:
            seen += traceback.format_exception(error)
    assert seen
    assert KEY not in "".join(seen)
    assert KEY not in caplog.text
    for file in tmp_path.iterdir():
        assert KEY.encode() not in file.read_bytes()
