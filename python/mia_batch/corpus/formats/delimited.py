"""Delimited files: commas or tabs, with a header, quoted as in RFC 4180.

They have no types and no null: every column is text, and an empty field is null. Blank lines are
skipped. The reader is Python's, in its strict mode, because it refuses what others repair.
"""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.corpus.formats.columnar import agreed_schema
from mia_batch.corpus.formats.lines import BadInputError, bounded, open_text
from mia_batch.tables import in_batches

if TYPE_CHECKING:
    import _csv
    from collections.abc import Iterator, Sequence

    from mia_batch.corpus.files import SourceFile
    from mia_batch.corpus.formats.lines import Reading

__all__ = ["places", "read_rows", "read_schema"]

_BATCH_CHARS = 4 << 20
_Record = tuple[str, list[str]]  # where it begins, fields


def read_schema(files: Sequence[SourceFile], reading: Reading) -> pl.Schema:
    """Return the columns that all files share, each of type String."""
    return agreed_schema({str(file.path): _file_schema(file, reading) for file in files})


def read_rows(
    files: Sequence[SourceFile], schema: pl.Schema, columns: Sequence[str], reading: Reading
) -> Iterator[pl.DataFrame]:
    """Yield the rows of all files in order, some megabytes at a time."""
    for file in files:
        header, records = _rows(file, reading)
        for batch in in_batches(records, lambda each: sum(map(len, each[1])), _BATCH_CHARS):
            fields = zip(*(record for _, record in batch), strict=True)
            frame = pl.DataFrame(dict(zip(header, fields, strict=True)), schema_overrides=schema)
            yield frame.select(pl.when(pl.col(name) != "").then(pl.col(name)) for name in columns)


def places(files: Sequence[SourceFile], reading: Reading) -> Iterator[str]:
    """Say of every row where it is: the line where it begins."""
    return (where for file in files for where, _ in _rows(file, reading)[1])


def _file_schema(file: SourceFile, reading: Reading) -> pl.Schema:
    header, _ = _rows(file, reading)
    if not header:
        raise BadInputError(file.path, "is empty", "its first line must name the columns")
    for number, name in enumerate(header, 1):
        if not name or name in header[: number - 1]:
            what = f"is named {name!r} like one before it" if name else "has no name"
            what = f"column {number} {what}"
            raise BadInputError(f"{file.path}, line 1", what, "give it a name of its own")
    return pl.Schema(dict.fromkeys(header, pl.String()))


def _rows(file: SourceFile, reading: Reading) -> tuple[list[str], Iterator[_Record]]:
    """Return the header, and the records that have as many fields."""
    records = _records(file, reading)
    _, header = next(records, ("", []))
    return header, _of_length(len(header), records, reading)


def _of_length(n: int, records: Iterator[_Record], reading: Reading) -> Iterator[_Record]:
    for where, record in records:
        if len(record) == n:
            yield where, record
        else:
            what = f"{len(record)} fields where the header has {n}"
            reading.reject(BadInputError(where, what, "correct or remove the line"))


def _records(file: SourceFile, reading: Reading) -> Iterator[_Record]:
    """Yield the records that are not blank lines, the header first."""
    tabs = ".tsv" in file.path.name.lower()
    with open_text(file, reading) as text:
        lines = bounded(file, text.readline)
        reader = csv.reader(lines, strict=True, delimiter="\t" if tabs else ",")
        where = f"{file.path}, line 1"
        try:
            while (record := _next_record(reader)) is not None:
                if record:
                    yield where, record
                where = f"{file.path}, line {reader.line_num + 1}"
        except csv.Error as error:
            way_out = "correct or remove the line"
            raise BadInputError(where, f"not valid CSV, {error}", way_out) from error


def _next_record(reader: _csv.Reader) -> list[str] | None:
    """Read a record; meanwhile the process-wide limit of 128 KiB a field is lifted."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)
