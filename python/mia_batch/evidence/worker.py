"""The engine's own process: requests come in over a pipe, results go out.

Started by :mod:`mia_batch.evidence.process`. It ends when the pipe closes or the parent dies,
whatever the engine is doing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from shutil import which
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

from mia_batch.errors import EngineError, RequestError
from mia_batch.evidence.engines.registry import engine_types, load_engine
from mia_batch.models.weights import cause_of, first_error_in

if TYPE_CHECKING:
    from mia_batch.evidence.request import Engine, EngineSpec, Request


_PARENT_CHECK_SECONDS = 1.0
_COMPILERS = ("g++", "clang++")
_CAUSE_IN_LOG = ("root cause above", "trace (above)")  # vLLM, of an error in its own processes

_Requests: TypeAlias = "SimpleQueue[Request | str | None]"  # a model to turn to; None = no more
_Answers: TypeAlias = "SimpleQueue[object]"


def main(descriptor: int, parent: int, log: str) -> None:
    """Serve one engine until the parent closes it.

    ``descriptor`` is of this process's end of the pipe, ``parent`` the parent's process id, ``log``
    the file that this process writes to.
    """
    log_start = Path(log).stat().st_size
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    connection = Connection(descriptor)
    spec: EngineSpec = connection.recv()
    _set_environment(spec)
    Thread(target=end_with_parent, args=(parent,), daemon=True).start()
    requests: _Requests = SimpleQueue()
    Thread(target=_receive, args=(connection, requests), daemon=True).start()
    answers: _Answers = SimpleQueue()
    sender = Thread(target=_send, args=(connection, answers), daemon=True)
    sender.start()
    try:
        engine = load_engine(spec)
        answers.put(engine.info)
        _serve(engine, requests, answers)
        engine.close()
    except RequestError as error:
        answers.put(error)
    except Exception as error:
        answers.put(_explain(error, spec.engine, log, log_start))
        traceback.print_exc()
    answers.put(None)
    sender.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what the libraries do at exit takes seconds and frees nothing that is not freed


def _set_environment(spec: EngineSpec) -> None:
    """Set what the engine's libraries read when they are imported; the user's own values stay."""
    wanted = {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if on_cpu := engine_types()[spec.engine].on_cpu():
        wanted["OMP_NUM_THREADS"] = "1"  # more threads spin against each other and other processes
    slow = on_cpu and spec.engine_args.get("enforce_eager", True)
    if slow or (spec.kind == "logprobs" and not any(map(which, _COMPILERS))):
        wanted["TORCH_COMPILE_DISABLE"] = "1"  # vLLM would compile what finds ranks, for nothing
    if spec.tensor_parallel_size == 1:
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def end_with_parent(parent: int) -> None:
    """End this process group once the parent is gone, even if a copy of the pipe lives on."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    _end_group()


def _receive(connection: Connection, requests: _Requests) -> None:
    """Empty the pipe at all times, so that the parent never waits to send."""
    try:
        while (request := connection.recv()) is not None:
            requests.put(request)
    except (EOFError, OSError):
        _end_group()
    requests.put(None)


def _send(connection: Connection, answers: _Answers) -> None:
    """Send what is ready, so that the engine never waits for the parent to read."""
    try:
        while (answer := answers.get()) is not None:
            connection.send(answer)
    except OSError:
        _end_group()


def _end_group() -> None:
    os.killpg(0, signal.SIGKILL)


def _explain(error: Exception, engine: str, log: str, log_start: int) -> EngineError:
    if isinstance(error, EngineError):
        cause = str(error)
    else:
        cause = f"the {engine} engine stopped ({cause_of(error)})"
    if any(words in str(error.__cause__) for words in _CAUSE_IN_LOG):
        written = Path(log).read_bytes()[log_start:].decode(errors="replace")
        cause = f"{cause}: {first_error_in(written)}"
    return EngineError(f"{cause}; the engine's log is {log}")


def _serve(engine: Engine, requests: _Requests, answers: _Answers) -> None:
    """Feed the engine and pass its results on, until the parent says that all is done."""
    open_requests = 0
    while True:
        for request in _waiting(requests, block=open_requests == 0):
            if request is None:
                return
            if isinstance(request, str):
                engine.turn_to(request)  # type: ignore[attr-defined] # of those that can
                answers.put(engine.info)
                continue
            engine.submit(request)
            open_requests += 1
        if results := engine.step():
            open_requests -= len(results)
            answers.put(results)


def _waiting(requests: _Requests, *, block: bool) -> list[Request | str | None]:
    """Everything that has arrived; with ``block`` at least one."""
    waiting = [requests.get()] if block else []
    try:
        while True:
            waiting.append(requests.get_nowait())
    except Empty:
        return waiting
