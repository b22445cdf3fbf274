"""Tables that are read: their columns are checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from mia_batch.errors import DamagedTableError, RunFolderError, SchemaMismatchError
from mia_batch.schemas import ExtractedDocuments, LogProbs, Rollup
from mia_batch.tables.system import system_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import dataframely as dy

__all__ = ["check", "generate", "scan"]

_YOUNGER: dict[type[dy.Schema], tuple[str, ...]] = {
    LogProbs: ("bounded", "trained"),
    ExtractedDocuments: ("passages_20", "passages_50"),
    Rollup: ("n_passages_20", "n_passages_50", "passages_from"),
}
"""Columns that tables of earlier runs lack; there they are null."""


def check(frame: pl.DataFrame | pl.LazyFrame, schema: type[dy.Schema], *, what: str) -> None:
    """Check that a table has the columns of a schema, without reading it.

    Further columns are allowed, and so is any order. ``what`` names the table in the message.
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
        msg = f"{what} is not a {schema.__name__} table: {', '.join(faults)}"
        raise SchemaMismatchError(msg)


@cache
def _columns(schema: type[dy.Schema]) -> pl.Schema:
    return schema.create_empty().schema


def _with_later_choices(frame: pl.LazyFrame, schema: type[dy.Schema]) -> pl.LazyFrame:
    """Widen the enumerations of an earlier version, which had fewer categories."""
    wanted, present = _columns(schema), frame.collect_schema()
    older = {
        name: dtype
        for name, dtype in wanted.items()
        if isinstance(dtype, pl.Enum)
        and isinstance(had := present.get(name), pl.Enum)
        and had != dtype
        and {*had.categories} <= {*dtype.categories}
    }
    return frame.cast(older) if older else frame  # type: ignore[arg-type]


def scan(path: Path | Sequence[Path], schema: type[dy.Schema]) -> pl.LazyFrame:
    """Open a Parquet file, several, or a folder of parts in the order of their names, lazily.

    No parts are an empty table. What is no Parquet file is a `DamagedTableError`, what the system
    refuses a `RunFolderError`.
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
        if younger := {name: _columns(schema)[name] for name in _YOUNGER.get(schema, ())}:
            frame = pl.scan_parquet(
                source,
                schema={**frame.collect_schema(), **younger},
                missing_columns="insert",
                glob=False,
                hive_partitioning=False,
            )
        frame = _with_later_choices(frame, schema)
        check(frame, schema, what=str(where))
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = system_reason(error)
        msg = (
            f"{where} cannot be read as a table: {reason or error}; give the audit's command "
            "again, which rebuilds it"
        )
        raise (RunFolderError if reason else DamagedTableError)(msg) from error
    return frame


def generate(
    schema: pl.Schema, frames: Callable[[list[str] | None], Iterator[pl.DataFrame]]
) -> pl.LazyFrame:
    """Make a lazy table from a function that yields its rows in order.

    Its argument names the columns that are needed; None stands for all, and it may yield more. It
    runs from its start each time the table is collected, and its exceptions reach the caller.
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
