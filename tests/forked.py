"""Processes forked from one that has loaded all libraries: they start in a moment."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import pytest

_REPOSITORY = Path(__file__).parents[1]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "mia_batch.evidence.process",
        "mia_batch.evidence.engines.transformers",
        "mia_batch.evidence.engines.masked",
        "mia_batch.extras.tune.training",
        "peft",
        "transformers.models.llama.modeling_llama",
        "transformers.models.gpt2.modeling_gpt2",
        "tests.warm",
    ]
)


def start_parent() -> str:
    """Start the process from which all others are forked; its address."""
    errors = os.dup(2)
    try:
        with Path(os.devnull).open(
            "w"
        ) as nowhere:  # libraries warn of their own future
            os.dup2(nowhere.fileno(), 2)
        with chdir(_REPOSITORY):  # where it finds tests.warm
            forkserver._forkserver.ensure_running()
    finally:
        os.dup2(errors, 2)
        os.close(errors)
    return str(vars(forkserver._forkserver)["_forkserver_address"])


def use_parent(address: str) -> None:
    """Let this process, too, fork from the one at the address: loading takes seconds."""
    own: Any = forkserver._forkserver
    own._forkserver_address, own._forkserver_alive_fd = address, os.pipe()[1]
    own.ensure_running = lambda: None


class Forked:
    """Looks like a `subprocess.Popen`."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        self._process = _CONTEXT.Process(target=target, args=arguments)
        start_parent()
        self._process.start()  # in the folder in which this is called
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self.poll() is None:
            cmd = "a forked process"
            raise subprocess.TimeoutExpired(cmd, timeout or 0.0)
        return self.poll()

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.join()


def forked_worker(connection: Connection, log: Path) -> Forked:
    """Start what `EngineProcess` would start."""
    return Forked(_work, connection, str(log))


def forked_command(
    arguments: Sequence[str],
    out: Path,
    err: Path,
    *,
    cwd: Path | None = None,
    stops_in: str | None = None,
) -> Forked:
    """Start ``mia-batch ARGUMENTS``; what it prints is appended to files.

    It stops itself (SIGSTOP) when it is about to put the second file into a folder
    ``stops_in``.
    """
    return Forked(
        _command, list(arguments), str(out), str(err), cwd or Path.cwd(), stops_in
    )


def _work(connection: Connection, log: str) -> None:
    from mia_batch.evidence.process import main

    os.setpgid(0, 0)
    redirect(log, log)
    main(connection.fileno(), os.getppid(), log)


def fork_on() -> pytest.MonkeyPatch:
    """In a forked process: fork what it starts, too."""
    from mia_batch.evidence import process

    patch = pytest.MonkeyPatch()
    own = forkserver._forkserver  # this process comes from it: there is none to start
    patch.setattr(own, "ensure_running", lambda: None)
    patch.setattr(forkserver, "ensure_running", lambda: None)
    patch.setattr(process, "_spawn", forked_worker)
    return patch


def _command(
    arguments: list[str], out: str, err: str, cwd: Path, stops_in: str | None
) -> None:
    from mia_batch.cli import main
    from tests.command.__main__ import repeat_little

    put: list[str] = []

    def stop(event: str, values: tuple[object, ...]) -> None:
        if (
            event in ("os.link", "os.rename")
            and Path(str(values[1])).parent.name == stops_in
        ):
            put.append(str(values[1]))
            if len(put) == 2:
                os.kill(os.getpid(), signal.SIGSTOP)

    if stops_in is not None:
        sys.addaudithook(stop)
    redirect(out, err)
    os.chdir(cwd)
    fork_on()
    repeat_little()
    sys.argv = ["mia-batch", *arguments]
    main()


def redirect(out: str, err: str) -> None:
    for descriptor, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
