"""What came out of walks, as rows of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from mia_batch.extraction import book_coverage, near_verbatim_recall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.prompts.walk import Walks

__all__ = ["stretches", "summary"]

_OTHERS = 8  # documents that tell the level of chance


def stretches(walks: Walks) -> Iterator[dict[str, Any]]:
    """Yield a row for each walk, those that gave nothing included."""
    for number, walk in enumerate(walks.made):
        yield {
            "document_id": walks.document_id,
            "walk": number,
            "target_id": walk.window.target_id,
            "draw": walk.draw,
            "start": walk.stretch.start,
            "end": walk.stretch.stop,
            "n_words": walk.n_words,
            "n_verbatim": walk.n_verbatim if walk.n_words else 0,
            "n_rounds": walk.n_rounds,
            "n_tokens": walk.n_tokens,
        }


def summary(walks: Walks, every: Sequence[Walks]) -> dict[str, Any]:
    """Compare all that was said about a document with it, and with others."""
    document, rule = walks.document, walks.document.rule
    said = pl.Series([walk.said for walk in walks.made], dtype=pl.String)
    given = pl.Series([walk.window.prefix for walk in walks.made], dtype=pl.String)
    in_order = sorted(walks.made, key=lambda walk: walk.first)
    whole = pl.lit("\n".join(walk.said for walk in in_order))
    recalled = near_verbatim_recall(whole, pl.lit(document.text), words=rule)
    others = [each.document.text for each in every if each is not walks][:_OTHERS]

    def spans(text: str, k: int = 5) -> pl.DataFrame:
        return book_coverage(text, said, instructions=given, words=rule, k=k)

    def covered(text: str) -> float | None:
        found: float | None = spans(text)["coverage"].item()
        return found

    def passages(k: int) -> list[dict[str, int]]:
        places = spans(document.text, k)["blocks"].explode(empty_as_null=False)
        return places.struct.unnest().select("start", "end").to_dicts()

    inside = np.zeros(len(document.ends), bool)
    for walk in walks.made:
        inside[walk.first : walk.first + walk.n_words] = True
    runs = pl.Series(inside).rle().struct.unnest()
    return {
        "document_id": walks.document_id,
        "words_document": inside.size,
        "n_walks": len(walks.made),
        "n_tokens": walks.n_tokens,
        "coverage": inside.mean() if inside.size else None,
        "longest_words": runs.filter("value")["len"].max() or 0,
        "near_verbatim_recall": pl.select(recalled.struct.field("recall")).item(),
        "bmc_5": covered(document.text),
        "bmc_5_others": pl.Series(map(covered, others), dtype=pl.Float64).mean(),
        "n_others": len(others),
        "passages_20": passages(20),
        "passages_50": passages(50),
    }
