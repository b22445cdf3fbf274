"""Where the words of many texts are, found in one sweep over their characters."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.targets.plan import WordRule

__all__ = ["Words", "word_spans"]

_SEPARATOR = " "  # outside words under every rule

Positions = npt.NDArray[np.int64]


class Words(NamedTuple):
    """The words of one text, as positions in all texts of a sweep."""

    begin: int
    """Where the text begins; subtract it for positions in the text."""
    starts: Positions
    """First characters of the words, int64."""
    ends: Positions
    """Characters after the last ones, int64."""

    def part(self, words: range) -> Words:
        """Return some consecutive words, at least one, as a text that begins with the first."""
        starts = self.starts[words.start : words.stop]
        return Words(int(starts[0]), starts, self.ends[words.start : words.stop])


def word_spans(texts: Sequence[str], rule: WordRule) -> Iterator[Words]:
    """Find the words of each text.

    Parameters
    ----------
    texts
        Texts without surrogates; some megabytes together, since a character needs 10 bytes here.
    rule
        ``whitespace``: the words of ``text.split()``; ``space``: those of ``text.split(" ")``
        that are not empty.

    Yields
    ------
    Words
        For each text.
    """
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    begins = np.concatenate(([0], np.cumsum(lengths + 1)))  # each text ends with a separator
    joined = _SEPARATOR.join(texts) + _SEPARATOR
    starts, ends = _runs(_is_inside(np.frombuffer(joined.encode("utf-32-le"), np.int32), rule))
    places = np.searchsorted(starts, begins)
    for begin, (first, last) in zip(begins.tolist(), pairwise(places.tolist()), strict=False):
        yield Words(begin, starts[first:last], ends[first:last])


def _is_inside(codes: npt.NDArray[np.int32], rule: WordRule) -> npt.NDArray[np.bool]:
    if rule == "space":
        return np.not_equal(codes, ord(" "))
    return np.take(_inside_words(), codes, mode="clip")


@cache
def _inside_words() -> npt.NDArray[np.bool]:
    """Return for each code point whether it is not whitespace, up to the last that is.

    One more entry stands for all code points after it.
    """
    return np.array([not chr(code).isspace() for code in range(0x3002)])


def _runs(inside: npt.NDArray[np.bool]) -> tuple[Positions, Positions]:
    """Return where the runs of true begin and end; the last entry is false."""
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    if inside[0]:
        edges = np.concatenate(([0], edges))
    return edges[0::2], edges[1::2]
