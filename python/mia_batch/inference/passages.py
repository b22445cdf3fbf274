"""Passages of documents that came out word for word: those that overlap in a document are one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.attack import CONTINUATION
from mia_batch.attacks.terms import among
from mia_batch.extraction import book_coverage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.kernels import WordRule

__all__ = ["PASSAGE_COUNTS", "count_passages", "where_from"]

_WORDS = (20, 50)
"""Words from which on passages are counted."""
PASSAGE_COUNTS = tuple(f"n_passages_{k}" for k in _WORDS)
"""Columns of their counts."""
_WINDOWS_AT_ONCE = 4096
_BREAK = " 7endofthewindow7 "  # one word by every rule, of no text
_SPAN = pl.Schema({"start": pl.Int64, "end": pl.Int64, "document": pl.UInt32, "k": pl.UInt32})


def count_passages(
    windows: pl.DataFrame,
    documents: pl.DataFrame,
    targets: pl.LazyFrame,
    candidates: pl.LazyFrame,
    *,
    samples: int,
    words: WordRule,
) -> pl.DataFrame:
    """Count the passages of each ``document`` that one answer gives in full.

    Of ``windows``, with ``document``, ``target_id`` and ``longest_words``, those are looked at of
    which a run is long enough; to them come the ``passages_...`` that walks found in ``documents``.
    """
    spans = [pl.DataFrame(schema=_SPAN)]
    long = windows.filter(pl.col("longest_words") >= min(_WORDS))
    for part in long.iter_slices(_WINDOWS_AT_ONCE):
        spans += _of_windows(part, targets, candidates, samples, words)
    for k in _WORDS:
        found = documents.select("document", passage=f"passages_{k}").explode("passage")
        place = pl.col("passage").struct
        spans.append(
            found.drop_nulls().select(
                start=place.field("start"), end=place.field("end"), document="document", k=pl.lit(k)
            )
        )
    whole = pl.concat([each.cast(_SPAN) for each in spans]).sort("document", "k", "start")
    reached = pl.col("end").cum_max().shift().over("document", "k")
    first = (pl.col("start") >= reached).fill_null(value=True)
    counts = {
        name: (pl.col("k") == k).sum() for name, k in zip(PASSAGE_COUNTS, _WORDS, strict=True)
    }
    return whole.filter(first).group_by("document", maintain_order=True).agg(**counts)


def where_from() -> pl.Expr:
    """Say which answers were looked at; null where there are none."""
    sampled, walked = pl.col("n_sampled") > 0, pl.col("walked")
    return (
        pl.when(sampled & walked)
        .then(pl.lit("samples and walks"))
        .when(sampled)
        .then(pl.lit("samples"))
        .when(walked)
        .then(pl.lit("walks"))
    )


def _of_windows(
    windows: pl.DataFrame,
    targets: pl.LazyFrame,
    candidates: pl.LazyFrame,
    samples: int,
    words: WordRule,
) -> Iterator[pl.DataFrame]:
    """Yield what answers about some windows of a document repeat of any of these windows."""
    own = pl.col("target_id").is_in(windows["target_id"].implode())
    begin = pl.col("start").fill_null(0) + pl.col("prefix").str.len_chars()
    texts = targets.filter(own).select("target_id", pl.col("reference").fill_null(""), begin=begin)
    given = candidates.filter(
        own,
        among([CONTINUATION]),
        pl.col("sample_index") < samples,
        pl.col("candidate").is_not_null(),
    )
    asked = windows.join(texts.collect(engine="streaming"), on="target_id", maintain_order="left")
    said = given.select("target_id", "candidate").collect(engine="streaming")
    for (document,), part in asked.group_by("document", maintain_order=True):
        answers = said.join(part, on="target_id", how="semi")["candidate"]
        for k in (k for k in _WORDS if k <= part["longest_words"].max()):  # type: ignore[operator]
            found = book_coverage(_BREAK.join(part["reference"]), answers, words=words, k=k)
            places = found["blocks"].explode(empty_as_null=False).struct.unnest()
            yield _in_document(places, part).with_columns(document=pl.lit(document), k=pl.lit(k))


def _in_document(places: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Move places in the joined references of some windows to those in their document."""
    lengths = windows["reference"].str.len_chars().cast(pl.Int64) + len(_BREAK)
    first = lengths.cum_sum() - lengths
    window = first.search_sorted(places["start"].cast(pl.Int64), side="right") - 1
    shift = (windows["begin"].cast(pl.Int64) - first).gather(window)
    return places.select(pl.col("start", "end").cast(pl.Int64) + shift)
