"""Runs that a candidate has word for word from the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.terms import AGGREGATES, share

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["VERBATIM_ATTACKS"]

_SUBSTRING = "Hallinan et al. 2025 (arXiv:2508.09603), longest common substring"
_BLOCKS = (
    "Ahmed et al. 2026 (arXiv:2601.02671), near-verbatim recall, here of blocks of 8 words or more "
    "as they are: for whole books, theirs joins blocks across gaps and keeps 20, then 100 words"
)


def _attacks(name: str, term: pl.Expr, source: str) -> Iterator[Attack]:
    for ending, aggregate in AGGREGATES.items():
        yield Attack(
            name=f"{name}{ending}_v1",
            expr=aggregate(term.cast(pl.Float64)),
            source=source,
            undefined="there is no candidate",
            whole_candidates=True,
        )


VERBATIM_ATTACKS: tuple[Attack, ...] = (
    *_attacks("longest_block", pl.col("longest_block_words"), f"{_SUBSTRING}, in words"),
    *_attacks("longest_block_chars", pl.col("longest_block_chars"), f"{_SUBSTRING}, in characters"),
    *_attacks(
        "longest_block_share",
        share("longest_block_words", "words_reference"),
        f"{_SUBSTRING}, by the reference's words",
    ),
    *_attacks("near_verbatim", share("near_verbatim_words", "words_reference"), _BLOCKS),
)
"""``longest_block_v1`` in words, ``_chars``, ``_share``, and ``near_verbatim_v1``."""
