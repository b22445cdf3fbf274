"""The process in which a model is trained: it is started, heard, and ends with this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mia_batch.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["spawn", "train"]

_ENVIRONMENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_DISABLED": "true",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


def train(
    work: Path,
    say: Callable[[str], None],
    start: Callable[[Path, Path], subprocess.Popen[str]],
) -> dict[str, Any]:
    """Train in a process of its own, which ends with this one."""
    log = work / "training.log"
    process = start(work, log)
    told: dict[str, Any] = {}
    try:
        for line in process.stdout or ():
            if (said := _told(line)) is None:
                continue
            told = said
            if (sentence := _sentence(told)) is not None:
                say(sentence)
        code_of_end = process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if "done" in told and code_of_end == 0:
        return {"losses": told["done"], "privacy": told["privacy"]}
    if "failed" in told:
        msg = f"the model cannot be tuned: {told['failed']}; the whole log is in {log}"
    elif code_of_end == -signal.SIGKILL:
        msg = (
            "the training was killed, most likely because the machine ran out of memory; take "
            "smaller batches, or fewer tokens of a text"
        )
    else:
        msg = f"the training ended with exit code {code_of_end}; its log is {log}"
    raise EngineError(msg)


def spawn(
    work: Path, log: Path, share: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[str]:
    """Start the training with its share of the machine; what libraries print goes to the log."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from mia_batch.finetuning.training import main; "
        f"main({str(work)!r}, {os.getpid()})"
    )
    with log.open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env={**_ENVIRONMENT, **os.environ, **share},
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def _told(line: str) -> dict[str, Any] | None:
    """Read what the training tells; None of what a library prints."""
    with suppress(ValueError):
        if isinstance(told := json.loads(line), dict):
            return told
    return None


def _sentence(told: dict[str, Any]) -> str | None:
    if "damaged" in told:
        then = f"goes on from {told['then']}" if told["then"] else "begins anew"
        return f"{told['damaged']} is damaged or was cut short; training {then}"
    if "epoch" not in told:
        return None
    losses = {"loss": "loss", "held_out_loss": "on held-out texts"}
    found = ", ".join(f"{text} {told[name]:.3f}" for name, text in losses.items() if name in told)
    return f"epoch {told['epoch']} of {told['of']}: {found}"
