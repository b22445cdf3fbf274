"""Runs in a store whose process is killed."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from threading import Event, Thread
from urllib.parse import urlsplit

import obstore
import pytest

from mia_batch.errors import RunFolderError
from mia_batch.extras.store import copies as leases
from mia_batch.extras.store.copies import Store
from mia_batch.pipeline.custody import verify
from tests.processes import HANGS
from tests.runs import audit_books, tables_of
from tests.s3 import BUCKET, s3_server

URL = f"s3://{BUCKET}/run"


class StallingProxy:
    """Passes bytes on to a server until so many came from clients, then none any more."""

    def __init__(self, url: str, most: int) -> None:
        self._server = urlsplit(url)
        self._left = most
        self.stalled = Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open = [self._listening]
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut all connections, as the system does for a process that was killed."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(
                    (self._server.hostname, self._server.port)
                )
                self._open += [client, server]
                Thread(
                    target=self._pass_on, args=(client, server, True), daemon=True
                ).start()
                Thread(
                    target=self._pass_on, args=(server, client, False), daemon=True
                ).start()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, counted: bool
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if counted and self._left < len(data):
                    self.stalled.set()
                    return
                self._left -= counted * len(data)
                target.sendall(data)


@pytest.fixture
def server():
    with s3_server() as running:
        store = running.store("run")
        obstore.delete(store, list(running.contents("run")))
        yield running


@pytest.fixture
def on_machine(server, tmp_path, monkeypatch):
    def at(name):
        for variable, value in server.environment(tmp_path / name).items():
            monkeypatch.setenv(variable, value)

    at("one")
    return at


def writer(*asked):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stored_writer", *map(str, asked)]
    )


@pytest.mark.parametrize(
    ("n_puts", "then"),
    [
        (12, "one"),
        (3, "two"),
        pytest.param(3, "one", marks=pytest.mark.long),
        pytest.param(12, "two", marks=pytest.mark.long),
    ],
)
def test_a_killed_run_is_gone_on_with(
    n_puts, then, server, on_machine, recorded_books, monkeypatch
):
    """On its own machine at once, on another when its lease is over; nothing is there twice."""
    with writer("audit", URL, recorded_books, n_puts) as killed:
        pass
    assert killed.returncode == -signal.SIGKILL
    on_machine(then)
    if then == "two":
        with pytest.raises(RunFolderError, match="is held by another live run"):
            audit_books(URL, recorded_books)
        monkeypatch.setattr(leases, "_SECONDS", 0.0)
    run = audit_books(URL, recorded_books)
    tables = tables_of(run.folder)
    assert tables == tables_of(recorded_books / "run")
    assert tables.items() <= server.contents("run").items()
    assert verify(URL).faults == []


@pytest.mark.parametrize(
    ("n_bytes", "most"), [(3 << 20, 1 << 20), (24 << 20, 13 << 20)]
)
def test_a_process_killed_while_it_puts_leaves_no_half(
    n_bytes, most, server, on_machine, tmp_path, monkeypatch
):
    """Of a file that goes in one request, and of one that goes in several."""
    (tmp_path / "before").write_bytes(b"whole")
    Store.open(URL).put("old", tmp_path / "before")
    (tmp_path / "new").write_bytes(os.urandom(n_bytes))
    for name in ("old", "new"):
        proxy = StallingProxy(server.url, most)
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with writer("put", URL, name, tmp_path / "new") as process:
            assert proxy.stalled.wait(HANGS)
            process.kill()
        proxy.close()
        assert process.returncode == -signal.SIGKILL
        assert server.contents("run") == {"old": b"whole"}
