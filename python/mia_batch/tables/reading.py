"""Tables that are read: their columns are checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from mia_batch.errors import DamagedTableError, RunFolderError, SchemaMismatchError
from mia_batch.tables.system import system_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import dataframely as dy

__all__ = ["check", "generate", "scan"]


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
    wanted = _columns(schema)
    faults = [f"{name!r} is missing" for name in wanted if name not in present]
    faults += [
        f"{name!r} is {present[name]} instead of {dtype}"
        for name, dtype in wanted.items()
        if name in present and present[name] != dtype
    ]
    if faults:
        msg = f"{what} is no {schema.__name__} table: {', '.join(faults)}"
        raise SchemaMismatchError(msg)


@cache
def _columns(schema: type[dy.Schema]) -> pl.Schema:
    return schema.create_empty().schema


def scan(path: Path | Sequence[Path], schema: type[dy.Schema]) -> pl.LazyFrame:
    """Open a Parquet table lazily, its columns checked.

    Parameters
    ----------
    path
        One Parquet file, several, or a folder of parts, read in the order of their names; no parts
        are an empty table.
    schema
        The columns that a stage relies on.

    Returns
    -------
    LazyFrame
        All columns of the file.

    Raises
    ------
    RunFolderError
        If the file is missing or cannot be opened; `DamagedTableError` if it is no Parquet file.
    SchemaMismatchError
        If a column is missing or has another type.
    """
    if isinstance(path, Sequence):
        source = list(path)
    else:
        source = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not source:
        return schema.create_empty().lazy()
    where = source[0].parent if isinstance(path, Sequence) else path
    frame = pl.scan_parquet(source, glob=False, hive_partitioning=False)
    try:
        check(frame, schema, what=str(where))
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = system_reason(error)
        msg = (
            f"{where} cannot be read as a table: {reason or error}; give the run's command again, "
            "which sets it right"
        )
        raise (RunFolderError if reason else DamagedTableError)(msg) from error
    return frame


def generate(
    schema: pl.Schema, frames: Callable[[list[str] | None], Iterator[pl.DataFrame]]
) -> pl.LazyFrame:
    """Make a lazy table from a generator of frames.

    Parameters
    ----------
    schema
        The columns of the table.
    frames
        Yields the rows in order. Its argument names the columns that are asked for, None or none
        stands for all; it may yield more.

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
        names = with_columns or schema.names()
        for frame in frames(with_columns):
            batch = frame.select(names).head(frame.height if left is None else left)
            yield batch if predicate is None else batch.filter(predicate)
            if left is not None and (left := left - batch.height) == 0:
                return

    return register_io_source(source, schema=schema)
