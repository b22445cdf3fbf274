"""CSV files: comma-separated, with a header, quoted as in RFC 4180.

CSV has no types and no null: every column is text, and an empty field is null. Blank lines are
skipped. The reader is Python's, in its strict mode, because it refuses what others repair.
"""

from __future__ import annotations

import csv
import io
import sys
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.corpus.formats.agree import agreed_schema
from mia_batch.corpus.formats.lines import broken, not_utf8, open_bytes
from mia_batch.errors import CorpusError
from mia_batch.tables import in_batches

if TYPE_CHECKING:
    import _csv
    from collections.abc import Iterator, Sequence

    from mia_batch.corpus.files import SourceFile

__all__ = ["locate", "read_rows", "read_schema"]

_BATCH_CHARS = 4 << 20
_Record = tuple[int, list[str]]  # first line, fields


def read_schema(files: Sequence[SourceFile]) -> pl.Schema:
    """Return the columns that all files share, each of type String."""
    return agreed_schema({str(file.path): _file_schema(file) for file in files})


def read_rows(
    files: Sequence[SourceFile], schema: pl.Schema, columns: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """Yield the rows of all files in order, some megabytes at a time."""
    for file in files:
        for header, records in _batches(file):
            fields = zip(*(record for _, record in records), strict=True)
            frame = pl.DataFrame(dict(zip(header, fields, strict=True)), schema_overrides=schema)
            yield frame.select(pl.when(pl.col(name) != "").then(pl.col(name)) for name in columns)


def locate(files: Sequence[SourceFile], row: int) -> str:
    """Say where a row is, counted from 0 over all files: the line where it begins."""
    for file in files:
        for _, records in _batches(file):
            if row < len(records):
                return f"{file.path}, line {records[row][0]}"
            row -= len(records)
    raise IndexError(row)


def _file_schema(file: SourceFile) -> pl.Schema:
    _, header = next(_records(file), (1, []))
    if not header:
        msg = f"{file.path} is empty; its first line must name the columns"
        raise CorpusError(msg)
    for number, name in enumerate(header, 1):
        if not name or name in header[: number - 1]:
            what = f"is named {name!r} like one before it" if name else "has no name"
            msg = f"{file.path}, line 1: column {number} {what}; give it a name of its own"
            raise CorpusError(msg)
    return pl.Schema(dict.fromkeys(header, pl.String()))


def _batches(file: SourceFile) -> Iterator[tuple[list[str], list[_Record]]]:
    """Yield the header with some records at a time; each has as many fields as the header."""
    records = _records(file)
    _, header = next(records, (1, []))
    for batch in in_batches(records, lambda record: sum(map(len, record[1])), _BATCH_CHARS):
        for line, record in batch:
            if len(record) != len(header):
                what = f"{len(record)} fields where the header has {len(header)}"
                raise broken(file, line, what)
        yield header, batch


def _records(file: SourceFile) -> Iterator[_Record]:
    """Yield the records that are not blank lines, the header first."""
    with open_bytes(file) as raw:
        reader = csv.reader(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), strict=True)
        line = 1
        try:
            while (record := _next_record(reader)) is not None:
                if record:
                    yield line, record
                line = reader.line_num + 1
        except csv.Error as error:
            raise broken(file, line, f"not valid CSV, {error}") from error
        except UnicodeDecodeError as error:
            raise not_utf8(file) from error


def _next_record(reader: _csv.Reader) -> list[str] | None:
    """Read a record; meanwhile the process-wide limit of 128 KiB a field is lifted."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)
