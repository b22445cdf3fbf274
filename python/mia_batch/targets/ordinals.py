"""Count how often a key came before, in a few bytes a key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Ordinals"]

_Keys = npt.NDArray[np.uint64]
_Counts = npt.NDArray[np.uint32]
_Numbers = npt.NDArray[np.int64]


class Ordinals:
    """Numbers equal keys 0, 1, 2 ... in the order in which they come.

    Counts are kept in sorted runs; a run is merged with its neighbour before it outgrows it, so
    that ``n`` keys cost 12 bytes each and ``O(n log n)`` time in all.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[_Keys, _Counts]] = []

    def number(self, keys: _Keys) -> _Numbers:
        """Return for each key how many equal ones came before it, in this call or earlier ones."""
        if keys.size == 0:
            return np.empty(0, np.int64)
        unique, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        numbers = _rank_among_equals(inverse, counts)
        for run in self._runs:
            numbers += _look_up(run, unique)[inverse]
        self._add(unique, counts.astype(np.uint32))
        return numbers

    def _add(self, keys: _Keys, counts: _Counts) -> None:
        self._runs.append((keys, counts))
        while len(self._runs) > 1 and self._runs[-2][0].size < 2 * self._runs[-1][0].size:
            self._runs[-2:] = [_merge(*self._runs[-2:])]


def _look_up(run: tuple[_Keys, _Counts], keys: _Keys) -> _Numbers:
    known, counts = run
    found = np.minimum(np.searchsorted(known, keys), known.size - 1)
    return np.where(known[found] == keys, counts[found].astype(np.int64), 0)


def _merge(left: tuple[_Keys, _Counts], right: tuple[_Keys, _Counts]) -> tuple[_Keys, _Counts]:
    keys = np.concatenate((left[0], right[0]))
    counts = np.concatenate((left[1], right[1]))
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[first], np.add.reduceat(counts[order], first, dtype=np.uint32)


def _rank_among_equals(inverse: npt.NDArray[np.intp], counts: npt.NDArray[np.intp]) -> _Numbers:
    order = np.argsort(inverse, kind="stable")
    ranks = np.empty(inverse.size, np.int64)
    ranks[order] = np.arange(inverse.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks
