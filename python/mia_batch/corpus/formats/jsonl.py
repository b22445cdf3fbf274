"""JSON: an object per line, or an array of them; blank lines are skipped, a missing key is null.

A first pass parses every record strictly and learns the columns; Polars then reads the rows with
these columns, so that the first rows do not decide what type a column has. ``NaN`` and
``Infinity``, which Python's ``json`` writes, are null.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import polars as pl
from pydantic_core import from_json, to_json

from mia_batch.corpus.formats.lines import (
    BadInputError,
    EncodingError,
    open_bytes,
    open_text,
    read_lines,
)
from mia_batch.errors import CorpusError
from mia_batch.tables import READ_ERRORS, in_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mia_batch.corpus.files import SourceFile
    from mia_batch.corpus.formats.lines import Reading

__all__ = ["places", "read_rows", "read_schema"]

_BATCH_BYTES = 4 << 20
_READ_CHARS = 1 << 20
_LONGEST_ITEM = 64 << 20
_START = 64  # bytes in which an array begins
_BEFORE_START = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"  # byte-order marks of UTF-8 and UTF-16, blanks
_BETWEEN_ITEMS = re.compile(r"\s*,?\s*")
_NO_NUMBERS = (b"NaN", b"Infinity")
_Record = tuple[str, bytes]  # where it stands, JSON


class _LongInteger:
    """Stands for integers beyond 64 bits; they are kept as their digits."""


_KINDS: dict[type, tuple[str, type[pl.DataType]]] = {
    str: ("a string", pl.String),
    bool: ("a boolean", pl.Boolean),
    int: ("a number", pl.Int64),
    float: ("a number", pl.Float64),
    _LongInteger: ("a number", pl.String),
    list: ("an array", pl.Object),
    dict: ("an object", pl.Object),
}


def read_schema(files: Sequence[SourceFile], reading: Reading) -> pl.Schema:
    """Return every key of every record with the one type that all its values have."""
    seen: dict[str, dict[type, str]] = {}
    for file in files:
        for where, record in _records(file, reading):
            try:
                parsed = _parse(where, record)
            except BadInputError as error:
                reading.reject(error)
                continue
            for name, value in parsed.items():
                kinds = seen.setdefault(name, {})
                kind = _kind(value)
                if kind not in kinds:
                    kinds[kind] = where
    return pl.Schema({name: _column_type(name, kinds) for name, kinds in seen.items()})


def read_rows(
    files: Sequence[SourceFile], schema: pl.Schema, columns: Sequence[str], reading: Reading
) -> Iterator[pl.DataFrame]:
    """Yield the rows of all files in order, some megabytes at a time, nested values as JSON."""
    types = {name: pl.String() if schema[name] == pl.Object else schema[name] for name in columns}
    for file in files:
        for batch in in_batches(_records(file, reading), lambda each: len(each[1]), _BATCH_BYTES):
            yield _read_batch(batch, types, reading)


def places(files: Sequence[SourceFile], reading: Reading) -> Iterator[str]:
    """Say of every row where it is."""
    return (where for file in files for where, _ in _records(file, reading))


def _records(file: SourceFile, reading: Reading) -> Iterator[_Record]:
    """Yield the records that were not rejected, with where they stand, counted from 1."""
    with open_bytes(file) as stream:
        is_array = stream.peek(1)[:_START].lstrip(_BEFORE_START).startswith(b"[")
    for where, record in _items(file, reading) if is_array else _lines(file, reading):
        if reading.rejected is None or where not in reading.rejected:
            yield where, _without_nan(record)


def _lines(file: SourceFile, reading: Reading) -> Iterator[_Record]:
    for number, line in enumerate(read_lines(file, reading), 1):
        if not line.isspace():
            yield f"{file.path}, line {number}", line


def _items(file: SourceFile, reading: Reading) -> Iterator[_Record]:
    """Yield the items of an array, reading on as long as the next one may be cut short."""
    decoder = json.JSONDecoder()
    with open_text(file, reading) as text:
        buffer = text.read(_READ_CHARS)
        at, number = buffer.index("[") + 1, 1
        while True:
            where = f"{file.path}, item {number}"
            at = _BETWEEN_ITEMS.match(buffer, at).end()  # type: ignore[union-attr] # it matches
            if buffer.startswith("]", at):
                if (buffer[at + 1 :] + text.read(_READ_CHARS)).strip():
                    raise _broken(where, "there is text after the array", "array")
                return
            item, after, problem = None, len(buffer), None
            try:
                item, after = decoder.raw_decode(buffer, at)
            except ValueError as error:
                problem = error
            if after == len(buffer) and (more := text.read(_READ_CHARS)):
                buffer, at = buffer[at:] + more, 0
                if len(buffer) > _LONGEST_ITEM:
                    raise _broken(where, f"more than {_LONGEST_ITEM >> 20} MiB", "item")
                continue
            if problem is not None:
                raise _broken(where, f"not valid JSON, {problem}", "item")
            yield where, json.dumps(item).encode()
            at, number = after, number + 1


def _broken(where: str, what: str, of: str = "line") -> BadInputError:
    return BadInputError(where, what, f"correct or remove the {of}")


def _without_nan(record: bytes) -> bytes:
    """Write null for what is no number."""
    if any(word in record for word in _NO_NUMBERS):
        with suppress(ValueError):  # which the strict parser will say
            return to_json(from_json(record), inf_nan_mode="null")
    return record


def _parse(where: str, line: bytes) -> Mapping[str, object]:
    try:
        record = from_json(line.strip(), allow_inf_nan=False)
    except ValueError as error:
        try:
            line.decode()
        except UnicodeDecodeError as problem:
            what = f"byte 0x{line[problem.start]:02x} is not valid UTF-8"
            raise EncodingError(where, what, "save the file as UTF-8") from error
        what = f"not valid JSON, {str(error).replace(' at line 1 column', ' at column')}"
        raise _broken(where, what) from error
    if not isinstance(record, dict):
        raise _broken(where, "not a JSON object")
    return record


def _kind(value: object) -> type:
    kind = type(value)
    if kind is int and isinstance(value, int) and not -(2**63) <= value < 2**63:
        return _LongInteger
    return kind


def _column_type(name: str, kinds: Mapping[type, str]) -> pl.DataType:
    found = [(*_KINDS[kind], where) for kind, where in kinds.items() if kind is not type(None)]
    for word, _, where in found:
        if word != found[0][0]:
            msg = (
                f"column {name!r} is {found[0][0]} in {found[0][2]}, but {word} in {where}; "
                "give it one type"
            )
            raise CorpusError(msg)
    types = {dtype for _, dtype, _ in found}
    wide = next((dtype for dtype in (pl.Float64, pl.String) if dtype in types), None)
    return (wide or next(iter(types), pl.Null))()


def _read_batch(
    batch: list[_Record], types: Mapping[str, pl.DataType], reading: Reading
) -> pl.DataFrame:
    """Read some records; those that the strict parser let pass and Polars does not are bad."""
    try:
        return _read(batch, types)
    except READ_ERRORS:
        good = []
        for record in batch:
            try:
                _read([record], types)
            except READ_ERRORS as error:
                reading.reject(_broken(record[0], str(error).split("\n", 1)[0]))
            else:
                good.append(record)
        return _read(good, types)


def _read(batch: list[_Record], types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    if not batch:
        return pl.DataFrame(schema=types)
    return pl.read_ndjson(b"\n".join(record for _, record in batch), schema=types)
