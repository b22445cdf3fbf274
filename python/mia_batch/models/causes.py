"""The cause of a failure of another library, in one line."""

from __future__ import annotations

import re

from pydantic import ValidationError

__all__ = ["cause_of", "first_error_in"]

_LONGEST = 300
_ERROR_LINE = re.compile(r"(\w+(?:Error|Exception): .+)")


def cause_of(error: BaseException) -> str:
    """Type and first line of a foreign exception, for the end of a message of ours."""
    if isinstance(error, ValidationError):  # its first line only counts
        text = error.errors()[0]["msg"]
    else:
        text = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {_shorten(text)}"


def first_error_in(log: str) -> str:
    """Find the first exception that a log tells of; later ones mostly follow from it."""
    found = _ERROR_LINE.search(log)
    return _shorten(found[1]) if found else "the log names no error"


def _shorten(line: str) -> str:
    text = line.strip().rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
