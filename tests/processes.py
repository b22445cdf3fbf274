"""Waiting for what other processes do."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = [sys.executable, str(Path(__file__).parent / "command" / "__main__.py")]
"""``mia-batch`` as a program of its own, which permutes as little as the tests' own process."""

HANGS = 900.0
"""Seconds after which something hangs, on however slow and busy a machine."""


def wait_until(happened: Callable[[], object], what: str) -> None:
    """Look again and again."""
    deadline = time.monotonic() + HANGS
    while not happened():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: not is_alive(pid), f"process {pid} ends")


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    listed = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for child in " ".join(listed).split()]
