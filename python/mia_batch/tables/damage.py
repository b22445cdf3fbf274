"""Tables that a crash has cut short, or a disk has changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import DamagedTableError
from mia_batch.tables.system import system_number

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["READ_ERRORS", "is_sound", "is_whole"]

READ_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, DamagedTableError)
"""What is raised where a file is not what it should be."""


def is_whole(path: Path) -> bool:
    """Tell whether a Parquet file has its end, which a file that was cut short lacks."""
    descriptor = os.open(path, os.O_RDONLY)  # a third of the time of path.open()
    try:
        size = os.fstat(descriptor).st_size
        end = os.pread(descriptor, 8, max(0, size - 8))
    finally:
        os.close(descriptor)
    return end[4:] == b"PAR1" and int.from_bytes(end[:4], "little") + 12 <= size


def is_sound(path: Path) -> bool:
    """Tell whether every row and column of a Parquet file can be decoded; costs one read of it.

    Bytes that changed where any value is possible are not found: Polars writes no checksums. An
    OSError says nothing of the file: the system refused to read it.
    """
    path.open("rb").close()
    try:
        frame = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        for _ in frame.collect_batches():
            pass
    except READ_ERRORS as error:
        if (number := system_number(error)) is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        return False
    return True
