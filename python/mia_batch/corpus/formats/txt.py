"""A folder of ``.txt`` files: each file is one document, its name below the folder its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.corpus.formats.lines import BOM, not_utf8, open_bytes
from mia_batch.tables import in_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.corpus.files import SourceFile

__all__ = ["locate", "read_rows", "read_schema"]

_BATCH_BYTES = 4 << 20
_FILE_BYTES = 1 << 10  # what a file costs besides its text


def read_schema(_files: Sequence[SourceFile]) -> pl.Schema:
    """Return the two columns: ``document_id`` and ``text``."""
    return pl.Schema({"document_id": pl.String(), "text": pl.String()})


def read_rows(
    files: Sequence[SourceFile], schema: pl.Schema, columns: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """Yield one row per file; line ends are kept, a byte-order mark is not."""
    for group in in_batches(files, lambda file: file.size + _FILE_BYTES, _BATCH_BYTES):
        rows = {
            "document_id": [file.name for file in group],
            "text": [_read(file) for file in group] if "text" in columns else [""] * len(group),
        }
        yield pl.DataFrame(rows, schema=schema).select(columns)


def locate(files: Sequence[SourceFile], row: int) -> str:
    """Name the file that is the row."""
    return str(files[row].path)


def _read(file: SourceFile) -> str:
    with open_bytes(file) as stream:
        content = stream.read()
    try:
        return content.removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        raise not_utf8(file) from error
