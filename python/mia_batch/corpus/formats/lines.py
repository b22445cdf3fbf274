"""Text files: opened compressed or not, and their first line that is not UTF-8."""

from __future__ import annotations

import gzip
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from mia_batch.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.corpus.files import SourceFile

__all__ = ["BOM", "broken", "not_utf8", "open_bytes"]

BOM = b"\xef\xbb\xbf"
"""The byte-order mark that some editors put before UTF-8 text; not part of the text."""


@contextmanager
def open_bytes(file: SourceFile) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes; one that ends in ``.gz`` is decompressed."""
    packed = file.path.name.lower().endswith(".gz")
    try:
        with gzip.open(file.path) if packed else file.path.open("rb") as stream:
            yield cast("IO[bytes]", stream)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        msg = f"{file.path} cannot be read: {reason}"
        raise CorpusError(msg) from error


def broken(file: SourceFile, line: int, what: object) -> CorpusError:
    """Return the error for a line, counted from 1, that does not follow the format."""
    return CorpusError(f"{file.path}, line {line}: {what}; correct or remove the line")


def not_utf8(file: SourceFile) -> CorpusError:
    """Return the error for a file that is not UTF-8, naming its first wrong line."""
    with open_bytes(file) as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                what = f"byte 0x{line[error.start]:02x} is not valid UTF-8"
                return CorpusError(f"{file.path}, line {number}: {what}; save the file as UTF-8")
    return CorpusError(f"{file.path} changed while it was read; start again")
