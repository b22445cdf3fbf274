"""The longest run of words of each target that a continuation repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.attacks.attack import CONTINUATION
from mia_batch.attacks.terms import among
from mia_batch.tables import RowIndex, mapped_zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["VERBATIM_GROUP", "verbatim_runs"]

VERBATIM_GROUP = "blocks"
"""Group of features that the runs are read from."""

_READ = ("longest_block_words", "near_verbatim_words")
_ROWS_AT_ONCE = 32_768
_LOW = (1 << 32) - 1


def verbatim_runs(targets: pl.LazyFrame, features: pl.LazyFrame, samples: int) -> pl.DataFrame:
    """Find the longest run over the first ``samples`` continuations of each target.

    In the targets' order: ``longest_words`` and ``sample_index``, the first that has it, and
    ``near_words``, the most that near-verbatim blocks of one hold. Null without a continuation, or
    where the features have no runs. Memory: 24 bytes a target.
    """
    index = RowIndex(targets.select("target_id"))
    code, near = (mapped_zeros(index.height, dtype) for dtype in (np.uint64, np.uint32))
    if set(_READ) <= set(features.collect_schema()):
        own = features.filter(
            among([CONTINUATION]),
            pl.col("sample_index") < samples,
            pl.col(_READ[0]).is_not_null(),
        ).select("target_id", "sample_index", *_READ)
        for batch in own.collect_batches(chunk_size=_ROWS_AT_ONCE):
            which, rows = index.find(batch["target_id"])
            np.maximum.at(code, rows, _code(batch)[which])
            np.maximum.at(near, rows, batch[_READ[1]].to_numpy()[which])
    found = pl.DataFrame({"code": code, "near_words": near})
    value = {
        "longest_words": pl.col("code") // (1 << 32),
        "sample_index": _LOW - pl.col("code") % (1 << 32),
        "near_words": pl.col("near_words"),
    }
    return found.select(
        pl.when(pl.col("code") > 0).then(each.cast(pl.UInt32)).alias(name)
        for name, each in value.items()
    )


def _code(batch: pl.DataFrame) -> NDArray[np.uint64]:
    """Join a run's words and its sample to one number, never 0: the more, then the earlier one."""
    code = pl.col(_READ[0]).cast(pl.UInt64) * (1 << 32) + (_LOW - pl.col("sample_index"))
    return batch.select(code).to_series().to_numpy()
