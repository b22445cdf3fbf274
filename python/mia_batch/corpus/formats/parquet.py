"""Parquet files, read in slices, so that large row groups need no large memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.corpus.formats.agree import agreed_schema
from mia_batch.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.corpus.files import SourceFile

__all__ = ["locate", "read_rows", "read_schema"]

_SLICE_BYTES = 4 << 20  # compressed; a slice costs one read of its whole row group
_SLICE_ROWS = 1 << 17  # for texts that compress well
_FRAME_ROWS = 2048
_ERRORS = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)


def read_schema(files: Sequence[SourceFile]) -> pl.Schema:
    """Return the columns that all files share."""
    return agreed_schema({str(file.path): _file_schema(file) for file in files})


def read_rows(
    files: Sequence[SourceFile], schema: pl.Schema, columns: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """Yield the rows of all files in order, a slice at a time."""
    wanted = [pl.col(name).cast(schema[name]) for name in columns]
    for file in files:
        for start, length in _slices(file):
            # Engines read some frames ahead, whatever their size, so they had better be small.
            yield from _read_slice(file, start, length, wanted).iter_slices(_FRAME_ROWS)


def locate(files: Sequence[SourceFile], row: int) -> str:
    """Say where a row is, counted from 0 over all files."""
    for file in files:
        height = _height(file)
        if row < height:
            return f"{file.path}, row {row + 1}"
        row -= height
    raise IndexError(row)


def _scan(file: SourceFile) -> pl.LazyFrame:
    return pl.scan_parquet(file.path, glob=False, hive_partitioning=False)


def _file_schema(file: SourceFile) -> pl.Schema:
    with _refusing(file):
        return _scan(file).collect_schema()


def _height(file: SourceFile) -> int:
    with _refusing(file):
        return int(_scan(file).select(pl.len()).collect().item())


def _slices(file: SourceFile) -> Iterator[tuple[int, int]]:
    height = _height(file)
    step = min(max(1, height * _SLICE_BYTES // max(file.size, 1)), _SLICE_ROWS)
    return ((start, min(step, height - start)) for start in range(0, height, step))


def _read_slice(
    file: SourceFile, start: int, length: int, columns: Sequence[pl.Expr]
) -> pl.DataFrame:
    rows = _scan(file).slice(start, length).select(columns)
    try:
        return rows.collect()
    except _ERRORS as error:
        row = start + _first_broken(rows, length)
        msg = f"{file.path} is broken at row {row + 1}: {_first_line(error)}; restore the file"
        raise CorpusError(msg) from error


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
        msg = f"{file.path} cannot be read as Parquet: {_first_line(error)}; restore the file"
        raise CorpusError(msg) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
