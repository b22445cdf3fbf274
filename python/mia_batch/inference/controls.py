"""What controls say of passages that came out: which are common, and so no evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.schemas import Controls

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["VERBATIM_WORDS", "common_targets", "control_rows", "counts_of", "without_common"]

VERBATIM_WORDS = 20
"""Words in a row from which on a passage counts as repeated."""

_SCHEMA = Controls.create_empty().schema
_ASKED = {
    "unrelated_prefix": ("target", 0),
    "unrelated_prefix_16_words": ("target", 1),
    "reference_model": ("reference", 0),
}
"""Controls that ask a model, with its name in the run and the number of the prompt."""
_MARKS_NOTHING = "unrelated_prefix_16_words"


def control_rows(
    passages: pl.DataFrame,
    answers: pl.DataFrame,
    elsewhere: pl.DataFrame,
    *,
    models: Collection[str],
    without: str,
) -> pl.DataFrame:
    """Lay out the controls table, passage by passage.

    ``answers`` has ``n_samples``, ``longest_words``, ``other_document`` and ``reason`` by
    ``target_id``, ``model`` and ``view_index``; ``elsewhere`` the same of other documents, row by
    row, with ``common``. ``without`` is the reason where a model was not asked.
    """
    named = passages.select("target_id", "target_row")
    repeats = pl.col("longest_words") >= VERBATIM_WORDS
    nothing = pl.when(pl.col("longest_words").is_null())
    made = [_rows(named.hstack(elsewhere), "other_document")]
    for control, (model, index) in _ASKED.items():
        if model in models:
            own = answers.filter(model=model, view_index=index).drop("model", "view_index")
            rows = named.join(own, on="target_id", how="left", maintain_order="left").with_columns(
                n_samples=pl.col("n_samples").fill_null(0),
                common=pl.when(repeats.is_not_null()).then(repeats & (control != _MARKS_NOTHING)),
                reason=nothing.then(pl.coalesce("reason", pl.lit(without))),
            )
            made.append(_rows(rows, control))
    return pl.concat(made).sort("target_row", "control").drop("target_row")


def _rows(found: pl.DataFrame, control: str) -> pl.DataFrame:
    there = found.with_columns(control=pl.lit(control))
    return there.select(
        *(
            (pl.col(name) if name in there.columns else pl.lit(None)).cast(dtype).alias(name)
            for name, dtype in _SCHEMA.items()
        ),
        "target_row",
    )


def common_targets(controls: pl.LazyFrame) -> pl.Series:
    """Name the targets whose passage is common."""
    marked = controls.filter("common").select("target_id").unique(maintain_order=True)
    return marked.collect(engine="streaming").to_series()


def counts_of(controls: pl.DataFrame) -> dict[str, Any]:
    """Count passages and common ones; by control those looked at, and those that came again."""
    n_passages, n_common = controls["target_id"].n_unique(), common_targets(controls.lazy()).len()
    counts: dict[str, Any] = {"any": {"passages": n_passages, "common": n_common}}
    for (control,), rows in controls.sort("control").group_by("control", maintain_order=True):
        counts[str(control)] = {
            "passages": rows["common"].count(),
            "repeated": (rows["longest_words"] >= VERBATIM_WORDS).sum(),
        }
    return counts


def without_common(
    extracted: pl.LazyFrame, extraction: pl.LazyFrame, common: pl.Series
) -> pl.LazyFrame:
    """Leave stretches that start with a common passage out of what was extracted of documents."""
    is_common = pl.col("target_id").is_in(common.implode())
    left = pl.when(~is_common).then("n_words")
    of_document = extraction.group_by("document_id").agg(
        any_common=is_common.any(), longest=left.max().fill_null(0), total=left.sum()
    )
    changed = pl.when("any_common")
    share = pl.when(pl.col("words_document") > 0).then(pl.col("total") / pl.col("words_document"))
    return (
        extracted.join(of_document, on="document_id", how="left", maintain_order="left")
        .with_columns(
            longest_words=changed.then("longest").otherwise("longest_words"),
            coverage=changed.then(share).otherwise("coverage"),
        )
        .drop("any_common", "longest", "total")
    )
