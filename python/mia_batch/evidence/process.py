"""An engine in a process of its own, with an environment of its own.

It works whatever the caller has imported before, from a script without a main guard and from a
notebook, and reading, decoding and writing go on beside it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Self, cast

from mia_batch.errors import EngineError, MiaBatchError
from mia_batch.models.adapter import weights_source
from mia_batch.models.weights import check_weights

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from types import TracebackType

    from mia_batch.evidence.request import Answer, EngineInfo, EngineSpec, Request

__all__ = ["EngineProcess"]

_SECONDS_TO_CLOSE = 10.0
_SECONDS_TO_DIE = 5.0


class EngineProcess:
    """A running engine; made by :meth:`start`, used as a context manager.

    One thread may submit while another reads results. ``log`` is where the engine's libraries
    write.
    """

    _process: subprocess.Popen[bytes]
    _connection: Connection
    _exit: int

    def __init__(self, spec: EngineSpec, log: Path) -> None:
        self._spec = spec
        self._log = log
        self._info: EngineInfo | None = None
        self._failure: MiaBatchError | None = None

    @classmethod
    def start(cls, spec: EngineSpec, *, log: Path) -> Self:
        """Start an engine and wait until it is ready; ``log`` is appended to.

        Raises `SettingsError` if a setting cannot be followed by the engine, `EngineError` if the
        engine cannot start.
        """
        engine = cls(spec, log)
        engine._start()
        return engine

    def restart(self) -> None:
        """Start again an engine that has ended; what was in flight is lost. Raises as `start`."""
        if not self._connection.closed:
            self._end()
        self._failure = None
        self._start()

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = _spawn(theirs, self._log)
        self._exit = os.pidfd_open(self._process.pid)
        try:
            self._send(self._spec)
            self._wait(None)
            self._info = cast("EngineInfo", self._receive())
            spec = self._spec
            if not Path(weights_source(spec.model, None)[0]).is_dir():  # a hub had its files before
                check_weights(spec.model, spec.revision, spec.kind)
        except BaseException:
            self._end()
            raise

    def turn_to(self, spec: EngineSpec) -> None:
        """Answer as another model, if that is one for which `can_turn` is true.

        Nothing may be in flight. Raises `EngineError` if its weights cannot be loaded.
        """
        self._send(spec.model)
        self._wait(None)
        self._info = cast("EngineInfo", self._receive())
        self._spec = spec

    @property
    def spec(self) -> EngineSpec:
        """What it was started with, or turned to."""
        return self._spec

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""
        if self._info is None:
            msg = "the engine has not started; make it with start"
            raise EngineError(msg)
        return self._info

    def submit(self, request: Request) -> None:
        """Queue a request; returns at once. Raises `EngineError` if the engine has stopped."""
        if self._failure is not None:
            raise self._failure
        self._send(request)

    def results(self, timeout: float | None = None) -> list[Answer]:
        """Answers that are complete: at least one, except where the time (seconds) passed before.

        Raises `EngineError` if the engine has stopped; what was finished before comes first.
        """
        if self._failure is not None:
            raise self._failure
        results: list[Answer] = []
        try:
            while self._wait(0.0 if results else timeout):
                results.extend(cast("list[Answer]", self._receive()))
        except MiaBatchError as error:
            self._failure = error
            if not results:  # what was finished before comes first
                raise
        return results

    def close(self) -> None:
        """End the engine; within seconds, by force where it must be."""
        if self._connection.closed:
            return
        try:
            self._connection.send(None)
            deadline = monotonic() + _SECONDS_TO_CLOSE
            while self._connection.poll(max(0.0, deadline - monotonic())):
                self._connection.recv()  # results that nobody waits for
        except (OSError, EOFError):
            pass  # it has ended
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not self._connection.closed:
            self._end()  # nobody waits for what it still does

    def _send(self, message: EngineSpec | Request | str) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._why_ended() from error

    def _wait(self, timeout: float | None) -> bool:
        """Wait for a message; the end of the worker is an error, even if a child of it lives on."""
        if self._connection.closed:
            raise self._why_ended()
        ready = wait([self._connection, self._exit], timeout)
        if ready and self._connection not in ready:
            raise self._why_ended()
        return bool(ready)

    def _receive(self) -> object:
        """Wait for the next message; an exception is raised here."""
        try:
            message = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._why_ended() from error
        if isinstance(message, MiaBatchError):
            raise message
        return message

    def _why_ended(self) -> MiaBatchError:
        """Find what the worker said last, or else how its process ended."""
        if self._connection.closed:
            return EngineError("the engine has been closed; start another")
        with suppress(EOFError, OSError):
            while self._connection.poll(0.0):
                if isinstance(message := self._connection.recv(), MiaBatchError):
                    return message
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_DIE)
        return EngineError(_explain_exit(self._process.poll(), self._log))

    def _end(self) -> None:
        """Leave nothing behind: neither the process nor what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()
        os.close(self._exit)


def _spawn(connection: Connection, log: Path) -> subprocess.Popen[bytes]:
    """Start a worker in a group of its own, which no Ctrl-C from the terminal reaches."""
    with log.open("ab") as output:
        return subprocess.Popen(
            _command(connection.fileno(), log),
            pass_fds=[connection.fileno()],
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _command(descriptor: int, log: Path) -> list[str]:
    """Run the worker with this process's module path, as multiprocessing does."""
    arguments = f"{descriptor}, {os.getpid()}, {str(log)!r}"
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from mia_batch.evidence.worker import main; main({arguments})"
    )
    return [sys.executable, "-X", "faulthandler", "-c", code]


def _explain_exit(code: int | None, log: Path) -> str:
    if code == -signal.SIGKILL:
        return (
            "the engine's process was killed, most likely because the machine ran out of memory; "
            "take a smaller dtype, or a smaller max_model_len or max_num_seqs through --engine-arg"
        )
    if code is not None and code < 0:
        ending = f"was ended by {signal.Signals(-code).name}"
    else:
        ending = f"ended with exit code {code}"
    return f"the engine's process {ending} ({_last_line(log)}); the whole log is in {log}"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
