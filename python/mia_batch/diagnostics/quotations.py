"""Passages that stand in several documents."""

from __future__ import annotations

import numpy as np
import polars as pl

from mia_batch.kernels import count_words, pair_features, shared_runs

__all__ = ["RUN_WORDS", "find_elsewhere"]

RUN_WORDS = 20
"""Words in a row that two documents must share."""

_TOO_SHORT = f"the passage has fewer than {RUN_WORDS} words"
_NO_OTHER = "there is no document of another group"
_NOWHERE = f"no other document has {RUN_WORDS} words in a row of it"


def find_elsewhere(passages: pl.DataFrame, documents: pl.LazyFrame) -> pl.DataFrame:
    """Find the first document of another owner that has 20 words in a row of a passage.

    ``passages`` has ``passage`` and ``owner``, ``documents`` has ``text``, ``owner`` and ``name``.
    One row per passage: ``name`` of the document, ``longest_words`` that both have in a row, and
    ``common``, whether there is one; null with a ``reason`` where nothing can be said. Words are
    those of UAX #29, in lower case, so that punctuation and line breaks do not hide a copy.
    Documents are read once, a batch at a time; memory: some 50 bytes per word of the passages.
    """
    texts = passages["passage"].str.to_lowercase()
    owners = passages["owner"].to_numpy()
    n_words = pl.select(count_words(pl.lit(texts), words="unicode")).to_series()
    is_open = (n_words >= RUN_WORDS).to_numpy()
    found: dict[int, tuple[str, int]] = {}
    searched: set[int] = set()  # two owners are enough
    for batch in documents.collect_batches(maintain_order=True):
        searched |= {*batch.filter(pl.col("text").is_not_null())["owner"].unique().head(2)}
        for owner, name, text in _having_any(batch, texts.filter(is_open)).iter_rows():
            rows = np.flatnonzero(is_open & (owners != owner))
            for row, words in _shared(texts, rows, text):
                found[row] = (name, words)
                is_open[row] = False
    has_other = pl.Series(
        [len(searched - {owner}) > 0 for owner in owners.tolist()], dtype=pl.Boolean
    )
    reason = (
        pl.when(n_words < RUN_WORDS)
        .then(pl.lit(_TOO_SHORT))
        .when(~has_other)
        .then(pl.lit(_NO_OTHER))
        .otherwise(pl.lit(_NOWHERE))
    )
    schema = {"name": pl.String, "longest_words": pl.UInt32}
    named = [found.get(row, (None, None)) for row in range(len(texts))]
    return pl.DataFrame(named, schema, orient="row").with_columns(
        common=pl.when(n_words >= RUN_WORDS, has_other).then(pl.col("longest_words").is_not_null()),
        reason=pl.when(pl.col("longest_words").is_null()).then(reason),
    )


def _having_any(documents: pl.DataFrame, passages: pl.Series) -> pl.DataFrame:
    """Keep the documents with a run of any passage, their text in lower case."""
    lower = documents.select("owner", "name", pl.col("text").str.to_lowercase())
    runs = shared_runs(lower["text"], passages, run_words=RUN_WORDS, words="unicode")
    return lower.filter(runs["shared"].fill_null(0) > 0)


def _shared(texts: pl.Series, rows: np.ndarray, document: str) -> list[tuple[int, int]]:
    """Say which of these passages share a run with a document, and the words of the longest."""
    own = texts.gather(rows)
    runs = shared_runs(own, pl.Series([document]), run_words=RUN_WORDS, words="unicode")
    has = (runs["shared"] > 0).to_numpy()
    pairs = pl.DataFrame({"passage": own.filter(has)}).with_columns(document=pl.lit(document))
    blocks = pair_features("passage", "document", words="unicode", groups=["blocks"])
    longest = pairs.select(blocks.struct.field("longest_block_words")).to_series()
    return list(zip(rows[has].tolist(), longest.to_list(), strict=True))
