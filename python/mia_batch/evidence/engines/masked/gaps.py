"""Texts some of whose words are hidden."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Gaps", "word_spans"]

_RUN = re.compile(r"\S+")
_EDGES = ("L", "M", "N")  # letters, marks, numbers


def word_spans(text: str) -> list[tuple[int, int]]:
    """Find the words of a text, first and end index: between whitespace, less signs at its ends."""
    spans = (_trim(text, *match.span()) for match in _RUN.finditer(text))
    return [(start, end) for start, end in spans if start < end]


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and not category(text[start]).startswith(_EDGES):
        start += 1
    while start < end and not category(text[end - 1]).startswith(_EDGES):
        end -= 1
    return start, end


class Gaps(NamedTuple):
    """A text some of whose words are hidden."""

    text: str
    spans: Sequence[tuple[int, int]]
    """The hidden words, in their order: first character, and the one after the last."""

    def words(self) -> list[str]:
        """Return the hidden words."""
        return [self.text[start:end] for start, end in self.spans]

    def fill(self, words: Sequence[str]) -> tuple[str, list[int]]:
        """Fill the gaps; return the text, and the index of each word's first character."""
        ends = [0, *(end for _, end in self.spans)]
        starts = [*(start for start, _ in self.spans), len(self.text)]
        between = [self.text[end:start] for end, start in zip(ends, starts, strict=True)]
        parts = [part for pair in zip(between, [*words, ""], strict=True) for part in pair]
        return "".join(parts), list(accumulate(map(len, parts)))[:-2:2]
