"""llama.cpp's own server, from a package, in a process of its own; ends with its input."""

import platform
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

_CONTEXT = 1024  # tokens of a slot
_CPU = Path("/proc/cpuinfo")


def _find_obstacle() -> str | None:
    if find_spec("xllamacpp") is None:
        return "xllamacpp is not installed"
    is_x86 = platform.machine() in {"x86_64", "AMD64"}
    if is_x86 and _CPU.exists() and "avx2" not in _CPU.read_text().split():
        return "xllamacpp needs a processor with AVX2"
    return None


_obstacle = _find_obstacle()
needs_llama_server = pytest.mark.skipif(_obstacle is not None, reason=_obstacle or "")


@contextmanager
def serving(model: Path, slots: int) -> Iterator[str]:
    """Start a server of a GGUF file; its address, without the version."""
    command = [sys.executable, "-m", "tests.llama_server", str(model), str(slots)]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, f"the server ended with status {process.wait()}"
            yield address
        finally:
            process.stdin.close()


def read_metrics(address: str) -> dict[str, float]:
    """Numbers that the server counts, by their names."""
    with urllib.request.urlopen(f"{address}/metrics") as page:
        lines = page.read().decode().splitlines()
    pairs = [line.split() for line in lines if not line.startswith("#")]
    return {name.removeprefix("llamacpp:"): float(value) for name, value in pairs}


def _serve(model: str, slots: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = _CONTEXT * slots
    params.n_parallel = slots
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.cache_ram_mib = 0  # what a slot has read is kept there and nowhere else
    params.port = 0
    params.warmup = False
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
