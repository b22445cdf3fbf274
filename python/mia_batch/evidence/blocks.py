"""Blocks: the portions in which rows are collected and stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "BLOCK_TARGETS",
    "LOGPROB_BLOCK_TARGETS",
    "RECORDED_BLOCK_TARGETS",
    "Block",
    "part_stem",
]

BLOCK_TARGETS = 64
"""Targets in a block: few enough that little is lost with an unfinished one."""
RECORDED_BLOCK_TARGETS = 8 * BLOCK_TARGETS
"""The same where samples are only read from a recording."""
LOGPROB_BLOCK_TARGETS = 4 * BLOCK_TARGETS
"""The same of log-probabilities: one forward pass a text, not one a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Units of neighbouring targets that lack the same rows: ``first <= number < last``.

    Of a long block it is one of the pieces.
    """

    index: int  # of the block in the targets table
    first: int
    last: int
    attempt: int  # the piece; where its part exists already, a number that no part has
    label: str
    units: pl.DataFrame  # in the targets' order

    @property
    def part_name(self) -> str:
        """File name of the block's part."""
        stem = part_stem(self.index, self.label, self.first, self.last)
        return f"{stem}.attempt-{self.attempt}.parquet"


def part_stem(index: int, label: str, first: int, last: int) -> str:
    """Begin the names of a block's parts of these rows."""
    return f"block-{index:08d}.{label}-{first:05d}-{last:05d}"
