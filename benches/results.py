"""Where a bench writes its figures, and what machine they come from."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mia_batch.extras.speed.machine import describe_machine

__all__ = ["append_results", "commit", "machine", "versions"]

_FOLDER = Path(__file__).parent / "results"


def machine() -> str:
    """Name the processor, its cores, AVX-512 where it has it, and GPUs."""
    found = describe_machine()
    return ", ".join([found["cpu"], f"{found['cores']} cores", *found["gpus"]])


def commit() -> str:
    """Name the commit, with ``-dirty`` behind it where files other than results differ from it."""
    changed = _output(
        "git", "status", "--porcelain", "--", ":/", ":(top,exclude)benches/results"
    )
    return _output("git", "rev-parse", "--short=12", "HEAD") + (
        "-dirty" if changed else ""
    )


def versions(*packages: str) -> dict[str, str]:
    """Give versions of Python, rustc and some packages."""
    found = {
        "python": platform.python_version(),
        "rustc": _output("rustc", "--version"),
    }
    return found | {package: version(package) for package in packages}


def append_results(name: str, figures: dict[str, Any]) -> None:
    """Store the figures of one run of a bench as one more line of ``results/NAME.jsonl``."""
    _FOLDER.mkdir(exist_ok=True)
    taken = {"taken": datetime.now(UTC).date().isoformat(), "commit": commit()}
    line = json.dumps(taken | {"machine": machine()} | figures)
    with (_FOLDER / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _output(*command: str) -> str:
    done = subprocess.run(
        command, cwd=_FOLDER.parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
