"""Parquet and Arrow files, read in slices, so that large row groups need no large memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.corpus.formats.lines import BadInputError
from mia_batch.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mia_batch.corpus.files import SourceFile
    from mia_batch.corpus.formats.lines import Reading

__all__ = ["agreed_schema", "places", "read_rows", "read_schema"]

_SLICE_BYTES = 4 << 20  # compressed; a slice costs one read of its whole row group
_SLICE_ROWS = 1 << 17  # for texts that compress well
_FRAME_ROWS = 2048
_ARROW_FILE = b"ARROW1"
_ERRORS = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)


def agreed_schema(schemas: Mapping[str, pl.Schema]) -> pl.Schema:
    """Merge the schemas of several files (path to schema), whose columns and types must agree.

    A column that is null throughout a file (type ``Null``) fits any type; the order of columns is
    the first file's.
    """
    (first, merged), *others = schemas.items()
    for path, schema in others:
        for name in sorted(merged.keys() ^ schema.keys()):
            has, misses = (first, path) if name in merged else (path, first)
            msg = (
                f"{has} has a column {name!r} and {misses} has none; give files with the same "
                "columns"
            )
            raise CorpusError(msg)
        for name, dtype in merged.items():
            if dtype == pl.Null:
                merged[name] = schema[name]
            elif schema[name] not in (pl.Null, dtype):
                msg = (
                    f"column {name!r} is {dtype} in {first} but {schema[name]} in {path}; "
                    "give it one type in all files"
                )
                raise CorpusError(msg)
    return merged


def read_schema(files: Sequence[SourceFile], _reading: Reading) -> pl.Schema:
    """Return the columns that all files share."""
    schemas = {}
    for file in files:
        with _refusing(file):
            schemas[str(file.path)] = _scan(file).collect_schema()
    return agreed_schema(schemas)


def read_rows(
    files: Sequence[SourceFile], schema: pl.Schema, columns: Sequence[str], _reading: Reading
) -> Iterator[pl.DataFrame]:
    """Yield the rows of all files in order, a slice at a time."""
    wanted = [pl.col(name).cast(schema[name]) for name in columns]
    for file in files:
        with _refusing(file):
            rows = _scan(file).select(wanted)
            height = _height(rows)
        step = min(max(1, height * _SLICE_BYTES // max(file.size, 1)), _SLICE_ROWS)
        for start in range(0, height, step):
            # Engines read some frames ahead, whatever their size, so they had better be small.
            yield from _read_slice(file, rows, start, step).iter_slices(_FRAME_ROWS)


def places(files: Sequence[SourceFile], _reading: Reading) -> Iterator[str]:
    """Say of every row where it is."""
    for file in files:
        for row in range(_height(_scan(file))):
            yield f"{file.path}, row {row + 1}"


def _scan(file: SourceFile) -> pl.LazyFrame:
    """Open a file; a stream of Arrow batches, which the datasets library writes, is read whole."""
    if file.path.suffix.lower() == ".parquet":
        return pl.scan_parquet(file.path, glob=False, hive_partitioning=False)
    with file.path.open("rb") as start:
        is_file = start.read(len(_ARROW_FILE)) == _ARROW_FILE
    return pl.scan_ipc(file.path) if is_file else pl.read_ipc_stream(file.path).lazy()


def _height(rows: pl.LazyFrame) -> int:
    return int(rows.select(pl.len()).collect().item())


def _read_slice(file: SourceFile, table: pl.LazyFrame, start: int, length: int) -> pl.DataFrame:
    rows = table.slice(start, length)
    try:
        return rows.collect()
    except _ERRORS as error:
        row = start + _first_broken(rows, length)
        what = f"is broken at row {row + 1}: {_first_line(error)}"
        raise BadInputError(file.path, what, "restore the file") from error


def _first_broken(rows: pl.LazyFrame, length: int) -> int:
    """Return the first row of a slice that cannot be read, by halving."""
    good, bad = 0, length
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            rows.head(middle).collect()
        except _ERRORS:
            bad = middle
        else:
            good = middle
    return good


@contextmanager
def _refusing(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        kind = file.path.suffix[1:].capitalize()
        what = f"cannot be read as {kind}: {_first_line(error)}"
        raise BadInputError(file.path, what, "restore the file") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
