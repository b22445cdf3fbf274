"""Passages that came out word for word; those that are common are no evidence."""

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
# Words in a row that also stand in the prompt and are cut out of a passage
COPIED_WORDS = 8

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
    keys = passages.select("target_id", "target_row")
    is_repeated = pl.col("longest_words") >= VERBATIM_WORDS
    is_unanswered = pl.col("longest_words").is_null()
    reason = pl.coalesce("reason", pl.lit(without))
    tables = [_select_columns(keys.hstack(elsewhere), "other_document")]
    for control, (model, index) in _ASKED.items():
        if model not in models:
            continue
        own_answers = answers.filter(model=model, view_index=index)
        rows = keys.join(
            own_answers.drop("model", "view_index"),
            on="target_id",
            how="left",
            maintain_order="left",
        )
        is_common = is_repeated & (control != _MARKS_NOTHING)
        rows = rows.with_columns(
            n_samples=pl.col("n_samples").fill_null(0),
            common=pl.when(is_repeated.is_not_null()).then(is_common),
            reason=pl.when(is_unanswered).then(reason),
        )
        tables.append(_select_columns(rows, control))
    return pl.concat(tables).sort("target_row", "control").drop("target_row")


def _select_columns(rows: pl.DataFrame, control: str) -> pl.DataFrame:
    rows = rows.with_columns(control=pl.lit(control))
    columns = []
    for name, dtype in _SCHEMA.items():
        column = pl.col(name) if name in rows.columns else pl.lit(None)
        columns.append(column.cast(dtype).alias(name))
    return rows.select(*columns, "target_row")


def common_targets(controls: pl.LazyFrame) -> pl.Series:
    """List the targets whose passages a control marks as common."""
    marked = controls.filter("common").select("target_id").unique(maintain_order=True)
    return marked.collect(engine="streaming").to_series()


def count_controls(controls: pl.DataFrame) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "any": {
            "passages": controls["target_id"].n_unique(),
            "common": common_targets(controls.lazy()).len(),
        }
    }
    by_control = controls.sort("control").group_by("control", maintain_order=True)
    for (control,), rows in by_control:
        counts[str(control)] = {
            "passages": rows["common"].count(),
            "repeated": (rows["longest_words"] >= VERBATIM_WORDS).sum(),
        }
    return counts


def without_common(
    extracted: pl.LazyFrame,
    extraction: pl.LazyFrame,
    common: pl.Series,
) -> pl.LazyFrame:
    """Leave stretches that start with a common passage out of what was extracted."""
    is_common = pl.col("target_id").is_in(common.implode())
    n_words = pl.when(~is_common).then("n_words")
    documents = extraction.group_by("document_id").agg(
        any_common=is_common.any(),
        longest=n_words.max().fill_null(0),
        total=n_words.sum(),
    )
    has_words = pl.col("words_document") > 0
    share = pl.when(has_words).then(pl.col("total") / pl.col("words_document"))
    # Null, which is passed over, where none is common
    changed = pl.when("any_common")
    return (
        extracted.join(
            documents,
            on="document_id",
            how="left",
            maintain_order="left",
        )
        .with_columns(
            longest_words=pl.min_horizontal("longest_words", changed.then("longest")),
            coverage=changed.then(share).otherwise("coverage"),
        )
        .drop("any_common", "longest", "total")
    )


VERBATIM_GROUP = "blocks"  # group of features that the runs are read from

_RUN_COLUMNS = ("longest_block_words", "near_verbatim_words")
_N_WORDS = pl.col("longest_block_words")
_ANSWER_KEY = ("target_id", "view", "view_index", "sample_index")
_ROWS_AT_ONCE = 32_768
_LOW_BITS = (1 << 32) - 1
_NO_NUMBER = pl.lit(None, pl.UInt32)
_MOST_NAMED = 100  # documents of which passages came out


def _count_uncopied_words(words: WordRule, texts: Mapping[str, str | None]) -> int:
    """Count the words of the longest run after what the prefix has, too, is cut out."""
    passage = pl.Series([texts["passage"]], dtype=pl.String)
    prefix = pl.Series([texts["prefix"]], dtype=pl.String)
    coverage = book_coverage(
        passage[0],
        passage,
        instructions=prefix,
        words=words,
        k=1,
        m=COPIED_WORDS,
    )
    return int(coverage["longest_block_words"].item())


def longest_passage(words: WordRule) -> pl.Expr:
    """Cut the longest run of an answer out of the ``reference``."""
    spans = word_spans("reference", words=words).struct
    first = pl.col("longest_block_start")
    last = first + _N_WORDS - 1
    start = spans.field("starts").list.get(first)
    end = spans.field("ends").list.get(last)
    return pl.col("reference").str.slice(start, end - start)


def verbatim_runs(
    targets: pl.LazyFrame,
    features: pl.LazyFrame,
    samples: int,
    words: WordRule,
) -> pl.DataFrame:
    """Find the longest run over the first ``samples`` continuations of each target."""
    # Null without a continuation, or where the features have no runs. Memory: 33 bytes
    # a target. Of a run that may be copied from the prefix (``copied``), such as a
    # refrain, the rest counts; of one of which words could be foreseen, those that
    # count: the longest run, as it stands, has ``run_words``, of which
    # ``foreseen_words`` could be foreseen.
    index = RowIndex(targets.select("target_id"))
    code = mapped_zeros(index.height, np.uint64)
    near_words = mapped_zeros(index.height, np.uint32)
    run_words = mapped_zeros(index.height, np.uint32)
    foreseen_words = mapped_zeros(index.height, np.uint32)
    is_copied = mapped_zeros(index.height, np.bool_)
    if set(_RUN_COLUMNS) <= set(features.collect_schema()):
        answers = features.filter(
            matches_views(CONTINUED),
            pl.col("sample_index") < samples,
            _N_WORDS.is_not_null(),
        )
        runs = answers.filter(_N_WORDS >= VERBATIM_WORDS)
        runs = runs.select(*_ANSWER_KEY, _N_WORDS, "longest_block_start")
        long = runs.collect(engine="streaming")
        copied = _find_copied(targets, long, words)
        foreseen = _count_foreseen(targets, long, words)
        for shortened in (copied, foreseen):
            if shortened.height:
                answers = _shorten(answers, shortened)
        is_copied[index.find(copied["target_id"])[1]] = True
        # The last stays
        ascending = foreseen.sort("run_words", "n_foreseen", maintain_order=True)
        places, rows = index.find(ascending["target_id"])
        run_words[rows] = ascending["run_words"].to_numpy()[places]
        foreseen_words[rows] = ascending["n_foreseen"].to_numpy()[places]
        # One number of a run's words and its sample, never 0: the more, then the
        # earlier one.
        earliness = _LOW_BITS - pl.col("sample_index")
        answers = answers.select(
            "target_id",
            near_words="near_verbatim_words",
            code=_N_WORDS.cast(pl.UInt64) * (1 << 32) + earliness,
        )
        for batch in answers.collect_batches(chunk_size=_ROWS_AT_ONCE):
            places, rows = index.find(batch["target_id"])
            np.maximum.at(code, rows, batch["code"].to_numpy()[places])
            np.maximum.at(near_words, rows, batch["near_words"].to_numpy()[places])
    runs_of_targets = pl.DataFrame(
        {
            "copied": is_copied,
            "run_words": run_words,
            "foreseen_words": foreseen_words,
            "code": code,
            "near_words": near_words,
        }
    )
    return _decode_runs(runs_of_targets)


def _decode_runs(runs: pl.DataFrame) -> pl.DataFrame:
    """Split the ``code`` of each target's longest run into its words and its sample."""
    code = pl.col("code")
    has_run = pl.when(code > 0)
    longest_words = code // (1 << 32)
    sample_index = _LOW_BITS - code % (1 << 32)
    return runs.select(
        "copied",
        "run_words",
        "foreseen_words",
        longest_words=has_run.then(longest_words.cast(pl.UInt32)),
        sample_index=has_run.then(sample_index.cast(pl.UInt32)),
        near_words=has_run.then("near_words"),
    )


def _shorten(answers: pl.LazyFrame, runs: pl.DataFrame) -> pl.LazyFrame:
    """Cut the runs of answers to the words ``left`` of them; null changes nothing."""
    words_left = runs.lazy().select(*_ANSWER_KEY, "left")
    shortened = [pl.min_horizontal(name, "left") for name in _RUN_COLUMNS]
    joined = answers.join(words_left, on=_ANSWER_KEY, how="left")
    return joined.with_columns(shortened).drop("left")


def _with_texts(targets: pl.LazyFrame, runs: pl.DataFrame) -> Iterator[pl.LazyFrame]:
    """Iterate over runs with their texts, of which so many are held at a time."""
    for batch in runs.iter_slices(_ROWS_AT_ONCE):
        is_in_batch = pl.col("target_id").is_in(batch["target_id"].implode())
        texts = targets.filter(is_in_batch).select("target_id", "prefix", "reference")
        yield batch.lazy().join(texts, on="target_id")


def _find_copied(
    targets: pl.LazyFrame,
    long: pl.DataFrame,
    words: WordRule,
) -> pl.DataFrame:
    """Find long runs of which the prefix leaves too few words (``left``)."""
    shared = pair_features(
        "passage",
        "prefix",
        words=words,
        groups=["blocks"],
    ).struct
    count_words = partial(_count_uncopied_words, words)
    texts = pl.struct("passage", "prefix")
    words_left = texts.map_elements(count_words, pl.UInt32)
    tables = [long.clear().select(*_ANSWER_KEY, left=_NO_NUMBER)]
    for runs in _with_texts(targets, long):
        passages = runs.with_columns(passage=longest_passage(words))
        alike = passages.filter(shared.field("longest_block_words") >= COPIED_WORDS)
        shortened = alike.select(*_ANSWER_KEY, left=words_left)
        copied = shortened.filter(pl.col("left") < VERBATIM_WORDS)
        tables.append(copied.collect(engine="streaming"))
    return pl.concat(tables)


def text_before(start: pl.Expr) -> pl.Expr:
    """Return the prefix and what stands before a place of the ``reference``."""
    head = pl.col("reference").str.slice(0, start)
    return pl.concat_str([pl.col("prefix").fill_null(""), head], separator=" ")


def count_run_words(
    context: pl.Expr,
    run: pl.Expr,
    n_words: pl.Expr,
    words: WordRule,
) -> pl.Expr:
    """Count the words of a run that could be foreseen, and those that count (``n_left``)."""
    places = foreseen_words(context.fill_null(""), run, words=words).struct

    def count(name: str) -> pl.Expr:
        return places.field(name).list.len().fill_null(0).cast(pl.Int64)

    n_left = (n_words.cast(pl.Int64) - count("cut")).clip(lower_bound=0)
    return pl.struct(
        n_left=n_left.cast(pl.UInt32),
        n_foreseen=count("foreseen").cast(pl.UInt32),
    )


def _count_foreseen(
    targets: pl.LazyFrame,
    long: pl.DataFrame,
    words: WordRule,
) -> pl.DataFrame:
    """Count the words of long runs that could be foreseen, and those that count (``left``)."""
    starts = word_spans("reference", words=words).struct.field("starts")
    context = text_before(starts.list.get(pl.col("longest_block_start")))
    counts = count_run_words(
        context,
        longest_passage(words),
        _N_WORDS,
        words,
    ).struct
    columns = {
        "left": counts.field("n_left"),
        "n_foreseen": counts.field("n_foreseen"),
        "run_words": _N_WORDS,
    }
    empty = long.clear().select(*_ANSWER_KEY, **dict.fromkeys(columns, _NO_NUMBER))
    tables = [empty]
    for runs in _with_texts(targets, long):
        n_words = runs.select(*_ANSWER_KEY, **columns)
        tables.append(n_words.collect(engine="streaming"))
    return pl.concat(tables)


def verbatim_findings(
    runs: pl.DataFrame,
    sets: ComparisonSets,
    passages: pl.DataFrame,
    controls: pl.DataFrame | None,
    stretches: pl.DataFrame,
    *,
    all_continued: bool = True,
) -> pl.DataFrame:
    """Rows of check ``verbatim``: what came out word for word, of targets and of non-members."""
    # Units are groups, else documents. The p-value is Fisher's exact one, of one side,
    # about units with a passage. Unless ``all_continued``, texts of the highest scores
    # were, whichever set they belong to. Of ``stretches`` the longest passage may be.
    if controls is None:
        controls = Controls.create_empty()
    common = common_targets(controls.lazy())
    is_common = sets.target_id.is_in(common.implode())
    table = runs.with_columns(common=is_common, unit=pl.Series(sets.cluster))
    counts = {
        "targets": _count_runs(table[sets.targets]),
        "non_members": _count_runs(table[sets.nulls]),
    }
    n_words = table.select(n=pl.col("longest_words"), target_id=sets.target_id)
    passages = passages.filter(
        pl.col("passage").is_not_null(),
        ~pl.col("target_id").is_in(common.implode()),
    )
    passages = passages.join(
        n_words,
        on="target_id",
        how="left",
        maintain_order="left",
    )
    # Of others it is the text's own reference
    is_walk = pl.col("text").is_not_null()
    n_of_answers = pl.when(~is_walk).then("n")
    passages = passages.with_columns(n_left=pl.coalesce(n_of_answers, "n_left"))
    n_walked = passages.filter(is_walk).height
    if not (counts["targets"]["n_texts"] or n_walked):
        return finding_rows("verbatim")
    rows = list[dict[str, object]]()
    for name, numbers in counts.items():
        rows += number_rows(numbers, subject=name)
    if counts["non_members"]["n_units"]:
        rows.append(
            {
                "subject": "targets",
                "statistic": "fisher",
                "p_value": _fisher_p_value(counts["targets"], counts["non_members"]),
            }
        )
    rows += number_rows({"n_walked": n_walked}, subject="targets")
    n_highest = sum(numbers["n_texts"] for numbers in counts.values())
    if n_highest and not all_continued:
        rows += number_rows({"n_highest": n_highest}, subject="targets")
    if controls.height:
        for control, numbers in count_controls(controls).items():
            if control != "any":
                rows += number_rows(numbers, subject=control)
    return finding_rows("verbatim", [*rows, *_passage_rows(passages, stretches)])


def _count_runs(runs: pl.DataFrame) -> dict[str, Any]:
    """Count texts of a set, and words of runs that came out or could be foreseen."""
    is_own = ~pl.col("common")
    is_out = (pl.col("longest_words") >= VERBATIM_WORDS) & is_own
    is_near = (pl.col("near_words") >= VERBATIM_WORDS) & is_own
    was_long = pl.col("run_words") >= VERBATIM_WORDS
    is_short = pl.col("longest_words") < VERBATIM_WORDS
    is_foreseen = was_long & is_short & ~pl.col("copied")
    counts = runs.drop_nulls("longest_words").select(
        n_texts=pl.len(),
        n_near=is_near.sum(),
        n_verbatim=is_out.sum(),
        n_copied=pl.col("copied").sum(),
        n_foreseen=is_foreseen.sum(),
        run_words=pl.col("run_words").filter(is_foreseen).sum(),
        foreseen_words=pl.col("foreseen_words").filter(is_foreseen).sum(),
        run_words_out=pl.col("run_words").filter(is_out).sum(),
        foreseen_words_out=pl.col("foreseen_words").filter(is_out).sum(),
        n_units=pl.col("unit").n_unique(),
        n_units_verbatim=pl.col("unit").filter(is_out).n_unique(),
    )
    return counts.row(0, named=True)


def _fisher_p_value(*counts: Mapping[str, int]) -> float:
    from scipy.stats import fisher_exact

    table = []
    for numbers in counts:
        n_verbatim = numbers["n_units_verbatim"]
        table.append((n_verbatim, numbers["n_units"] - n_verbatim))
    return float(fisher_exact(np.array(table), alternative="greater").pvalue)


def longest_stretches(
    extraction: pl.LazyFrame, extracted: pl.LazyFrame
) -> pl.DataFrame:
    """Return the walk that said the longest passage of each document, with the ``passage``.

    Columns of ``extraction``, ``passage_start`` and ``n_left``, the words of the passage
    that could not be foreseen. ``passage`` is null of runs that did not store it.
    """
    place = pl.col("passages_20").struct
    passages = (
        extracted.filter(pl.col("longest_words") > 0)
        .select("document_id", "passages_20", n_left="longest_words")
        .explode("passages_20")
        .drop_nulls("passages_20")
        .with_columns(
            passage_start=place.field("start"), passage_end=place.field("end")
        )
        .drop("passages_20")
    )
    start = pl.max_horizontal("start", "passage_start")
    length = pl.min_horizontal("end", "passage_end").cast(pl.Int64) - start
    offset = start - pl.col("start")
    walks = extraction.filter(pl.col("n_words") > 0).join(passages, on="document_id")
    ranked = (
        walks.with_columns(length=length)
        .filter(pl.col("length") > 0)
        .sort("length", "walk", descending=[True, False])
        .unique("document_id", keep="first", maintain_order=True)
    )
    passage = pl.col("text").cast(pl.String).str.slice(offset, pl.col("length"))
    return ranked.with_columns(passage=passage).drop("length").collect()


def _passage_rows(
    passages: pl.DataFrame, stretches: pl.DataFrame
) -> list[dict[str, object]]:
    """Build a row of each document that comes out, and of the longest passage."""
    if passages.is_empty():
        return []
    names = passages.unique("name", keep="first", maintain_order=True)["name"]
    rows: list[dict[str, object]] = [
        {
            "subject": name,
            "statistic": "document",
            "verdict": "comes_out",
        }
        for name in names.head(_MOST_NAMED)
    ]
    columns = ("name", "passage", "n_words", "n_left")
    pieces = pl.concat([passages.select(columns), stretches.select(columns)])
    place = int(pieces["n_left"].arg_max() or 0)
    longest = pieces.row(place, named=True)
    numbers = {"longest": longest["n_left"], "of_words": longest["n_words"]}
    return rows + number_rows(
        numbers,
        subject=longest["name"],
        reason=longest["passage"],
    )
