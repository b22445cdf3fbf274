"""Where a key stands in a table, in 12 bytes a row, also while the index is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.tables.arrays import mapped_zeros

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["RowIndex"]

_ROWS_AT_ONCE = 65536
_BUCKETS = 256
_BUCKET_SHIFT = 56  # the highest byte of a hash names its bucket


class RowIndex:
    """The rows of a table by the hash of a key, in their order; rows without key are left out.

    Keys are known by 64 bits of their hash: of a million foreign keys, the chance that one is
    taken for one of a million rows' is 5 in 100 million. ``keys`` is one column of at most 2^32
    rows; it is read twice.
    """

    def __init__(self, keys: pl.LazyFrame) -> None:
        self.height = int(keys.select(pl.len()).collect(engine="streaming").item())
        counts = np.zeros(_BUCKETS, np.int64)
        for part in _parts(keys, self.height):
            counts += _count(part)
        starts = np.cumsum(counts) - counts
        self._hashes = mapped_zeros(int(counts.sum()), np.uint64)
        self._rows = mapped_zeros(int(counts.sum()), np.uint32)
        self._fill(_parts(keys, self.height), starts.copy())
        self._sort(starts)

    def _fill(self, parts: Iterator[pl.DataFrame], free: NDArray[np.int64]) -> None:
        """Put every row into its bucket, at the bucket's first free index."""
        for part in parts:
            counts = _count(part)
            before = np.cumsum(counts) - counts
            indices = np.arange(part.height) + np.repeat(free - before, counts)
            self._hashes[indices] = part["hash"]
            self._rows[indices] = part["row"]
            free += counts

    def _sort(self, starts: NDArray[np.int64]) -> None:
        """Sort within buckets, so that little is held twice."""
        buckets = (np.split(array, starts[1:]) for array in (self._hashes, self._rows))
        for hashes, rows in zip(*buckets, strict=True):
            order = np.argsort(hashes, kind="stable")
            hashes[:] = hashes[order]
            rows[:] = rows[order]

    @property
    def n_keys(self) -> int:
        """Rows that have a key."""
        return self._hashes.size

    @property
    def unique(self) -> bool:
        """Whether no two rows have the same key."""
        return not bool((self._hashes[1:] == self._hashes[:-1]).any())

    def count(self, keys: pl.Series) -> NDArray[np.int64]:
        """Count the rows of each key; 0 for null."""
        first, last = self._bounds(keys)
        return last - first

    def find(self, keys: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Find every row of each key: indices into ``keys``, ascending, and the rows.

        A key of several rows comes several times, one of none does not come.
        """
        first, last = self._bounds(keys)
        counts = last - first
        which = np.repeat(np.arange(counts.size), counts)
        within = np.arange(which.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return which, self._rows[first[which] + within]

    def _bounds(self, keys: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        runs = keys.hash().rle()  # equal keys mostly stand together
        hashes, lengths = (runs.struct.field(name).to_numpy() for name in ("value", "len"))
        first = np.repeat(np.searchsorted(self._hashes, hashes, side="left"), lengths)
        last = np.repeat(np.searchsorted(self._hashes, hashes, side="right"), lengths)
        return first, np.where(keys.is_null().to_numpy(), first, last)


def _parts(keys: pl.LazyFrame, height: int) -> Iterator[pl.DataFrame]:
    """Yield ``hash`` and ``row`` of the rows that have a key, each part sorted by hash."""
    key = pl.col(keys.collect_schema().names()[0])
    for start in range(0, height, _ROWS_AT_ONCE):
        part = keys.slice(start, _ROWS_AT_ONCE).select(hash=key.hash(), there=key.is_not_null())
        numbered = part.with_row_index("row", start).filter("there")
        yield numbered.sort("hash", maintain_order=True).collect()


def _count(part: pl.DataFrame) -> NDArray[np.int64]:
    """Count the rows of each bucket."""
    return np.bincount(part["hash"].to_numpy() >> _BUCKET_SHIFT, minlength=_BUCKETS)
