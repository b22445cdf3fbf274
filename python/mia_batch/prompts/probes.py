"""Prompts that end at many points of a target, each about the few words that follow."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.kernels import WordRule, word_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LEAST_CONTEXT", "probes"]

LEAST_CONTEXT = 8
"""Words before the first point."""

_NONE = np.zeros(0, dtype=np.int64)
_NO_FURTHER = "the text has no further point"


def probes(
    targets: pl.DataFrame, *, n: int, every: int, n_words: int, words: WordRule
) -> pl.DataFrame:
    """Ask at up to ``n`` points, ``every`` so many words, for the next ``n_words``.

    The points stand behind word 8, 8 + ``every``, ..., each before at least ``n_words``. They are
    numbered so that the first k of them are spread over the text for every k, whatever ``n``: more
    points later are added to those that are there. Where a target has fewer, its last row, numbered
    ``n`` - 1, says so.
    """
    rows = targets.select("target_id", "target", ends=_ends(words))
    counts = rows["ends"].list.len().to_numpy().astype(np.int64)
    possible = np.maximum((counts - LEAST_CONTEXT - n_words) // every + 1, 0)
    points = [_spread(int(most))[:n] for most in possible]
    which = np.repeat(np.arange(len(counts)), np.minimum(possible, n))
    index = np.concatenate([_NONE, *(np.arange(len(each)) for each in points)])
    word = LEAST_CONTEXT + np.concatenate([_NONE, *points]) * every
    before = np.cumsum(counts) - counts  # words of earlier targets
    ends = rows["ends"].explode(empty_as_null=False).to_numpy().astype(np.int64)
    start = ends[before[which] + word - 1]  # the context ends with a word
    length = ends[before[which] + word + n_words - 1] - start
    target = pl.col("target").str
    made = rows.select("target_id", "target")[which].select(
        "target_id",
        view_index=pl.Series(index, dtype=pl.UInt32),
        cut=target.head(pl.Series(start)).str.len_bytes(),
        text=target.slice(pl.Series(start), pl.Series(length)),
    )
    last = pl.lit(n - 1, pl.UInt32)
    fewer = rows.select("target_id")[np.flatnonzero(possible < n)]
    return pl.concat(
        [made, fewer.with_columns(view_index=last, reason=pl.lit(_NO_FURTHER))], how="diagonal"
    )


def _ends(words: WordRule) -> pl.Expr:
    return word_spans("target", words=words).struct.field("ends")


@cache
def _spread(n: int) -> NDArray[np.int64]:
    """Order 0, ..., n - 1 so that every beginning is spread evenly: by their bits, reversed.

    The order of van der Corput (1935).
    """
    width = max(n - 1, 0).bit_length()
    numbers = np.arange(1 << width)
    reverse = np.zeros_like(numbers)
    for bit in range(width):
        reverse |= ((numbers >> bit) & 1) << (width - 1 - bit)
    return reverse[reverse < n]
