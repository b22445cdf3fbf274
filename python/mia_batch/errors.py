"""The exceptions that the package raises on purpose, and a line about foreign ones."""

import re


class MiaBatchError(Exception):
    """Base of every exception that the package raises on purpose."""


class RequestError(MiaBatchError, ValueError):
    """A request cannot be done as asked; found before any model is loaded."""


class SettingsError(RequestError):
    """A setting is unknown, malformed, or contradicts another."""


class CorpusError(RequestError):
    """The input cannot be read as a corpus; the message names file, row and column."""


class RunFolderError(MiaBatchError, RuntimeError):
    """The run folder is unwritable, in use by a live run, or has other settings."""


class DamagedTableError(RunFolderError):
    """A table in the run folder is damaged; the same command rebuilds it."""


class EngineError(MiaBatchError, RuntimeError):
    """An engine cannot start or cannot continue."""


class SchemaMismatchError(MiaBatchError, TypeError):
    """A table does not have the columns or types that a stage needs."""


# What foreign libraries raise, in one line.

_MAX_MESSAGE = 300  # characters of a foreign message, which may quote a whole file


def describe_error(error: BaseException) -> str:
    """Return a foreign exception in one line, for the end of a message of ours."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):  # its first line only counts
        text = error.errors()[0]["msg"]
    else:
        lines = str(error).strip().splitlines()
        text = lines[0] if lines else "no message"
    return f"{type(error).__name__}: {_shorten(text)}"


def find_first_error(log: str) -> str:
    """Return the first exception in a log; later ones mostly follow from it."""
    match = re.search(r"(\w+(?:Error|Exception): .+)", log)
    return _shorten(match[1]) if match else "the log names no error"


def _shorten(line: str) -> str:
    text = line.strip().rstrip(".")
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + " ..."
