"""Passages that came before: by their runs of eight words, in bounded memory."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Passages"]

_Hashes = npt.NDArray[np.uint64]

_RUN_WORDS = 8
_COPIED_SHARE = 0.7  # of a text's runs; Chowdhery et al. (2022), arXiv:2204.02311, section 8
_LEAST_RUNS = 4  # of fewer nothing is said
_MOST_KEPT = 1 << 24  # hashes of runs, 8 bytes each
_TEXTS_AT_ONCE = 1024
_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Passages:
    """Tells texts of which at least 70 % of the runs of 8 words were in earlier ones together.

    Words are what stands between punctuation and white space, in lower case. Runs of small hash
    are compared, of half as small ones whenever more than 16 million are kept.
    """

    def __init__(self) -> None:
        self._kept: list[_Hashes] = []  # each in order
        self._largest = (1 << 64) - 1
        self._n_texts = 0

    def are_copies(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return for each text whether it is one, of texts before it here or in earlier calls."""
        found = [np.empty(0, np.bool_)]
        while texts:
            # Fewer runs are kept from a text on that depends on no call.
            n_texts = _TEXTS_AT_ONCE - self._n_texts % _TEXTS_AT_ONCE
            found.append(self._compare(texts[:n_texts]))
            texts = texts[n_texts:]
            if self._n_texts % _TEXTS_AT_ONCE == 0:
                self._shrink()
        return np.concatenate(found)

    def _compare(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        self._n_texts += len(texts)
        texts_of, hashes = _runs(texts)
        is_small = hashes <= np.uint64(self._largest)
        texts_of, hashes = texts_of[is_small], hashes[is_small]
        unique, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        is_known = np.zeros(unique.size, np.bool_)
        for kept in self._kept:
            is_known |= _among(kept, unique)
        self._keep(unique[~is_known])
        seen = is_known[inverse] | (texts_of[first][inverse] < texts_of)
        n_runs = np.bincount(texts_of, minlength=len(texts))
        n_seen = np.bincount(texts_of[seen], minlength=len(texts))
        return (n_runs >= _LEAST_RUNS) & (n_seen >= _COPIED_SHARE * n_runs)

    def _keep(self, hashes: _Hashes) -> None:
        """Add to the parts; one is merged with its neighbour before it outgrows it."""
        self._kept.append(hashes)
        while len(self._kept) > 1 and self._kept[-2].size < 2 * self._kept[-1].size:
            self._kept[-2:] = [np.sort(np.concatenate(self._kept[-2:]), kind="stable")]

    def _shrink(self) -> None:
        while sum(kept.size for kept in self._kept) > _MOST_KEPT:
            self._largest >>= 1
            largest = np.uint64(self._largest)
            self._kept = [kept[: np.searchsorted(kept, largest, "right")] for kept in self._kept]


def _runs(texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], _Hashes]:
    """Return for each run of words which text it is of, and a hash, the same on every machine."""
    words = [[crc32(word.encode()) for word in _WORD.findall(text.lower())] for text in texts]
    text_of = np.repeat(np.arange(len(words)), [len(each) for each in words])
    numbers = np.array([*chain.from_iterable(words)], np.uint64)
    n_runs = max(numbers.size - _RUN_WORDS + 1, 0)
    hashes = np.zeros(n_runs, np.uint64)
    for place in range(_RUN_WORDS):
        hashes = hashes * _FACTOR + numbers[place : place + n_runs]
    for shift in (30, 27, 31):  # so that small hashes are a random choice
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * _FACTOR
    hashes ^= hashes >> np.uint64(32)
    first, last = text_of[:n_runs], text_of[numbers.size - n_runs :]
    return first[first == last], hashes[first == last]


def _among(kept: _Hashes, hashes: _Hashes) -> npt.NDArray[np.bool_]:
    found = np.searchsorted(kept, hashes)
    is_among: npt.NDArray[np.bool_] = np.append(kept, np.uint64(0))[found] == hashes
    return is_among & (found < kept.size)
