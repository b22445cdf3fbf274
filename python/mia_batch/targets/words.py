"""Where the words of many texts are, found in one call."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from mia_batch.kernels import WordRule, word_spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Words", "find_words"]

Indices = npt.NDArray[np.uint32]


class Words(NamedTuple):
    """The words of one text, as indices of its characters."""

    starts: Indices  # of the words' first characters
    ends: Indices  # of the characters after their last ones

    def part(self, words: range) -> Words:
        """Return some consecutive words, at least one, of the text that begins with the first."""
        starts = self.starts[words.start : words.stop]
        return Words(starts - starts[0], self.ends[words.start : words.stop] - starts[0])


def find_words(texts: Sequence[str], rule: WordRule) -> Iterator[Words]:
    """Find the words of each text; texts have no surrogates and are some megabytes together."""
    column = pl.Series("text", texts, pl.String).to_frame()
    spans = column.select(word_spans("text", words=rule)).unnest("text")
    starts, ends = (spans[name].explode(empty_as_null=False).to_numpy() for name in spans.columns)
    bounds = np.concatenate(([0], spans["starts"].list.len().to_numpy().cumsum(dtype=np.int64)))
    for first, last in pairwise(bounds.tolist()):
        yield Words(starts[first:last], ends[first:last])
