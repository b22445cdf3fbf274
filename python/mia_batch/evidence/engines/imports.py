"""Importing the libraries behind the engines."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["kept_for_good"]


@contextmanager
def kept_for_good() -> Iterator[None]:
    """Import large libraries into a process of an engine's own.

    What they define is never garbage: Python's collector, which would look through it again and
    again, then and later, leaves it out. That is an eighth of the time of a start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
