"""Workers forked from a process that has loaded the engines' libraries: they start in a moment."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "mia_batch.evidence.worker",
        "mia_batch.evidence.engines.transformers",
        "mia_batch.evidence.engines.transformers_logprobs",
        "mia_batch.evidence.engines.masked.engine",
        "transformers.models.llama.modeling_llama",
        *(["mia_batch.evidence.engines.vllm"] if find_spec("vllm") else []),
    ]
)


class ForkedWorker:
    """Looks to `EngineProcess` like the process that it would start."""

    def __init__(self, connection: Connection, log: Path) -> None:
        self._process = _CONTEXT.Process(target=_work, args=(connection, str(log)))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self.poll() is None:
            cmd = "a worker"
            raise subprocess.TimeoutExpired(cmd, timeout or 0.0)
        return self.poll()


def _work(connection: Connection, log: str) -> None:
    from mia_batch.evidence.worker import main

    os.setpgid(0, 0)
    for path, flags, descriptors in (
        (os.devnull, os.O_RDONLY, (0,)),
        (log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, (1, 2)),
    ):
        opened = os.open(path, flags)
        for descriptor in descriptors:
            os.dup2(opened, descriptor)
        os.close(opened)
    main(connection.fileno(), os.getppid(), log)
