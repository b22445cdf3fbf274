"""What the system says where it refuses to read or write."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["system_errors", "system_number", "system_reason"]


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Raise RunFolderError with the system's reason where ``path`` cannot be written."""
    try:
        yield
    except (OSError, pl.exceptions.ComputeError) as error:
        if (reason := system_reason(error)) is None:
            raise
        msg = f"{path} cannot be written: {reason}; make room or choose another folder"
        raise RunFolderError(msg) from error


def system_reason(error: Exception) -> str | None:
    """Return what the system said, such as "No space left on device"; None if it said nothing."""
    number = system_number(error)
    return None if number is None else os.strerror(number)


def system_number(error: BaseException) -> int | None:
    """Return the system's number of an error.

    Polars passes the system's errors on in its own, with their number in the text.
    """
    number: int | None = getattr(error, "errno", None)
    if number is None and (found := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(found[1])
    return number
