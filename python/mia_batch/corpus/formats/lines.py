"""Text files: unpacked, decoded, and cut into lines that fit in memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import sys
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mia_batch.corpus.books.book import declared_encoding
from mia_batch.errors import CorpusError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mia_batch.corpus.files import SourceFile

__all__ = [
    "BOM",
    "PACKED",
    "BadInputError",
    "EncodingError",
    "Reading",
    "bounded",
    "open_bytes",
    "open_text",
    "read_lines",
]

BOM = codecs.BOM_UTF8
"""The byte-order mark that some editors put before UTF-8 text; not part of the text."""
_LONGEST_LINE = 64 << 20  # a small file may unpack to one line without end


class BadInputError(CorpusError):
    """A file or row that cannot be read, while others of the corpus can.

    Of a file, ``place`` is its path and ``what`` goes on with the sentence.
    """

    def __init__(self, place: Path | str, what: str, way_out: str) -> None:
        super().__init__(f"{place}{' ' if isinstance(place, Path) else ': '}{what}; {way_out}")
        self.place = str(place)
        self.what = what


class EncodingError(BadInputError):
    """A text file that is not in its encoding."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read, and which of them and of their rows were set aside.

    ``encoding`` is that of text files that declare none; None is UTF-8. ``rejected`` says where
    what was set aside is, and why; None refuses the first that cannot be read.
    """

    encoding: str | None = None
    rejected: dict[str, str] | None = None

    def reject(self, error: BadInputError) -> None:
        """Remember a bad row, or raise the error where the first one is refused."""
        if self.rejected is None:
            raise error
        self.rejected.setdefault(error.place, error.what)


PACKED: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": zstd.open,
}
"""How files are unpacked, by the ending of their name."""


@contextmanager
def open_bytes(file: SourceFile) -> Iterator[io.BufferedReader]:
    """Open a file for reading bytes, unpacked."""
    opened: Callable[[Path], Any] = PACKED.get(file.path.suffix.lower(), io.FileIO)
    try:
        with io.BufferedReader(opened(file.path)) as stream:
            yield stream
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadInputError(file.path, f"cannot be read: {reason}", "restore the file") from error


@contextmanager
def open_text(file: SourceFile, reading: Reading, newline: str = "") -> Iterator[io.TextIOWrapper]:
    """Open a file for reading text; ``newline`` as of `io.TextIOWrapper`."""
    with open_bytes(file) as stream:
        encoding = declared_encoding(stream.peek(4)[:4]) or reading.encoding or "utf-8"
        try:
            yield io.TextIOWrapper(stream, encoding=encoding, newline=newline)
        except UnicodeDecodeError as error:
            raise _not_decodable(file, encoding) from error


def read_lines(file: SourceFile, reading: Reading) -> Iterator[bytes]:
    """Yield the lines of a text file in UTF-8, each with its end; what is UTF-8 is not checked."""
    with open_bytes(file) as stream:
        declared = declared_encoding(stream.peek(4)[:4])
        if (declared or reading.encoding or "utf-8").startswith("utf-8"):
            stream.read(len(BOM) if declared else 0)
            yield from bounded(file, stream.readline)
            return
    with open_text(file, reading, "\n") as text:
        yield from (line.encode() for line in bounded(file, text.readline))


def bounded(file: SourceFile, readline: Callable[[int], Any]) -> Iterator[Any]:
    """Yield lines; one without end would fill the memory."""
    while line := readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            what = f"has a line of more than {_LONGEST_LINE >> 20} MiB"
            raise BadInputError(file.path, what, "cut it into several texts")
        yield line


def _not_decodable(file: SourceFile, encoding: str) -> EncodingError:
    known = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8"}.get(encoding, encoding)
    way_out = "save the file as UTF-8"
    with open_bytes(file) as stream:
        decoder = codecs.getincrementaldecoder(encoding)()
        for number, line in enumerate(bounded(file, stream.readline), 1):
            try:
                decoder.decode(line)
            except UnicodeDecodeError as error:
                where, byte = f"{file.path}, line {number}", error.object[error.start]
                return EncodingError(where, f"byte 0x{byte:02x} is not valid {known}", way_out)
    return EncodingError(file.path, f"ends within a character of {known}", way_out)
