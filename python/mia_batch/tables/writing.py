"""Tables that are written: checked, streamed and atomically."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.tables.batches import in_batches
from mia_batch.tables.files import replacing, sync_folder, temporary_path
from mia_batch.tables.reading import check, generate
from mia_batch.tables.system import system_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import dataframely as dy

__all__ = ["sink", "sink_all", "sink_frames", "sink_new"]

# Small row groups keep the memory of writers and readers of long texts low.
_ROW_GROUP_ROWS = 8192


def sink(frame: pl.LazyFrame | pl.DataFrame, path: Path, schema: type[dy.Schema]) -> None:
    """Write a table to Parquet, streamed and atomically.

    The same rows give the same bytes. A reader finds the whole table under ``path``, or what was
    there before. A lazy table is never held whole in memory. The folder must exist.
    """
    sink_all({path: frame}, schema)


def sink_all(
    frames: Mapping[Path, pl.LazyFrame | pl.DataFrame],
    schema: type[dy.Schema],
    place: Callable[[Path, Path], object] = Path.replace,
) -> None:
    """Write several tables as `sink` does, in one query: of small ones, each costs a third less.

    They are not replaced at one moment: a process that is killed in between leaves some of them.
    ``place`` is as in `replacing`.
    """
    for path, frame in frames.items():
        check(frame, schema, what=path.name)
    with ExitStack() as streams:
        sinks = [
            frame.lazy().sink_parquet(
                streams.enter_context(replacing(path, place)),
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
        sync_folder(folder)


def sink_new(frame: pl.LazyFrame | pl.DataFrame, path: Path, schema: type[dy.Schema]) -> bool:
    """Write a table as `sink` does unless another process wrote it first, and say which it was."""
    wrote = True

    def place(temporary: Path, path: Path) -> None:
        nonlocal wrote
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            wrote = False
        except OSError:  # the file system has no links
            wrote = not path.exists()
            if wrote:
                temporary.replace(path)

    sink_all({path: frame}, schema, place)
    return wrote


def sink_frames(frames: Iterable[pl.DataFrame], path: Path, schema: type[dy.Schema]) -> None:
    """Write a table that is made of at least one frame to Parquet, atomically.

    Rows go to parts in a temporary folder first, and from there to the table: so what makes the
    frames and Polars' writer never need their memory at the same time.
    """
    parts = temporary_path(path)
    with system_errors(path):
        parts.mkdir()
        try:
            groups = in_batches(frames, lambda frame: frame.height, _ROW_GROUP_ROWS)
            for number, group in enumerate(groups):
                part = parts / f"{number:08d}.parquet"
                pl.concat(group).write_parquet(part, statistics=False)
            files = sorted(parts.iterdir())
            columns = pl.scan_parquet(files[0], glob=False).collect_schema()
            read = partial(pl.read_parquet, glob=False)
            whole = generate(columns, lambda _: map(read, files))
            sink(whole, path, schema)
        finally:
            shutil.rmtree(parts, ignore_errors=True)
