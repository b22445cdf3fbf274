"""Tables on disk and in flight: checked where they enter and leave a stage, written whole or not at all."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from mia_batch.errors import RunFolderError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import dataframely as dy

__all__ = ["check", "generate", "scan", "sink", "write_text"]

# Small row groups keep the memory of writers and readers of long texts low.
_ROW_GROUP_ROWS = 8192


def check(frame: pl.DataFrame | pl.LazyFrame, schema: type[dy.Schema], *, what: str) -> None:
    """Check that a table has the columns of a schema, without reading it.

    Further columns are allowed, and so is any order.

    Parameters
    ----------
    frame
        The table; only its column names and types are looked at.
    schema
        The columns that a stage relies on.
    what
        How to call the table in the message, such as ``"targets"`` or a path.

    Raises
    ------
    SchemaMismatchError
        If a column is missing or has another type.
    """
    present = frame.lazy().collect_schema()
    wanted = schema.create_empty().schema
    faults = [f"{name!r} is missing" for name in wanted if name not in present]
    faults += [
        f"{name!r} is {present[name]} instead of {dtype}"
        for name, dtype in wanted.items()
        if name in present and present[name] != dtype
    ]
    if faults:
        msg = f"{what} is no {schema.__name__} table: {', '.join(faults)}"
        raise SchemaMismatchError(msg)


def scan(path: Path, schema: type[dy.Schema]) -> pl.LazyFrame:
    """Open a Parquet table lazily, its columns checked.

    Parameters
    ----------
    path
        One Parquet file, or a folder of parts, read in the order of their names; a folder without
        parts is an empty table.
    schema
        The columns that a stage relies on.

    Returns
    -------
    LazyFrame
        All columns of the file.

    Raises
    ------
    RunFolderError
        If the file is missing, unreadable or no Parquet file.
    SchemaMismatchError
        If a column is missing or has another type.
    """
    source = sorted(path.glob("*.parquet")) if path.is_dir() else path
    if not source:
        return schema.create_empty().lazy()
    frame = pl.scan_parquet(source, glob=False, hive_partitioning=False)
    try:
        check(frame, schema, what=str(path))
    except (OSError, pl.exceptions.PolarsError) as error:
        msg = f"{path} cannot be read as a table: {_first_line(error)}"
        raise RunFolderError(msg) from error
    return frame


def sink(frame: pl.LazyFrame | pl.DataFrame, path: Path, schema: type[dy.Schema]) -> None:
    """Write a table to Parquet, streamed and atomically.

    The same rows give the same bytes. A reader finds the whole table under ``path``, or what was
    there before.

    Parameters
    ----------
    frame
        The table; a lazy one is never held whole in memory.
    path
        The final name; its folder must exist.
    schema
        The columns that the table must have.

    Raises
    ------
    RunFolderError
        If the table cannot be written: full disk, no permission, no such folder.
    SchemaMismatchError
        If a column is missing or has another type.
    """
    check(frame, schema, what=path.name)
    with _replacing(path) as temporary:
        frame.lazy().sink_parquet(
            temporary,
            compression="zstd",
            compression_level=1,
            row_group_size=_ROW_GROUP_ROWS,
            statistics=False,  # they would repeat whole texts
        )


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file atomically.

    Parameters
    ----------
    path
        The final name; its folder must exist.
    text
        The whole content; line ends are written as they are.

    Raises
    ------
    RunFolderError
        If the file cannot be written.
    """
    with _replacing(path) as temporary:
        temporary.write_bytes(text.encode())


def generate(
    schema: pl.Schema, frames: Callable[[list[str] | None], Iterator[pl.DataFrame]]
) -> pl.LazyFrame:
    """Make a lazy table from a generator of frames.

    Parameters
    ----------
    schema
        The columns of the table.
    frames
        Yields the rows in order. Its argument names the columns that are asked for (None = all);
        it may yield more.

    Returns
    -------
    LazyFrame
        Each time it is collected or written, the generator runs from its start. An exception of
        the generator reaches the caller as it is.
    """

    def source(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        left = n_rows
        for frame in frames(with_columns):
            batch = frame.head(left) if left is not None else frame
            left = left - batch.height if left is not None else None
            batch = batch.select(with_columns or schema.names())
            yield batch if predicate is None else batch.filter(predicate)
            if left == 0:
                return

    return register_io_source(source, schema=schema)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Lend a temporary name beside ``path``; what was written there takes its place at the end."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        msg = f"{path} cannot be written: {_first_line(error)}; free or change the output folder"
        raise RunFolderError(msg) from error
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.strip().split("\n", 1)[0]
