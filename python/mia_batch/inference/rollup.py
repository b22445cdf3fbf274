"""From texts to whole documents and groups: what a report says of each."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.controls import VERBATIM_WORDS, common_targets
from mia_batch.inference.passages import PASSAGE_COUNTS, count_passages, where_from
from mia_batch.inference.rollup_columns import with_answer, with_claim, with_mean, with_share
from mia_batch.inference.verbatim import verbatim_runs
from mia_batch.inference.window_share import WindowShare
from mia_batch.schemas import Rollup, Targets
from mia_batch.tables.numbers import read_finite, read_numbers
from mia_batch.targets.clusters import document_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets
    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.kernels import WordRule

__all__ = ["rollup"]

_TYPES = Rollup.create_empty().schema
_SUMS = pl.col("^n_(windows|asked|scored|above|sampled|verbatim|near|common|measured|likely)$")
_EXTRACTED = {
    "key": "document_id",
    "extracted_words": "longest_words",
    "extracted_share": "coverage",
}
_LABELS = ("group", "member")
_PROBABILITY = "extraction_v1"
"""The attack whose score is the log of the probability that the reference is said in full."""
_CHOSEN = "windows were asked until the group was decided, so that they stand for no others"
_LEAST_PROBABILITY = 0.001  # of a window that a thousand draws give


def rollup(
    targets: pl.LazyFrame,
    scores: pl.LazyFrame,
    features: pl.LazyFrame,
    verdicts: pl.LazyFrame,
    plan: VerdictPlan,
    *,
    extracted: pl.LazyFrame,
    candidates: pl.LazyFrame,
    samples: int,
    words: WordRule,
    blind_warns: bool,
    withheld: str | None = None,
    exploratory: bool = False,
    controls: pl.LazyFrame | None = None,
) -> pl.DataFrame:
    """Sum up the documents of role ``target`` by the primary attack, and groups of several.

    ``targets`` and ``scores`` have their rows in one order; ``candidates`` is the samples table.
    Documents come in that order, none of them where each is one window; then groups, in the order
    of their first document; then documents of the non-members, likewise. The first ``samples``
    continuations count, those of passages that ``controls`` mark as common do not. Where shares are
    ``withheld``, that says why; where answers are ``exploratory``, none of them is a verdict.
    Memory: some 250 bytes a target.

    The interval of the mean takes windows as independent draws. Those of one document are not:
    neighbours share their subject and style, so that it is rather too narrow. It is null where all
    scores are equal, and may leave the range of the attack.
    """
    sets = read_comparison_sets(scores, named=False)
    score = read_finite(scores, plan.primary, sets.target_id.len())
    chosen = _CHOSEN if plan.adjustment == "e-bh" else None
    share = WindowShare(sets, score, plan.fpr, blind_warns=blind_warns, lack=chosen)
    runs = verbatim_runs(targets, features, samples)
    parts = [_windows(targets, scores, score, sets, controls), runs]
    windows = pl.concat(parts, how="horizontal").with_row_index("row")
    windows = windows.filter(pl.any_horizontal("is_target", "is_beside"))
    documents = _documents(windows, share.threshold)
    documents = documents.join(_said(targets, documents["row"]), on="row", maintain_order="left")
    own, beside = documents.filter("is_target"), documents.filter(~pl.col("is_target"))
    own = own.join(_extracted(extracted), on="key", how="left", maintain_order="left")
    documents = pl.concat([own, beside], how="diagonal")
    of_windows = windows.with_columns(target_id=sets.target_id.gather(windows["row"]))
    of_windows = of_windows.filter(~pl.col("common"))
    counts = count_passages(
        of_windows, documents, targets, candidates, samples=samples, words=words
    )
    documents = documents.join(counts, on="document", how="left", maintain_order="left")
    own, beside = documents[: own.height], documents[own.height :]
    rows = pl.concat([_units(own), _groups(own), _outside(beside)], how="diagonal")
    any_run = pl.when(pl.col("longest_words") > 0)
    rows = with_mean(rows)
    if chosen:
        rows = rows.with_columns(mean_low=None, mean_high=None)
    rows = rows.with_columns(
        pl.when(where_from().is_not_null()).then(pl.col(PASSAGE_COUNTS).fill_null(0)),
        attack=pl.lit(plan.primary),
        passages_from=where_from(),
        longest_target_id=any_run.then(sets.target_id.gather(rows["longest_row"])),
        longest_sample_index=any_run.then("longest_sample_index"),
        share_verbatim=(pl.col("n_verbatim") / pl.col("n_sampled")).fill_nan(None),
        n_common=None if controls is None else pl.col("n_common"),
        extraction_probability=pl.col("log_p").exp(),
        share_extractable=(pl.col("n_likely") / pl.col("n_measured")).fill_nan(None),
        share_near_verbatim=(pl.col("n_near") / pl.col("n_sampled")).fill_nan(None),
    )
    rows = with_share(rows, share, withheld)
    rows = with_answer(rows, verdicts, plan, any_null=sets.nulls.size > 0, exploratory=exploratory)
    rows = with_claim(rows, plan)
    typed = (pl.col(name).cast(dtype) for name, dtype in _TYPES.items())
    return rows.select(*typed, "said").unnest("said")


def _windows(
    targets: pl.LazyFrame,
    scores: pl.LazyFrame,
    score: NDArray[np.float64],
    sets: ComparisonSets,
    controls: pl.LazyFrame | None,
) -> pl.DataFrame:
    """Lay out what is summed of each row of the targets table."""
    asked = read_numbers(targets, pl.col("reason").is_null(), score.size, np.bool_)
    outside = np.zeros(score.size, np.bool_)
    outside[sets.nulls] = True
    log_p = np.full(score.size, np.nan)
    if _PROBABILITY in scores.collect_schema():
        log_p = read_finite(scores, _PROBABILITY, score.size)
    common = pl.lit(value=False)
    if controls is not None:
        common = pl.col("target_id").is_in(common_targets(controls).implode())
    return pl.DataFrame(
        {
            "document": document_numbers(targets),
            "n_windows": read_numbers(targets, pl.col("n_windows"), score.size, np.uint32),
            "asked": asked | ~np.isnan(score),
            "score": pl.Series(score, nan_to_null=True),
            "outside": outside,
            "log_p": pl.Series(log_p, nan_to_null=True),
            "common": read_numbers(targets, common, score.size, np.bool_),
            "is_target": read_numbers(targets, pl.col("role") == "target", score.size, np.bool_),
            "is_beside": read_numbers(
                targets, pl.col("role") == "non_member", score.size, np.bool_
            ),
        }
    )


def _documents(windows: pl.DataFrame, threshold: float) -> pl.DataFrame:
    """Sum up the windows of each document; ``row`` is its first."""
    score = pl.col("score")
    own, log_p = ~pl.col("common"), pl.col("log_p")
    sampled, near = pl.col("longest_words"), pl.col("near_words")
    longest = pl.when(own).then(sampled)
    return windows.group_by("document", maintain_order=True).agg(
        pl.col("row", "n_windows", "is_target").first(),
        n_asked=pl.col("asked").sum(),
        n_scored=score.count(),
        n_above=(score > threshold).sum(),
        n_sampled=sampled.count(),
        n_verbatim=(longest >= VERBATIM_WORDS).sum(),
        n_near=(own & (near >= VERBATIM_WORDS)).sum(),
        n_common=pl.col("common").sum(),
        n_measured=log_p.count(),
        n_likely=(own & (log_p >= log(_LEAST_PROBABILITY))).sum(),
        log_p=pl.when(own).then(log_p).max(),
        mean=score.mean(),
        squares=((score - score.mean()) ** 2).sum(),
        outside=pl.col("outside").all(),
        varies=score.n_unique() > 1 + score.null_count().clip(upper_bound=1),
        longest_words=longest.max(),
        longest_row=pl.col("row").get(longest.arg_max(), null_on_oob=True),
        longest_sample_index=pl.col("sample_index").get(longest.arg_max(), null_on_oob=True),
    )


def _extracted(table: pl.LazyFrame) -> pl.DataFrame:
    known = ("bmc_5", "bmc_5_others", "passages_20", "passages_50")
    return table.select(*known, **_EXTRACTED, walked=pl.col("passages_20").is_not_null()).collect()


def _said(targets: pl.LazyFrame, rows: pl.Series) -> pl.DataFrame:
    """Name these rows' documents; ``said`` has what the corpus says of each."""
    own = (*Targets.column_names(), *_TYPES)
    further = [
        name
        for name, dtype in targets.collect_schema().items()
        if name in _LABELS or not (name in own or dtype.is_nested())
    ]
    said = targets.select(key=pl.coalesce("document_id", "target_id"), said=pl.struct(further))
    found = said.with_row_index("row").filter(pl.col("row").is_in(rows.implode()))
    return found.collect(engine="streaming")


def _units(documents: pl.DataFrame) -> pl.DataFrame:
    """Name the cluster whose p-value is a document's: itself, or a group of it alone.

    No rows where each document is one window.
    """
    documents = _of_windows(documents)
    group = pl.col("said").struct.field("group")
    alone = pl.len().over(group) == 1
    return documents.with_columns(
        level=pl.lit("document"),
        tested=pl.when(group.is_null())
        .then(pl.format("document {}", "key"))
        .when(alone)
        .then(pl.format("group {}", group)),
    )


def _outside(documents: pl.DataFrame) -> pl.DataFrame:
    """Set documents of the non-members beside the others, likewise."""
    labelled = pl.col("said").struct.with_fields(member=pl.lit(value=False))
    return _of_windows(documents).with_columns(
        labelled, level=pl.lit("outside"), tested=pl.lit(None, pl.String)
    )


def _of_windows(documents: pl.DataFrame) -> pl.DataFrame:
    return documents if (documents["n_windows"] > 1).any() else documents.clear()


def _groups(documents: pl.DataFrame) -> pl.DataFrame:
    """Sum up the documents of each group of several, in the order of the first."""
    said, n, longest = pl.col("said").struct, pl.col("n_scored"), pl.col("longest_words")
    names = documents["said"].struct.fields
    constant = (
        pl.when(said.field(name).n_unique() == 1).then(said.field(name).first()).alias(name)
        for name in names
    )
    mean = (n * pl.col("mean")).sum() / n.sum()
    between = n * (pl.col("mean") - mean) ** 2
    grouped = documents.with_columns(key=said.field("group")).filter(
        pl.col("key").is_not_null(), pl.len().over("key") > 1
    )
    return (
        grouped.group_by("key", maintain_order=True)
        .agg(
            _SUMS.sum(),
            pl.col(PASSAGE_COUNTS).sum(),
            pl.col("walked").any(),
            pl.col("log_p").max(),
            pl.col("extracted_words").max(),
            mean=mean.fill_nan(None),
            squares=pl.col("squares").sum() + between.sum(),
            outside=pl.col("outside").all(),
            varies=pl.col("varies").any() | (pl.col("mean").drop_nulls().n_unique() > 1),
            longest_words=longest.max(),
            longest_row=pl.col("longest_row").get(longest.arg_max(), null_on_oob=True),
            longest_sample_index=pl.col("longest_sample_index").get(
                longest.arg_max(), null_on_oob=True
            ),
            said=pl.struct(constant),
        )
        .with_columns(level=pl.lit("group"), tested=pl.format("group {}", "key"))
    )
