"""Starts the training program and passes on what it says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from mia_batch.errors import MiaBatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mia_batch.demo.settings import DemoSettings

__all__ = ["run_training"]

_LOG = "train.log"


def run_training(folder: Path, settings: DemoSettings, notify: Callable[[str], None]) -> None:
    """Train on ``folder/corpus.parquet``; the checkpoint is ``folder/model``.

    Parameters
    ----------
    folder
        Where the corpus is; what the libraries write goes to ``train.log`` in it.
    settings
        Sizes and seed.
    notify
        Receives each line of progress.

    Raises
    ------
    MiaBatchError
        If the training ends early.
    """
    command = [sys.executable, "-P", "-m", "mia_batch.demo.train", str(folder)]
    with (
        (folder / _LOG).open("wb") as log,
        subprocess.Popen(
            [*command, json.dumps(asdict(settings))],
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
            raise
    if process.returncode:
        msg = f"the training of the demo's model {_explain(process.returncode, folder / _LOG)}"
        raise MiaBatchError(msg)


def _explain(code: int, log: Path) -> str:
    if code == -signal.SIGKILL:
        return "was killed, most likely because the machine ran out of memory; free some, try again"
    lines = log.read_text("utf-8", errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return f"ended with exit code {code}: {last}"
