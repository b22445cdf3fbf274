"""Prompts that ask for a passage after something else than its own prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.kernels import WordRule, word_spans
from mia_batch.prompts.seeds import SAMPLES_PER_TARGET, sample_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LAST_WORDS", "NOTHING_UNRELATED", "OtherRows", "after_unrelated", "own_prefix"]

LAST_WORDS = 16
"""Words of a passage's own prefix that stand behind an unrelated one in the second prompt."""
NOTHING_UNRELATED = "no document of another group has a prefix to put in its place"


def after_unrelated(targets: pl.DataFrame, *, words: WordRule) -> pl.DataFrame:
    """Ask after column ``unrelated`` alone, and with the last words of the own prefix behind it."""
    start = word_spans("prefix", words=words).struct.field("starts").list
    first = start.tail(LAST_WORDS).list.first().fill_null(0)
    last = pl.col("prefix").str.slice(first)
    contexts = {0: pl.col("unrelated"), 1: pl.concat_str("unrelated", last, separator=" ")}
    asked = (
        targets.select("target_id", "text", context=context, view_index=pl.lit(index))
        for index, context in contexts.items()
    )
    return pl.concat(asked)


def own_prefix(targets: pl.DataFrame) -> pl.DataFrame:
    """Ask after the own prefix, as it was asked before."""
    return targets.select("target_id", "text")


class OtherRows:
    """Chooses rows of a table that belong to another owner, each as likely as any other."""

    def __init__(self, owners: NDArray[np.uint64], may_stand: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(may_stand)
        self._rows = rows[np.argsort(owners[rows], kind="stable")]
        self._owners = owners[self._rows]

    def choose(self, owner: int, name: str, seed: int) -> int | None:
        """Choose for a target of this owner; seed and name decide. None where there is no other."""
        own = np.uint64(owner)
        start, stop = (int(np.searchsorted(self._owners, own, side)) for side in ("left", "right"))
        n_others = self._rows.size - (stop - start)
        if not n_others:
            return None
        place = sample_seed(seed, name, "control") // SAMPLES_PER_TARGET % n_others
        return int(self._rows[place if place < start else place + stop - start])
