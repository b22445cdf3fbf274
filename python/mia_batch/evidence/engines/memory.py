"""Memory of this machine that a model may still take."""

from __future__ import annotations

from pathlib import Path

__all__ = ["available_memory"]

_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes of main memory that can be taken without swapping.

    Returns
    -------
    int
        What the kernel calls available, or what the control group of a container leaves where that
        is less.
    """
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    machine = int(meminfo["MemAvailable"].split()[0]) * 1024
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is None or used is None:
        return machine
    return min(machine, limit - used)


def _number(path: Path) -> int | None:
    """Read the number in a kernel file; null without the file or where it says ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
