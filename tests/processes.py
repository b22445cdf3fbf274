"""Waiting for what other processes do."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

COMMAND = [sys.executable, str(Path(__file__).parent / "command" / "__main__.py")]
"""``mia-batch`` as a program of its own, which permutes as little as the tests' own process."""

HANGS = 900.0
"""Seconds after which something hangs, on however slow and busy a machine."""


def wait_until(happened: Callable[[], object], what: str) -> None:
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


def listening(pid: int) -> dict[str, set[str]]:
    """Addresses at which a process, and all that it has started, wait for connections.

    By the names of their programs.
    """
    found: dict[str, set[str]] = {}
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(pid)
        for process in (started, *started.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                hosts = {
                    each.laddr.ip.removeprefix("::ffff:")  # IPv4 at a socket of IPv6
                    for each in process.net_connections("tcp")
                    if each.status == psutil.CONN_LISTEN
                }
                found.setdefault(process.name(), set()).update(hosts)
    return {name: hosts for name, hosts in found.items() if hosts}


def children(pid: int) -> list[int]:
    listed = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            listed += path.read_text().split()
    return [*map(int, listed)]
