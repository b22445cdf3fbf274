"""JSON Lines: one object per line; blank lines are skipped, a missing key is null.

A first pass parses every line strictly and learns the columns; Polars then reads the rows with
these columns given, so that the first rows do not decide what type a column has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from pydantic_core import from_json

from mia_batch.corpus.formats.lines import BOM, broken, not_utf8, open_bytes
from mia_batch.errors import CorpusError
from mia_batch.tables import READ_ERRORS, in_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mia_batch.corpus.files import SourceFile

__all__ = ["locate", "read_rows", "read_schema"]

_BATCH_BYTES = 4 << 20
_Line = tuple[int, bytes]  # number from 1, content


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


def read_schema(files: Sequence[SourceFile]) -> pl.Schema:
    """Return every key of every line with the one type that all its values have."""
    seen: dict[str, dict[type, str]] = {}
    for file in files:
        for number, line in _lines(file):
            for name, value in _parse(file, number, line).items():
                kinds = seen.setdefault(name, {})
                kind = _kind(value)
                if kind not in kinds:
                    kinds[kind] = f"{file.path}, line {number}"
    return pl.Schema({name: _column_type(name, kinds) for name, kinds in seen.items()})


def read_rows(
    files: Sequence[SourceFile], schema: pl.Schema, columns: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """Yield the rows of all files in order, some megabytes at a time, nested values as JSON."""
    types = {name: pl.String() if schema[name] == pl.Object else schema[name] for name in columns}
    for file in files:
        for batch in in_batches(_lines(file), lambda line: len(line[1]), _BATCH_BYTES):
            yield _read_batch(file, batch, types)


def locate(files: Sequence[SourceFile], row: int) -> str:
    """Say where a row is, counted from 0 over all files: its line."""
    for file in files:
        for number, _ in _lines(file):
            if row == 0:
                return f"{file.path}, line {number}"
            row -= 1
    raise IndexError(row)


def _lines(file: SourceFile) -> Iterator[_Line]:
    """Yield the lines that hold something, with their numbers from 1."""
    with open_bytes(file) as stream:
        for number, raw in enumerate(stream, 1):
            line = raw.removeprefix(BOM) if number == 1 else raw
            if not line.isspace():
                yield number, line


def _parse(file: SourceFile, number: int, line: bytes) -> Mapping[str, object]:
    try:
        record = from_json(line.strip(), allow_inf_nan=False)
    except ValueError as error:
        try:
            line.decode()
        except UnicodeDecodeError:
            raise not_utf8(file) from error
        what = str(error).replace(" at line 1 column", " at column")
        raise broken(file, number, f"not valid JSON, {what}") from error
    if not isinstance(record, dict):
        raise broken(file, number, "not a JSON object")
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
    file: SourceFile, batch: list[_Line], types: Mapping[str, pl.DataType]
) -> pl.DataFrame:
    try:
        return pl.read_ndjson(b"".join(line for _, line in batch), schema=types)
    except READ_ERRORS as error:
        raise _first_broken(file, batch, types) from error


def _first_broken(
    file: SourceFile, batch: list[_Line], types: Mapping[str, pl.DataType]
) -> CorpusError:
    """Find the line that the strict parser let pass and Polars does not, such as 1e400."""
    for number, line in batch:
        try:
            pl.read_ndjson(line, schema=types)
        except READ_ERRORS as error:
            return broken(file, number, str(error).split("\n", 1)[0])
    return CorpusError(f"{file.path} cannot be read as JSON Lines; restore the file")
