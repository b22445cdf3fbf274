"""Prompts that ask for a text in other words."""

from __future__ import annotations

import polars as pl

__all__ = ["rewriting"]

_TASK = (
    "Rewrite the following passage in other words, in its own language. Change the words and their "
    "order; keep the meaning, the length, the tense and all names. Answer with the rewritten "
    "passage alone.\n\nPassage: {}\n\nRewritten passage:"
)


def rewriting(targets: pl.DataFrame) -> pl.DataFrame:
    """Ask for a target in other words; the target itself says how long the answer is to be."""
    return targets.select("target_id", context=pl.format(_TASK, "target"), cut=pl.lit(0, pl.UInt32))
