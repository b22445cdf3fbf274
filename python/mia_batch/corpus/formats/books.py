"""Files that are whole documents: ``.txt``, ``.html`` and ``.epub``, one document each."""

from __future__ import annotations

import hashlib
import re
from typing import IO, TYPE_CHECKING, Any

import polars as pl

from mia_batch.corpus.books.boilerplate import find_cut, tidy
from mia_batch.corpus.books.book import LEFT_OUT, MOST_CHARS, Book, BookError, codec, decode
from mia_batch.corpus.books.epub import read_epub
from mia_batch.corpus.books.markup import read_html
from mia_batch.corpus.formats.lines import BadInputError, EncodingError, open_bytes
from mia_batch.tables import in_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.corpus.files import SourceFile
    from mia_batch.corpus.formats.lines import Reading

__all__ = ["places", "read_rows", "read_schema"]

_BATCH_BYTES = 4 << 20
_ROW_BYTES = 1 << 10  # what a row costs besides its text
_NUMBERS = ("n_characters", "cut_start", "cut_inside", "cut_end", *LEFT_OUT)
_SCHEMA = pl.Schema(
    {
        **dict.fromkeys(("document_id", "text", "title", "author", "isbn", "sha256"), pl.String()),
        **dict.fromkeys(_NUMBERS, pl.UInt32()),
    }
)
_HEADER_BYTES = 20_000
_DECLARED = re.compile(
    r"^\W*(?:character set (?:en)?cod\w+|[ck]odierung|encodage|codific\w+|encoding)[ \t]*:(.*)",
    re.IGNORECASE | re.MULTILINE,
)


def read_schema(_files: Sequence[SourceFile], _reading: Reading) -> pl.Schema:
    """Return the columns, which are the same whatever the files are."""
    return _SCHEMA


def read_rows(
    files: Sequence[SourceFile], schema: pl.Schema, columns: Sequence[str], reading: Reading
) -> Iterator[pl.DataFrame]:
    """Yield one row per file; line ends of texts are kept, a byte-order mark is not."""
    needs_content = set(columns) != {"document_id"}
    rows = (_row(file, reading) if needs_content else {"document_id": file.name} for file in files)
    for batch in in_batches(rows, lambda row: len(row.get("text", "")) + _ROW_BYTES, _BATCH_BYTES):
        yield pl.DataFrame(batch, schema=schema).select(columns)


def places(files: Sequence[SourceFile], _reading: Reading) -> Iterator[str]:
    """Name the file that is each row."""
    return (str(file.path) for file in files)


def _row(file: SourceFile, reading: Reading) -> dict[str, Any]:
    with open_bytes(file) as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        try:
            book = _read(file, stream, reading.encoding)
        except BookError as error:
            what, _, way_out = str(error).rpartition("; ")
            if error.line is None:
                raise BadInputError(file.path, what, way_out) from error
            raise EncodingError(f"{file.path}, line {error.line}", what, way_out) from error
    text, left_out = tidy(book.text)
    left_out.update(book.left_out)
    cut = find_cut(text)
    return {
        "document_id": file.name,
        "text": text[cut.start : cut.end],
        "title": book.title or cut.title,
        "author": book.author or cut.author,
        "isbn": book.isbn,
        "sha256": sha256,
        "n_characters": len(text) + left_out["characters"],
        "cut_start": cut.start,
        "cut_inside": left_out["characters"],
        "cut_end": len(text) - cut.end,
        **{name: left_out[name] for name in LEFT_OUT},
    }


def _read(file: SourceFile, stream: IO[bytes], encoding: str | None) -> Book:
    ending = file.path.suffix.lower()
    if ending == ".epub":
        return read_epub(stream, encoding)
    content = stream.read(MOST_CHARS + 1)
    if ending != ".txt":
        return read_html(content, encoding)
    if len(content) > MOST_CHARS:
        msg = f"is longer than {MOST_CHARS >> 20} MiB; split the book"
        raise BookError(msg)
    header = content[:_HEADER_BYTES].decode("ascii", "replace")
    found = _DECLARED.search(header) if "gutenberg" in header.lower() else None
    names = re.findall(r"[\w.-]+", found[1]) if found else []
    return Book(
        decode(content, declared=next(filter(codec, reversed(names)), None), given=encoding)
    )
