"""Tables: checked where they enter and leave a stage, written whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import IO, TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from mia_batch.errors import DamagedTableError, RunFolderError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import dataframely as dy

__all__ = [
    "READ_ERRORS",
    "check",
    "generate",
    "is_sound",
    "is_whole",
    "remove_unfinished",
    "scan",
    "sink",
    "sink_all",
    "sink_frames",
    "write_text",
]

READ_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, DamagedTableError)
"""What is raised where a file is not what it should be."""

# Small row groups keep the memory of writers and readers of long texts low.
_ROW_GROUP_ROWS = 8192

_ROOM_ASKED_FOR = 1 << 20


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
        reason = _system_reason(error)
        msg = (
            f"{where} cannot be read as a table: {reason or error}; give the run's command again, "
            "which sets it right"
        )
        raise (RunFolderError if reason else DamagedTableError)(msg) from error
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
    sink_all({path: frame}, schema)


def sink_all(frames: Mapping[Path, pl.LazyFrame | pl.DataFrame], schema: type[dy.Schema]) -> None:
    """Write several tables as `sink` does, in one query: of small ones, each costs a third less.

    They are not replaced at one moment; whoever is killed in between leaves some of them.

    Parameters
    ----------
    frames
        The tables by their final names.
    schema
        The columns that the tables must have.

    Raises
    ------
    RunFolderError
        If a table cannot be written: full disk, no permission, no such folder.
    SchemaMismatchError
        If a column is missing or has another type.
    """
    for path, frame in frames.items():
        check(frame, schema, what=path.name)
    with ExitStack() as streams:
        sinks = [
            frame.lazy().sink_parquet(
                streams.enter_context(_replacing(path)),
                compression="zstd",
                compression_level=1,
                row_group_size=_ROW_GROUP_ROWS,
                statistics=False,  # they would repeat whole texts
                lazy=True,
            )
            for path, frame in frames.items()
        ]
        pl.collect_all(sinks)
    for folder in {path.parent for path in frames}:
        _sync_folder(folder)


def sink_frames(frames: Iterable[pl.DataFrame], path: Path, schema: type[dy.Schema]) -> None:
    """Write a table that is made frame by frame to Parquet, atomically.

    Rows go to parts in a temporary folder first, and from there to the table: so what makes the
    frames and Polars' writer never need their memory at the same time.

    Parameters
    ----------
    frames
        The table's rows in order; at least one frame, which may be empty.
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
    parts = _temporary(path)
    with _system_errors(path):
        parts.mkdir()
        try:
            for number, part in enumerate(_regroup(frames)):
                part.write_parquet(parts / f"{number:08d}.parquet", statistics=False)
            files = sorted(parts.iterdir())
            columns = pl.Schema(pl.read_parquet_schema(files[0]))
            whole = generate(columns, lambda _: map(pl.read_parquet, files))
            sink(whole, path, schema)
        finally:
            shutil.rmtree(parts, ignore_errors=True)


def _regroup(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Concatenate frames until they fill a row group."""
    waiting: list[pl.DataFrame] = []
    n_rows = 0
    for frame in frames:
        waiting.append(frame)
        n_rows += frame.height
        if n_rows >= _ROW_GROUP_ROWS:
            yield pl.concat(waiting)
            waiting, n_rows = [], 0
    if waiting:
        yield pl.concat(waiting)


def is_whole(path: Path) -> bool:
    """Tell whether a Parquet file has its end, which a file that was cut short lacks.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    bool
        Whether the file ends as Parquet does, and is long enough for what its end announces.
    """
    descriptor = os.open(path, os.O_RDONLY)  # a third of the time of path.open()
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, 8, max(0, size - 8))
    finally:
        os.close(descriptor)
    return end[4:] == b"PAR1" and int.from_bytes(end[:4], "little") + 12 <= size


def is_sound(path: Path) -> bool:
    """Tell whether all of a Parquet file can be read; costs one read of it.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    bool
        Whether every row of every column can be decoded. Bytes that changed where any value is
        possible are not found: Polars writes no checksums.

    Raises
    ------
    OSError
        If the system refuses to read it, which says nothing of the file.
    """
    path.open("rb").close()
    try:
        frame = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        for _ in frame.collect_batches():
            pass
    except READ_ERRORS as error:
        if (number := _system_number(error)) is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        return False
    return True


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of writers that were killed; none may be at work in the folder.

    Parameters
    ----------
    folder
        Where to look; not below it.
    """
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


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
    with _replacing(path) as stream:
        stream.write(text.encode())
    _sync_folder(path.parent)


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


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Lend a temporary file beside ``path``; what was written there takes its place at the end.

    It is lent open: by name, Polars might create it again after a failure, from another thread.
    """
    temporary = _temporary(path)
    with _system_errors(path):
        try:
            with temporary.open("wb") as stream:
                try:
                    yield stream
                except pl.exceptions.ComputeError:
                    _ask_system(stream)
                    raise
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            with suppress(OSError):  # gone already, or the folder never was
                temporary.unlink()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


@contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """Say what the system refused while ``path`` was written."""
    try:
        yield
    except (OSError, pl.exceptions.ComputeError) as error:
        if (reason := _system_reason(error)) is None:
            raise
        msg = f"{path} cannot be written: {reason}; make room or choose another folder"
        raise RunFolderError(msg) from error


def _ask_system(stream: IO[bytes]) -> None:
    """Raise what the system says to further bytes: Polars hides it where a footer finds no room."""
    stream.write(bytes(_ROOM_ASKED_FOR))
    stream.flush()


def _sync_folder(folder: Path) -> None:
    with _system_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _system_reason(error: Exception) -> str | None:
    """Return what the system said, such as "No space left on device"; None if it said nothing."""
    number = _system_number(error)
    return None if number is None else os.strerror(number)


def _system_number(error: BaseException) -> int | None:
    """Return the system's number of an error.

    Polars passes the system's errors on in its own, with their number in the text.
    """
    number: int | None = getattr(error, "errno", None)
    if number is None and (found := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(found[1])
    return number
