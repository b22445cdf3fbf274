"""Rows of a recording to the samples of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.kernels import WordRule, count_words
from mia_batch.schemas import Samples

if TYPE_CHECKING:
    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.replay.columns import Key
    from mia_batch.prompts.view import View

__all__ = ["MISSING", "answer", "first_of_each"]

MISSING = "the recording lacks this sample"
_NO_TEXT = "the recording has no text"


def first_of_each(rows: pl.DataFrame) -> pl.DataFrame:
    """Keep one row of each sample: the first with a text, else the first."""
    textless_last = rows.sort(pl.col("candidate").is_null(), maintain_order=True)
    return textless_last.unique(["key", "view_index", "sample_index"], keep="first")


def answer(
    block: Block, rows: pl.DataFrame, *, view: View, key: Key, words: WordRule
) -> pl.DataFrame:
    """Return a block's samples in the order of its targets and of ``sample_index``.

    ``rows`` are what was recorded, each sample once, with the hash of ``key``; samples without a
    row have `MISSING` for their reason. ``words`` counts words for ``short``.
    """
    indices = pl.int_range(block.first, block.last, dtype=pl.UInt32, eager=True)
    targets = block.units.select(
        "target_id",
        "view_index",
        prefix="context",
        key=pl.col("context" if key == "prefix" else key).hash(),
        asked=pl.lit(0, pl.UInt32) if key == "prefix" else pl.col("view_index"),
        n_reference=count_words("text", words=words),
    )
    theirs = rows.lazy().filter(pl.col("key").is_in(targets["key"].implode()))
    asked = (
        targets.lazy().with_columns(sample_index=pl.lit(indices.implode())).explode("sample_index")
    )
    fewer_words = count_words("candidate", words=words) < pl.col("n_reference")
    has_text = pl.col("candidate").is_not_null()
    why = pl.when("recorded").then(pl.col("reason").fill_null(_NO_TEXT)).otherwise(pl.lit(MISSING))
    ended_by_length = (pl.col("finish_reason") == "length").fill_null(value=False)
    return (
        asked.join(
            theirs.with_columns(recorded=pl.lit(value=True)),
            left_on=["key", "asked", "sample_index"],
            right_on=["key", "view_index", "sample_index"],
            how="left",
            maintain_order="left",
        )
        .select(
            "target_id",
            pl.lit(view.model).alias("model"),
            pl.lit(view.name).alias("view"),
            "view_index",
            "sample_index",
            "candidate",
            prompt=pl.when(has_text & (pl.col("prompt") != pl.col("prefix"))).then("prompt"),
            n_tokens=pl.when(has_text).then("n_tokens"),
            finish_reason=pl.when(has_text).then("finish_reason"),
            short=pl.when(has_text).then(ended_by_length & fewer_words),
            answer=pl.lit(None, Samples.create_empty().schema["answer"]),
            reason=pl.when(~has_text).then(why),
        )
        .collect()
    )
