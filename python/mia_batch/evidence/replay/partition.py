"""Rows that come in any order, stored on disk in portions that are small enough to hold."""

from __future__ import annotations

import io
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import polars as pl

from mia_batch.errors import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Packed", "Partition", "pack"]

Packed: TypeAlias = memoryview
"""Rows as they lie in a portion."""

_SIZE_BYTES = 8


def pack(rows: pl.DataFrame) -> Packed:
    """Serialise rows for `Partition.append`, which is most of its work; threads may."""
    packed = io.BytesIO()
    rows.write_ipc_stream(packed, compression="lz4")
    return packed.getbuffer()


class Partition:
    """Portions of rows in a folder of its own; what a killed run left there is removed first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self._refusing():
            self.remove()
            folder.mkdir(parents=True)

    def append(self, number: int, rows: Packed) -> None:
        """Add packed rows to a portion; those of one portion have the same columns."""
        with self._refusing(), self._path(number).open("ab") as file:
            file.write(len(rows).to_bytes(_SIZE_BYTES, "little"))
            file.write(rows)

    def read(self, number: int) -> list[pl.DataFrame]:
        """Return what was added to a portion, in order."""
        found = []
        with self._refusing():
            if not self._path(number).exists():
                return []
            with self._path(number).open("rb") as file:
                while size := file.read(_SIZE_BYTES):
                    packed = io.BytesIO(file.read(int.from_bytes(size, "little")))
                    found.append(pl.read_ipc_stream(packed))
        return found

    def sink(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Store a table beside the portions, and open it."""
        path = self._folder / "table.parquet"
        with self._refusing():
            rows.sink_parquet(path)
        return pl.scan_parquet(path)

    def remove(self) -> None:
        """Remove the folder."""
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}"

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"{error.strerror}; make room or choose another --out"
            msg = f"{self._folder} cannot be used: {why}"
            raise RunFolderError(msg) from error
