"""A connection to a Ray cluster, or a Ray of this machine alone."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mia_batch.errors import EngineError
from mia_batch.evidence.executors.ray.failures import is_full, reason_of
from mia_batch.tables.files import is_followed, temporary_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["connected", "marked", "resources", "room", "why_no_ray"]

_SECONDS_TO_ANSWER = 10.0
_OWN: dict[str, str] = {}  # what every Ray that this process starts has in its environment


def why_no_ray() -> str | None:
    """Say why Ray cannot be used here; None where it can. Nothing is imported."""
    if find_spec("ray") is None:
        return "the package ray is not installed (pip install 'mia-batch[ray]')"
    return None


@contextmanager
def connected(address: str | None, n_cpus: int | None = None) -> Iterator[None]:
    """Join the cluster at an address (``auto``: the one that runs here); None starts one here.

    A connection that exists already is used, and stays. Raises `EngineError` if the cluster cannot
    be reached, or holds no more objects.
    """
    with _joined(address, n_cpus):
        try:
            yield
        except Exception as error:
            if not is_full(error):
                raise
            msg = (
                f"Ray's object store is full and cannot spill: {reason_of(error)}; free space on "
                "its disk, or start Ray with more --object-store-memory: the same command goes on"
            )
            raise EngineError(msg) from error


@contextmanager
def _joined(address: str | None, n_cpus: int | None) -> Iterator[None]:
    if not address and "ray" not in sys.modules:  # which reads this as it is imported, and keeps it
        _OWN.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))  # in no file
        _OWN.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")  # loopback only, as on those systems
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    with _environment({} if address else _OWN):
        import ray

        if ray.is_initialized():
            yield
            return
        try:
            _reach(address)
            ray.init(
                address or "local",
                num_cpus=None if address else n_cpus,
                include_dashboard=None if address else False,
                namespace=f"mia-batch-{secrets.token_hex(4)}",
                log_to_driver=False,
                logging_level=logging.CRITICAL,
            )
        except Exception as error:  # of a dozen kinds
            where = f"the Ray cluster at {address!r}" if address else "Ray on this machine"
            msg = f"setting 'ray': {where} cannot be used: {reason_of(error)}"
            raise EngineError(msg) from error
        _hush()
        try:
            if threading.current_thread() is threading.main_thread():
                for number, handler in handlers:  # Ray puts its own there
                    signal.signal(number, handler)
            yield
        finally:
            with suppress(Exception):  # the cluster may be gone
                ray.shutdown()


def resources(each: int) -> dict[str, int]:
    """Say what one worker takes: ``each`` so many GPUs where the cluster has some, else cores."""
    if _resources().get("GPU"):
        return {"num_cpus": 1, "num_gpus": each}
    return {"num_cpus": each}


def room(each: int) -> int:
    """Count the workers that the cluster has room for, free or not; at least one."""
    known = _resources()
    return max(int(known.get("GPU") or known.get("CPU", 0)) // each, 1)


def _resources() -> dict[str, float]:
    import ray

    cluster: Any = ray  # whose functions are partly untyped
    return dict(cluster.cluster_resources())


@contextmanager
def marked(folder: Path) -> Iterator[Path]:
    """Lend a file in a folder, which is there for whoever sees the folder.

    Where the folder is mirrored to a store it is not there: files of others would not reach that.
    """
    mark = temporary_path(folder.resolve() / "cluster")
    if not is_followed(mark):
        mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Set variables that nobody has set, and take them away again."""
    new = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(new)
    before = os.environ.get("RAY_AUTH_MODE")
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
        if before is None:
            os.environ.pop("RAY_AUTH_MODE", None)


def _reach(address: str | None) -> None:
    """Knock at an address; Ray itself would wait for minutes where nobody answers."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()


def _hush() -> None:
    """Keep Ray's pages about lost workers off the terminal; there is no option for that."""
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None
