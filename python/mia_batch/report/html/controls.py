"""What speaks to the windows that are shown: controls, and how sure the models are of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.report.html.documents import Column, Table
from mia_batch.report.html.text import NO_VALUE, number, visible

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mia_batch.report.html.contents import Contents

__all__ = ["common_windows", "control_table", "perplexity_table"]

_CONTROLS = {
    "unrelated_prefix": "after the prefix of another document",
    "unrelated_prefix_16_words": "after that and the last 16 words of its own prefix",
    "reference_model": "from the reference model, after its own prefix",
    "other_document": "in another document",
}
"""Where a passage was asked for, or looked for."""
_COMMON = {True: "common", False: "no", None: NO_VALUE}
_MOST_ROWS = 400
_MOST_CHARACTERS = 160


def common_windows(contents: Contents) -> Mapping[str, list[str]]:
    """Say of each window whose passage is common where it comes out or stands, too."""
    rows = contents.frame(
        "controls", *([pl.col("common")] if "controls" in contents.tables else [])
    )
    found: dict[str, list[str]] = {}
    for row in rows.iter_rows(named=True):
        found.setdefault(row["target_id"], []).append(_CONTROLS[row["control"]])
    return found


def control_table(contents: Contents) -> Table | None:
    """Lay out the controls; None where the run has none."""
    if "controls" not in contents.tables:
        return None
    rows = contents.tables["controls"].head(_MOST_ROWS)
    named = contents.tables["targets"].select("target_id", "document_id", "window_index")
    found = rows.join(named, on="target_id", how="left", maintain_order="left")
    return Table(
        name="controls",
        title="What else the passages come out of",
        source="controls.parquet, targets.parquet",
        columns=_COLUMNS,
        rows=found.collect(engine="streaming").to_dicts(),
        note="A common passage is no evidence; what 16 words of its prefix give is shown beside it "
        f"and marks nothing. At most {_MOST_ROWS} rows are shown.",
    )


def perplexity_table(contents: Contents, shown: Collection[str]) -> Table | None:
    """Lay out perplexity and entropy of the windows that are shown; None where the run has none."""
    rows = contents.frame("perplexities", pl.col("target_id").is_in(list(shown)))
    if rows.is_empty():
        return None
    ids = pl.col("target_id").is_in(list(shown))
    named = contents.frame("targets", ids).select("target_id", "document_id", "window_index")
    return Table(
        name="perplexities",
        title="How sure the models are of these windows",
        source="perplexities.parquet, targets.parquet",
        columns=_OF_PERPLEXITIES,
        rows=rows.join(named, on="target_id", how="left", maintain_order="left").to_dicts(),
        note="All texts are in perplexities.parquet. Other tokenizers count other tokens.",
    )


def _short(row: dict[str, Any], name: str) -> str:
    value = row[name]
    return NO_VALUE if value is None else visible(value, _MOST_CHARACTERS, note=False)


def _count(heading: str, name: str) -> Column:
    return Column(heading, (name,), lambda row: number(row[name]), name)


_OF_PERPLEXITIES = [
    Column("Document", ("document_id",), lambda row: _short(row, "document_id")),
    _count("Window", "window_index"),
    _count("Perplexity", "perplexity"),
    _count("Entropy, nats", "entropy"),
    _count("Perplexity under the reference model", "reference_perplexity"),
    Column("Why no perplexity", ("reason",), lambda row: _short(row, "reason")),
    Column("Why no entropy", ("entropy_reason",), lambda row: _short(row, "entropy_reason")),
    Column("Why no control", ("reference_reason",), lambda row: _short(row, "reference_reason")),
]
_COLUMNS = [
    Column("Document", ("document_id",), lambda row: _short(row, "document_id")),
    _count("Window", "window_index"),
    Column("Asked or looked for", ("control",), lambda row: _CONTROLS[row["control"]]),
    _count("Samples", "n_samples"),
    _count("Longest run, words", "longest_words"),
    Column("Common", ("common",), lambda row: _COMMON[row["common"]]),
    Column("Other document", ("other_document",), lambda row: _short(row, "other_document")),
    Column("Why no run", ("reason",), lambda row: _short(row, "reason")),
]
