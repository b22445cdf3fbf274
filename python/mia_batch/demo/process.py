"""Starts the training program and passes on its progress."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from mia_batch.errors import MiaBatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mia_batch.demo.settings import DemoSettings

__all__ = ["run_training"]

_LOG = "train.log"


def run_training(folder: Path, settings: DemoSettings, notify: Callable[[str], None]) -> None:
    """Train on ``folder/corpus.parquet``; the output of the libraries goes to ``train.log``."""
    with (
        (folder / _LOG).open("wb") as log,
        subprocess.Popen(
            _command(folder, settings),
            process_group=0,  # Ctrl-C is for this process, which ends the other
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                notify(line.rstrip("\n"))
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode:
        msg = f"the training of the demo's model {_explain(process.returncode, folder / _LOG)}"
        raise MiaBatchError(msg)


def _command(folder: Path, settings: DemoSettings) -> list[str]:
    """Run the program with this process's module path, as multiprocessing does."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from pathlib import Path; "
        "from mia_batch.demo.settings import DemoSettings; from mia_batch.demo.train import main; "
        f"main(Path({str(folder)!r}), {settings!r})"
    )
    return [sys.executable, "-c", code]


def _explain(code: int, log: Path) -> str:
    if code == -signal.SIGKILL:
        return "was killed, most likely because the machine ran out of memory; free some, try again"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    lines = log.read_text("utf-8", errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"ended with exit code {code}: {last}"
