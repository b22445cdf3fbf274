"""The passages that came out word for word where texts were continued."""

from collections.abc import Mapping

import polars as pl

from mia_batch.attacks.attack import matches_views
from mia_batch.inference.memory import (
    CONTINUED,
    VERBATIM_WORDS,
    longest_passage,
    verbatim_runs,
)
from mia_batch.kernels import WordRule

_RUNS = {
    "target_id": pl.String,
    "longest_words": pl.UInt32,
    "sample_index": pl.UInt32,
}
_RUN_COLUMNS = ("longest_block_words", "longest_block_start", "near_verbatim_words")
_KEY = ("target_id", "sample_index")
_MOST_SAMPLES = 10  # of a text, where none are set


def find_runs(
    tables: Mapping[str, pl.LazyFrame], words: WordRule | None, samples: int | None
) -> pl.DataFrame:
    """Find the longest run of each text that an answer repeats; no rows without continuations."""
    has_runs = "features" in tables and {*_RUN_COLUMNS} <= {
        *tables["features"].collect_schema().names()
    }
    if words is None or not has_runs:
        return pl.DataFrame(schema=_RUNS)
    runs = verbatim_runs(
        tables["targets"], tables["features"], samples or _MOST_SAMPLES, words
    )
    ids = tables["targets"].select("target_id").collect(engine="streaming")
    return pl.concat(
        [ids, runs.select("longest_words", "sample_index")], how="horizontal"
    )


def add_passages(
    tables: Mapping[str, pl.LazyFrame], rows: pl.DataFrame, words: WordRule | None
) -> pl.DataFrame:
    """Add the ``passage`` of each text with ``n_out`` words that came out, by ``reference``."""
    out = rows.drop_nulls("n_out")
    if words is None or out.is_empty():
        return rows.with_columns(passage=pl.lit(None, pl.String))
    is_out = pl.col("target_id").is_in(out["target_id"].implode())
    places = (
        tables["features"]
        .filter(is_out, matches_views(CONTINUED))
        .select(*_KEY, "longest_block_start", "longest_block_words")
        .collect(engine="streaming")
        .unique(_KEY, keep="first", maintain_order=True)
    )
    passages = out.select(*_KEY, "reference").join(places, on=_KEY)
    passages = passages.select("target_id", passage=longest_passage(words))
    return rows.join(passages, on="target_id", how="left", maintain_order="left")


def list_passages(
    tables: Mapping[str, pl.LazyFrame], words: WordRule | None, samples: int | None
) -> pl.DataFrame:
    """List the audited texts that came out word for word, the longest first; see `Run.passages`."""
    runs = find_runs(tables, words, samples)
    enough = pl.col("longest_words") >= VERBATIM_WORDS
    out = runs.filter(enough).rename({"longest_words": "n_out"})
    targets = (
        tables["targets"]
        .filter(pl.col("role").is_in(["target", "non_member"]))
        .select(
            "target_id", "role", "document_id", "group", "window_index", "reference"
        )
        .join(out.lazy(), on="target_id")
        .collect(engine="streaming")
    )
    rows = add_passages(tables, targets, words).rename({"n_out": "n_words"})
    ordered = rows.sort("n_words", "target_id", descending=[True, False])
    return ordered.drop("reference", "sample_index")
