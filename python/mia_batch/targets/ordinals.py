"""Count how often a key came before, in a few bytes a key."""

from __future__ import annotations

import numpy as np

__all__ = ["Ordinals"]


class Ordinals:
    """Numbers equal keys 0, 1, 2 ... in the order in which they come.

    Counts are kept in sorted runs; a run is merged with its neighbour before it outgrows it, so
    that ``n`` keys cost 12 bytes each and ``O(n log n)`` time in all.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []

    def number(self, keys: np.ndarray) -> np.ndarray:
        """Return for each key how many equal ones came before it, in this call or earlier ones.

        Parameters
        ----------
        keys
            Unsigned 64-bit integers.

        Returns
        -------
        ndarray
            Int64, as many as keys.
        """
        if keys.size == 0:
            return np.empty(0, np.int64)
        unique, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        before = sum((_look_up(run, unique) for run in self._runs), np.zeros(unique.size, np.int64))
        self._add(unique, counts.astype(np.uint32))
        return before[inverse] + _rank_among_equals(inverse, counts)

    def _add(self, keys: np.ndarray, counts: np.ndarray) -> None:
        self._runs.append((keys, counts))
        while len(self._runs) > 1 and self._runs[-2][0].size < 2 * self._runs[-1][0].size:
            self._runs[-2:] = [_merge(*self._runs[-2:])]


def _look_up(run: tuple[np.ndarray, np.ndarray], keys: np.ndarray) -> np.ndarray:
    known, counts = run
    places = np.minimum(np.searchsorted(known, keys), known.size - 1)
    return np.where(known[places] == keys, counts[places], 0)


def _merge(
    left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    keys = np.concatenate((left[0], right[0]))
    counts = np.concatenate((left[1], right[1]))
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[first], np.add.reduceat(counts[order], first, dtype=np.uint32)


def _rank_among_equals(inverse: np.ndarray, counts: np.ndarray) -> np.ndarray:
    order = np.argsort(inverse, kind="stable")
    ranks = np.empty(inverse.size, np.int64)
    ranks[order] = np.arange(inverse.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks
