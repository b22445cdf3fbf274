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
from typing import TYPE_CHECKING

from mia_batch.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["connected", "why_no_ray"]

_SECONDS_TO_ANSWER = 10.0
_OWN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ""}
"""What a Ray of this machine is started with: a token of its own, which no file holds."""


def why_no_ray() -> str | None:
    """Say why Ray cannot be used here; None where it can. Nothing is imported."""
    if find_spec("ray") is None:
        return "the package ray is not installed (pip install 'mia-batch[ray]')"
    return None


@contextmanager
def connected(address: str | None, n_cpus: int | None = None) -> Iterator[None]:
    """Join the cluster at an address (``auto``: the one that runs here); None starts one here.

    A connection that exists already is used, and stays. Raises `EngineError` if the cluster cannot
    be reached.
    """
    own = {} if address or "ray" in sys.modules else _OWN  # which Ray reads as it is imported
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    with _environment(own):
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
            msg = f"setting 'ray': {where} cannot be used: {_first_line(error)}"
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


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Set variables that nobody has set, and take them away again."""
    new = {} if wanted.keys() & os.environ.keys() else wanted
    os.environ.update({name: value or secrets.token_hex(32) for name, value in new.items()})
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


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
