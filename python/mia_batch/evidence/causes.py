"""The cause of a foreign exception in one sentence."""

from __future__ import annotations

from pydantic import ValidationError

__all__ = ["cause_of"]

_LONGEST = 300


def cause_of(error: BaseException) -> str:
    """Type and first line of a foreign exception, for the end of a message of ours.

    Parameters
    ----------
    error
        What another library raised.

    Returns
    -------
    str
        One line of at most a few hundred characters, such as ``ValueError: no such device``.
    """
    if isinstance(error, ValidationError):  # its first line only counts
        return f"{type(error).__name__}: {error.errors()[0]['msg']}"
    lines = str(error).strip().splitlines() or ["no message"]
    text = lines[0].strip().rstrip(".")
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ..."
    return f"{type(error).__name__}: {text}"
