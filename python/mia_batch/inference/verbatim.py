"""The longest run of words of each target that a continuation repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.attacks.attack import CONTINUATION
from mia_batch.attacks.terms import among
from mia_batch.inference.controls import VERBATIM_WORDS, common_targets, counts_of
from mia_batch.inference.findings import finding_rows
from mia_batch.tables import RowIndex, mapped_zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets

__all__ = ["VERBATIM_GROUP", "verbatim_findings", "verbatim_runs"]

VERBATIM_GROUP = "blocks"
"""Group of features that the runs are read from."""

_READ = ("longest_block_words", "near_verbatim_words")
_ROWS_AT_ONCE = 32_768
_LOW = (1 << 32) - 1
_MOST_NAMED = 100  # documents of which passages came out


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


def verbatim_findings(
    runs: pl.DataFrame,
    sets: ComparisonSets,
    passages: pl.DataFrame,
    controls: pl.DataFrame | None,
) -> pl.DataFrame:
    """Rows of check ``verbatim``: what came out word for word, of targets and of non-members.

    ``runs`` are those of `verbatim_runs`; ``passages`` of targets have ``target_id``, ``name``,
    ``passage`` and ``view``; those that ``controls`` mark as common are left out. Units are groups,
    else documents. The p-value is Fisher's exact one, of one side, about units with a passage. The
    longest passage is a row of its own, as are the documents of passages, the first hundred. None
    where nothing was continued.
    """
    from scipy.stats import fisher_exact

    common = pl.Series([], dtype=pl.String)
    if controls is not None:
        common = common_targets(controls.lazy())
    is_common = sets.target_id.is_in(common.implode())
    table = runs.with_columns(common=is_common, unit=pl.Series(sets.cluster))
    out, near = (
        (pl.col(name) >= VERBATIM_WORDS) & ~pl.col("common")
        for name in ("longest_words", "near_words")
    )
    counted = {
        name: table[of_set]
        .drop_nulls("longest_words")
        .select(
            n_texts=pl.len(),
            n_near=near.sum(),
            n_verbatim=out.sum(),
            n_units=pl.col("unit").n_unique(),
            n_units_verbatim=pl.col("unit").filter(out).n_unique(),
        )
        .row(0, named=True)
        for name, of_set in (("targets", sets.targets), ("non_members", sets.nulls))
    }
    own = passages.filter(
        pl.col("passage").is_not_null(), ~pl.col("target_id").is_in(common.implode())
    )
    walked = own.filter(view="walk_control")
    if not (counted["targets"]["n_texts"] or walked.height):
        return finding_rows("verbatim", [])
    rows: list[dict[str, object]] = [
        {"subject": name, "statistic": statistic, "value": value}
        for name, counts in counted.items()
        for statistic, value in counts.items()
    ]
    if counted["non_members"]["n_units"]:
        sides = [(each["n_units_verbatim"], each["n_units"]) for each in counted.values()]
        exact = fisher_exact(np.array([(k, n - k) for k, n in sides]), alternative="greater")
        rows.append({"subject": "targets", "statistic": "fisher", "p_value": exact.pvalue})
    rows.append({"subject": "targets", "statistic": "n_walked", "value": walked.height})
    if controls is not None and controls.height:
        of_controls = counts_of(controls)
        del of_controls["any"]
        rows += (
            {"subject": control, "statistic": statistic, "value": value}
            for control, counts in of_controls.items()
            for statistic, value in counts.items()
        )
    named = own.unique("name", keep="first", maintain_order=True)["name"]
    rows += [
        {"subject": name, "statistic": "document", "verdict": "comes_out"}
        for name in named.head(_MOST_NAMED)
    ]
    words = own["passage"].str.count_matches(r"\S+")
    if own.height:
        longest = own.row(int(words.arg_max() or 0), named=True)
        rows.append(
            {
                "subject": longest["name"],
                "statistic": "longest",
                "value": words.max(),
                "reason": longest["passage"],
            }
        )
    return finding_rows("verbatim", rows)


def _code(batch: pl.DataFrame) -> NDArray[np.uint64]:
    """Join a run's words and its sample to one number, never 0: the more, then the earlier one."""
    code = pl.col(_READ[0]).cast(pl.UInt64) * (1 << 32) + (_LOW - pl.col("sample_index"))
    return batch.select(code).to_series().to_numpy()
