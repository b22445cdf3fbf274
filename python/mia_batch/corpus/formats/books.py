"""Files that are whole documents: ``.txt``, ``.html`` and ``.epub``, one document each."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.corpus.books.boilerplate import find_cut
from mia_batch.corpus.books.book import Book, BookError
from mia_batch.corpus.books.epub import read_epub
from mia_batch.corpus.books.markup import read_html
from mia_batch.corpus.formats.lines import BOM, BadInputError, not_utf8, open_bytes
from mia_batch.tables import in_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.corpus.files import SourceFile
    from mia_batch.corpus.formats.lines import Reading

__all__ = ["places", "read_rows", "read_schema"]

_BATCH_BYTES = 4 << 20
_ROW_BYTES = 1 << 10  # what a row costs besides its text
_SCHEMA = pl.Schema(
    {
        **dict.fromkeys(("document_id", "text", "title", "author", "isbn", "sha256"), pl.String()),
        **dict.fromkeys(("n_characters", "cut_start", "cut_end"), pl.UInt32()),
    }
)


def read_schema(_files: Sequence[SourceFile], _reading: Reading) -> pl.Schema:
    """Return the columns, which are the same whatever the files are."""
    return _SCHEMA


def read_rows(
    files: Sequence[SourceFile], schema: pl.Schema, columns: Sequence[str], _reading: Reading
) -> Iterator[pl.DataFrame]:
    """Yield one row per file; line ends of texts are kept, a byte-order mark is not."""
    needs_content = set(columns) != {"document_id"}
    rows = (_row(file) if needs_content else {"document_id": file.name} for file in files)
    for batch in in_batches(rows, lambda row: len(row.get("text", "")) + _ROW_BYTES, _BATCH_BYTES):
        yield pl.DataFrame(batch, schema=schema).select(columns)


def places(files: Sequence[SourceFile], _reading: Reading) -> Iterator[str]:
    """Name the file that is each row."""
    return (str(file.path) for file in files)


def _row(file: SourceFile) -> dict[str, Any]:
    with open_bytes(file) as stream:
        content = stream.read()
    book = _read(file, content)
    cut = find_cut(book.text)
    return {
        "document_id": file.name,
        "text": book.text[cut.start : cut.end],
        "title": book.title or cut.title,
        "author": book.author or cut.author,
        "isbn": book.isbn,
        "sha256": hashlib.sha256(content).hexdigest(),
        "n_characters": len(book.text),
        "cut_start": cut.start,
        "cut_end": len(book.text) - cut.end,
    }


def _read(file: SourceFile, content: bytes) -> Book:
    ending = file.path.suffix.lower()
    try:
        if ending == ".epub":
            return read_epub(io.BytesIO(content))
        if ending != ".txt":
            return read_html(content)
        return Book(content.removeprefix(BOM).decode())
    except UnicodeDecodeError as error:
        raise not_utf8(file) from error
    except BookError as error:
        what, _, way_out = str(error).rpartition("; ")
        raise BadInputError(file.path, what, way_out) from error
