"""Passages that came out word for word, and which of them are common, and so no evidence."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from mia_batch.attacks.attack import CONTINUATION, RECITAL, matches_views
from mia_batch.inference.comparison import ComparisonSets
from mia_batch.inference.findings import finding_rows, number_rows
from mia_batch.kernels import (
    WordRule,
    book_coverage,
    foreseen_words,
    pair_features,
    word_spans,
)
from mia_batch.schemas import Controls
from mia_batch.tables import RowIndex, mapped_zeros

CONTINUED = (CONTINUATION, RECITAL)  # views whose answers continue a text
VERBATIM_WORDS = 20  # words in a row from which on a passage counts as repeated
COPIED_WORDS = (
    8  # words in a row that also stand in the prompt and are cut out of a passage
)

_SCHEMA = Controls.create_empty().schema
# Controls that ask a model, with its name in the run and the number of the prompt.
_ASKED = {
    "unrelated_prefix": ("target", 0),
    "unrelated_prefix_16_words": ("target", 1),
    "reference_model": ("reference", 0),
}
_MARKS_NOTHING = "unrelated_prefix_16_words"


def control_rows(
    passages: pl.DataFrame,
    answers: pl.DataFrame,
    elsewhere: pl.DataFrame,
    *,
    models: Collection[str],
    without: str,
) -> pl.DataFrame:
    named = passages.select("target_id", "target_row")
    repeats = pl.col("longest_words") >= VERBATIM_WORDS
    nothing = pl.when(pl.col("longest_words").is_null())
    made = [_rows(named.hstack(elsewhere), "other_document")]
    for control, (model, index) in _ASKED.items():
        if model in models:
            own = answers.filter(model=model, view_index=index).drop(
                "model", "view_index"
            )
            rows = named.join(
                own, on="target_id", how="left", maintain_order="left"
            ).with_columns(
                n_samples=pl.col("n_samples").fill_null(0),
                common=pl.when(repeats.is_not_null()).then(
                    repeats & (control != _MARKS_NOTHING)
                ),
                reason=nothing.then(pl.coalesce("reason", pl.lit(without))),
            )
            made.append(_rows(rows, control))
    return pl.concat(made).sort("target_row", "control").drop("target_row")


def _rows(found: pl.DataFrame, control: str) -> pl.DataFrame:
    there = found.with_columns(control=pl.lit(control))
    return there.select(
        *(
            (pl.col(name) if name in there.columns else pl.lit(None))
            .cast(dtype)
            .alias(name)
            for name, dtype in _SCHEMA.items()
        ),
        "target_row",
    )


def common_targets(controls: pl.LazyFrame) -> pl.Series:
    marked = controls.filter("common").select("target_id").unique(maintain_order=True)
    return marked.collect(engine="streaming").to_series()


def counts_of(controls: pl.DataFrame) -> dict[str, Any]:
    n_passages, n_common = (
        controls["target_id"].n_unique(),
        common_targets(controls.lazy()).len(),
    )
    counts: dict[str, Any] = {"any": {"passages": n_passages, "common": n_common}}
    for (control,), rows in controls.sort("control").group_by(
        "control", maintain_order=True
    ):
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
    share = pl.when(pl.col("words_document") > 0).then(
        pl.col("total") / pl.col("words_document")
    )
    return (
        extracted.join(of_document, on="document_id", how="left", maintain_order="left")
        .with_columns(
            # Of stretches that are left; null, which is passed over, where none is
            # common.
            longest_words=pl.min_horizontal("longest_words", changed.then("longest")),
            coverage=changed.then(share).otherwise("coverage"),
        )
        .drop("any_common", "longest", "total")
    )


VERBATIM_GROUP = "blocks"  # group of features that the runs are read from

_READ = ("longest_block_words", "near_verbatim_words")
_ANSWER_KEY = ("target_id", "view", "view_index", "sample_index")
_ROWS_AT_ONCE = 32_768
_LOW = (1 << 32) - 1
_NO_NUMBER = pl.lit(None, pl.UInt32)
_MOST_NAMED = 100  # documents of which passages came out


def _longest_own(words: WordRule, texts: Mapping[str, str | None]) -> int:
    """Count the words of the longest run after what the prefix has, too, is cut out."""
    said, given = (
        pl.Series([texts[name]], dtype=pl.String) for name in ("passage", "prefix")
    )
    own = book_coverage(
        said[0], said, instructions=given, words=words, k=1, m=COPIED_WORDS
    )
    return int(own["longest_block_words"].item())


def passage_of(words: WordRule) -> pl.Expr:
    """Take the longest run of an answer from the ``reference``."""
    spans, first = (
        word_spans("reference", words=words).struct,
        pl.col("longest_block_start"),
    )
    start = spans.field("starts").list.get(first)
    end = spans.field("ends").list.get(first + pl.col(_READ[0]) - 1)
    return pl.col("reference").str.slice(start, end - start)


def verbatim_runs(
    targets: pl.LazyFrame, features: pl.LazyFrame, samples: int, words: WordRule
) -> pl.DataFrame:
    """Find the longest run over the first ``samples`` continuations of each target."""
    # Null without a continuation, or where the features have no runs. Memory: 33 bytes
    # a target. Of a run that may be copied from the prefix (``copied``), such as a
    # refrain, the rest counts; of one of which words could be foreseen, those that
    # count: the longest run, as it stands, has ``run_words``, of which
    # ``foreseen_words`` could be foreseen.
    index = RowIndex(targets.select("target_id"))
    code, near = (mapped_zeros(index.height, dtype) for dtype in (np.uint64, np.uint32))
    run_words, n_foreseen = (mapped_zeros(index.height, np.uint32) for _ in range(2))
    is_copied, n_words = mapped_zeros(index.height, np.bool_), pl.col(_READ[0])
    if set(_READ) <= set(features.collect_schema()):
        first = matches_views(CONTINUED), pl.col("sample_index") < samples
        own = features.filter(*first, n_words.is_not_null())
        runs = own.filter(n_words >= VERBATIM_WORDS)
        runs = runs.select(*_ANSWER_KEY, _READ[0], "longest_block_start")
        long = runs.collect(engine="streaming")
        copied, foreseen = (
            _copied(targets, long, words),
            _foreseen(targets, long, words),
        )
        for part in (copied, foreseen):
            if part.height:
                # Which passes over nulls
                cut = (pl.min_horizontal(name, "left") for name in _READ)
                left = part.lazy().select(*_ANSWER_KEY, "left")
                own = (
                    own.join(left, on=_ANSWER_KEY, how="left")
                    .with_columns(cut)
                    .drop("left")
                )
        is_copied[index.find(copied["target_id"])[1]] = True
        # The last stays
        longest = foreseen.sort("run_words", "n_foreseen", maintain_order=True)
        which, places = index.find(longest["target_id"])
        run_words[places] = longest["run_words"].to_numpy()[which]
        n_foreseen[places] = longest["n_foreseen"].to_numpy()[which]
        own = own.select("target_id", "sample_index", *_READ)
        for batch in own.collect_batches(chunk_size=_ROWS_AT_ONCE):
            which, rows = index.find(batch["target_id"])
            # One number of a run's words and its sample, never 0: the more, then the
            # earlier one.
            joined = n_words.cast(pl.UInt64) * (1 << 32) + (
                _LOW - pl.col("sample_index")
            )
            np.maximum.at(
                code, rows, batch.select(joined).to_series().to_numpy()[which]
            )
            np.maximum.at(near, rows, batch[_READ[1]].to_numpy()[which])
    counts = {"run_words": run_words, "foreseen_words": n_foreseen}
    found = pl.DataFrame(
        {"code": code, "near_words": near, "copied": is_copied, **counts}
    )
    value = {
        "longest_words": pl.col("code") // (1 << 32),
        "sample_index": _LOW - pl.col("code") % (1 << 32),
        "near_words": pl.col("near_words"),
    }
    there = pl.when(pl.col("code") > 0)
    kept = (
        there.then(each.cast(pl.UInt32)).alias(name) for name, each in value.items()
    )
    return found.select("copied", *counts, *kept)


def _with_texts(targets: pl.LazyFrame, runs: pl.DataFrame) -> Iterator[pl.LazyFrame]:
    """Yield runs with their texts, in parts, so that the texts of so many are held."""
    for some in runs.iter_slices(_ROWS_AT_ONCE):
        own = targets.filter(pl.col("target_id").is_in(some["target_id"].implode()))
        yield some.lazy().join(
            own.select("target_id", "prefix", "reference"), on="target_id"
        )


def _copied(targets: pl.LazyFrame, long: pl.DataFrame, words: WordRule) -> pl.DataFrame:
    """Find long runs of which the prefix leaves fewer words (``left``) than a run must have."""
    shared = pair_features("passage", "prefix", words=words, groups=["blocks"]).struct
    left = pl.struct("passage", "prefix").map_elements(
        partial(_longest_own, words), pl.UInt32
    )
    found = [long.clear().select(*_ANSWER_KEY, left=_NO_NUMBER)]
    for own in _with_texts(targets, long):
        alike = own.with_columns(passage=passage_of(words))
        alike = alike.filter(shared.field(_READ[0]) >= COPIED_WORDS)
        alike = alike.select(*_ANSWER_KEY, left=left).filter(
            pl.col("left") < VERBATIM_WORDS
        )
        found.append(alike.collect(engine="streaming"))
    return pl.concat(found)


def text_before(start: pl.Expr) -> pl.Expr:
    """Give what stands before a place of the ``reference``, in characters: the prefix, too."""
    head = pl.col("reference").str.slice(0, start)
    return pl.concat_str([pl.col("prefix").fill_null(""), head], separator=" ")


def count_run_words(
    before: pl.Expr, run: pl.Expr, n_words: pl.Expr, words: WordRule
) -> pl.Expr:
    """Count the words of a run that count (``n_left``), and those that could be foreseen."""
    found = foreseen_words(before.fill_null(""), run, words=words).struct
    n_cut, n_foreseen = (
        found.field(name).list.len().fill_null(0).cast(pl.Int64)
        for name in ("cut", "foreseen")
    )
    n_left = (n_words.cast(pl.Int64) - n_cut).clip(lower_bound=0)
    return pl.struct(
        n_left=n_left.cast(pl.UInt32), n_foreseen=n_foreseen.cast(pl.UInt32)
    )


def _foreseen(
    targets: pl.LazyFrame, long: pl.DataFrame, words: WordRule
) -> pl.DataFrame:
    """Count the words of each long run that could be foreseen, and those that count (``left``)."""
    starts = word_spans("reference", words=words).struct.field("starts")
    before = text_before(starts.list.get(pl.col("longest_block_start")))
    counts = count_run_words(before, passage_of(words), pl.col(_READ[0]), words).struct
    columns = {"left": counts.field("n_left"), "n_foreseen": counts.field("n_foreseen")}
    columns["run_words"] = pl.col(_READ[0])
    parts = _with_texts(targets, long)
    found = [
        part.select(*_ANSWER_KEY, **columns).collect(engine="streaming")
        for part in parts
    ]
    empty = long.clear().select(*_ANSWER_KEY, **dict.fromkeys(columns, _NO_NUMBER))
    return pl.concat([empty, *found])


def verbatim_findings(
    runs: pl.DataFrame,
    sets: ComparisonSets,
    passages: pl.DataFrame,
    controls: pl.DataFrame | None,
    *,
    all_continued: bool = True,
) -> pl.DataFrame:
    """Rows of check ``verbatim``: what came out word for word, of targets and of non-members."""
    # Units are groups, else documents. The p-value is Fisher's exact one, of one side,
    # about units with a passage. Unless ``all_continued``, texts of the highest scores
    # were, whichever set they belong to.
    from scipy.stats import fisher_exact

    common = common_targets(
        (Controls.create_empty() if controls is None else controls).lazy()
    )
    is_common = sets.target_id.is_in(common.implode())
    table = runs.with_columns(common=is_common, unit=pl.Series(sets.cluster))
    out, near = (
        (pl.col(name) >= VERBATIM_WORDS) & ~pl.col("common")
        for name in ("longest_words", "near_words")
    )
    was_long = pl.col("run_words") >= VERBATIM_WORDS
    is_foreseen = (
        was_long & (pl.col("longest_words") < VERBATIM_WORDS) & ~pl.col("copied")
    )
    counted = {
        name: (
            table[of_set]
            .drop_nulls("longest_words")
            .select(
                n_texts=pl.len(),
                n_near=near.sum(),
                n_verbatim=out.sum(),
                n_copied=pl.col("copied").sum(),
                n_foreseen=is_foreseen.sum(),
                run_words=pl.col("run_words").filter(is_foreseen).sum(),
                foreseen_words=pl.col("foreseen_words").filter(is_foreseen).sum(),
                run_words_out=pl.col("run_words").filter(out).sum(),
                foreseen_words_out=pl.col("foreseen_words").filter(out).sum(),
                n_units=pl.col("unit").n_unique(),
                n_units_verbatim=pl.col("unit").filter(out).n_unique(),
            )
            .row(0, named=True)
        )
        for name, of_set in (("targets", sets.targets), ("non_members", sets.nulls))
    }
    own = passages.filter(
        pl.col("passage").is_not_null(), ~pl.col("target_id").is_in(common.implode())
    )
    n_left = table.select("longest_words", target_id=sets.target_id).rename(
        {"longest_words": "n"}
    )
    of_answers = pl.when(pl.col("text").is_null()).then("n")
    own = own.join(
        n_left, on="target_id", how="left", maintain_order="left"
    ).with_columns(n_left=pl.coalesce(of_answers, "n_left"))
    # Of others it is the text's own reference
    walked = own.filter(pl.col("text").is_not_null())
    if not (counted["targets"]["n_texts"] or walked.height):
        return finding_rows("verbatim")
    rows = [
        row
        for name, counts in counted.items()
        for row in number_rows(counts, subject=name)
    ]
    if counted["non_members"]["n_units"]:
        sides = [
            (each["n_units_verbatim"], each["n_units"]) for each in counted.values()
        ]
        exact = fisher_exact(
            np.array([(k, n - k) for k, n in sides]), alternative="greater"
        )
        rows.append(
            {"subject": "targets", "statistic": "fisher", "p_value": exact.pvalue}
        )
    rows += number_rows({"n_walked": walked.height}, subject="targets")
    n_highest = sum(counts["n_texts"] for counts in counted.values())
    if n_highest and not all_continued:
        rows += number_rows({"n_highest": n_highest}, subject="targets")
    if controls is not None and controls.height:
        for control, counts in counts_of(controls).items():
            rows += number_rows(counts, subject=control) if control != "any" else ()
    named = own.unique("name", keep="first", maintain_order=True)["name"]
    of_document = {"statistic": "document", "verdict": "comes_out"}
    rows += [of_document | {"subject": name} for name in named.head(_MOST_NAMED)]
    if own.height:
        longest = own.row(int(own["n_left"].arg_max() or 0), named=True)
        of = {"subject": longest["name"], "reason": longest["passage"]}
        rows += number_rows(
            {"longest": longest["n_left"], "of_words": longest["n_words"]}, **of
        )
    return finding_rows("verbatim", rows)
