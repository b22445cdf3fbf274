"""Whole documents and groups: what a report says of each, and of how sure models are of texts."""

from collections.abc import Iterator
from math import log

import numpy as np
import polars as pl

from mia_batch.attacks.attack import matches_views
from mia_batch.inference.comparison import ComparisonSets, read_comparison_sets
from mia_batch.inference.estimates import WindowShare
from mia_batch.inference.findings import VerdictPlan, gate_verdict, why_withheld
from mia_batch.inference.memory import (
    CONTINUED,
    VERBATIM_WORDS,
    common_targets,
    count_run_words,
    text_before,
)
from mia_batch.inference.verdicts import NO_NULL
from mia_batch.kernels import WordRule, book_coverage
from mia_batch.schemas import Perplexities, Rollup, Targets
from mia_batch.stats import Floats
from mia_batch.tables import read_finite, read_numbers
from mia_batch.targets import document_numbers

_TYPES = Rollup.create_empty().schema
_BEST = (
    1.5  # times the smallest p-value there can be: no comparison text scores as high
)
_NOT_LISTED = (
    "it is not on the list that is reported, so that no share above 0 is claimed"
)
_OUTSIDE = "known to be outside the training data: others are compared with it"


def with_mean(rows: pl.DataFrame) -> pl.DataFrame:
    """Give the mean Student's interval; both are null below two scores."""
    from scipy.stats import t

    n = pl.col("n_scored")
    quantile = pl.Series(
        "t", t.ppf(0.975, np.maximum(rows["n_scored"].to_numpy(), 2) - 1)
    )
    half = quantile * (pl.col("squares") / (n - 1.0) / n).sqrt()
    mean = pl.col("mean")
    low, high = mean - half, mean + half
    wide = pl.when(n > 1, "varies", low < mean, mean < high)
    return rows.with_columns(
        mean=pl.when(n > 1).then(mean),
        mean_low=wide.then(low),
        mean_high=wide.then(high),
    )


def with_share(
    rows: pl.DataFrame, share: WindowShare, withheld: str | None = None
) -> pl.DataFrame:
    """Give each row the share of its windows that were in the training data."""
    made: list[tuple[float | None, float | None, float | None, str | None]] = []
    for *counts, outside in rows.select(
        "n_above", "n_scored", "n_asked", "outside"
    ).iter_rows():
        if reason := _OUTSIDE if outside else withheld:
            made.append((None, None, None, reason))
        else:
            found = share.of(*counts)
            made.append((found.value, found.low, found.high, found.reason))
    names = (
        "contamination",
        "contamination_low",
        "contamination_high",
        "contamination_reason",
    )
    columns = pl.DataFrame(
        made, schema={name: _TYPES[name] for name in names}, orient="row"
    )
    return pl.concat([rows, columns], how="horizontal")


def with_answer(
    rows: pl.DataFrame,
    verdicts: pl.LazyFrame,
    plan: VerdictPlan,
    *,
    any_null: bool,
    exploratory: bool,
) -> pl.DataFrame:
    """Give each row the p-value of its cluster, or why it has no p-value, and the verdict."""
    level = pl.col("level").cast(pl.String)
    answers = (
        verdicts.filter(
            level.is_in(["document", "group"]), pl.col("estimate").is_null()
        )
        .filter(attack=plan.primary, versus="non_members")
        .select(
            "p_value", "q_value", "n_null", "reason", tested=level + " " + pl.col("key")
        )
        .collect(engine="streaming")
    )
    without = (
        pl.when("outside")
        .then(pl.lit(_OUTSIDE))
        .when(not any_null)
        .then(pl.lit(NO_NULL))
        .when(pl.col("tested").is_null())
        .then(pl.lit("its group is tested as a whole"))
        .otherwise(
            pl.lit("no document has two windows, so that texts are tested alone")
        )
    )
    verdict = (
        pl.when(pl.max_horizontal("longest_words", "extracted_words") >= VERBATIM_WORDS)
        .then(pl.lit("comes_out"))
        .when(pl.col("p_value").is_null() | exploratory)
        .then(pl.lit("cannot_tell"))
        .when(pl.col("q_value") <= plan.q)
        .then(pl.lit("known_better"))
        .when(pl.col("p_value") * (pl.col("n_null") + 1) < _BEST)
        .then(pl.lit("above_all"))
        .otherwise(pl.lit("nothing_found"))
    )
    return rows.join(
        answers, on="tested", how="left", maintain_order="left"
    ).with_columns(
        reason=pl.when(pl.col("p_value").is_null()).then(
            pl.coalesce("reason", without)
        ),
        verdict=verdict,
    )


def with_claim(rows: pl.DataFrame, plan: VerdictPlan) -> pl.DataFrame:
    """Claim a share above 0 of those on the list alone."""
    # A bound holds for a row that was named before: among fifty rows of which none was
    # trained on, some bound is above 0 more often than not, while a list at level q
    # names any in at most a share q of audits. To widen an interval downwards is safe,
    # so its estimate and upper end stay.
    listed, low = pl.col("q_value") <= plan.q, pl.col("contamination_low")
    claimed = pl.when(low.is_not_null()).then(pl.when(listed).then(low).otherwise(0.0))
    bound_alone = (
        low.is_not_null() & pl.col("contamination").is_null() & ~listed.fill_null(False)
    )
    return rows.with_columns(
        contamination_low=claimed,
        contamination_reason=pl.when(bound_alone)
        .then(pl.lit(_NOT_LISTED))
        .otherwise("contamination_reason"),
    )


# Passages of documents that came out word for word: those that overlap in a document
# are one.

_WORDS = (20, 50)  # words from which on passages are counted
PASSAGE_COUNTS = tuple(f"n_passages_{k}" for k in _WORDS)  # columns of their counts
_WINDOWS_AT_ONCE = 4096
_BREAK = " 7endofthewindow7 "  # one word by every rule, of no text
_SPAN = pl.Schema(
    {"start": pl.Int64, "end": pl.Int64, "document": pl.UInt32, "k": pl.UInt32}
)


def count_passages(
    windows: pl.DataFrame,
    documents: pl.DataFrame,
    targets: pl.LazyFrame,
    candidates: pl.LazyFrame,
    *,
    samples: int,
    words: WordRule,
) -> pl.DataFrame:
    # Passages that walks found in ``documents`` are added.
    spans = [pl.DataFrame(schema=_SPAN)]
    long = windows.filter(pl.col("longest_words") >= min(_WORDS))
    for part in long.iter_slices(_WINDOWS_AT_ONCE):
        spans += _of_windows(part, targets, candidates, samples, words)
    for k in _WORDS:
        found = documents.select("document", passage=f"passages_{k}").explode("passage")
        place = pl.col("passage").struct
        spans.append(
            found.drop_nulls().select(
                start=place.field("start"),
                end=place.field("end"),
                document="document",
                k=pl.lit(k),
            )
        )
    whole = pl.concat([each.cast(_SPAN) for each in spans]).sort(
        "document", "k", "start"
    )
    reached = pl.col("end").cum_max().shift().over("document", "k")
    first = (pl.col("start") >= reached).fill_null(value=True)
    counts = {
        name: (pl.col("k") == k).sum()
        for name, k in zip(PASSAGE_COUNTS, _WORDS, strict=True)
    }
    return whole.filter(first).group_by("document", maintain_order=True).agg(**counts)


def _of_windows(
    windows: pl.DataFrame,
    targets: pl.LazyFrame,
    candidates: pl.LazyFrame,
    samples: int,
    words: WordRule,
) -> Iterator[pl.DataFrame]:
    own = pl.col("target_id").is_in(windows["target_id"].implode())
    begin = pl.col("start").fill_null(0) + pl.col("prefix").str.len_chars()
    reference = pl.col("reference").fill_null("")
    texts = targets.filter(own).select("target_id", "prefix", reference, begin=begin)
    given = candidates.filter(
        own,
        matches_views(CONTINUED),
        pl.col("sample_index") < samples,
        pl.col("candidate").is_not_null(),
    )
    asked = windows.join(
        texts.collect(engine="streaming"), on="target_id", maintain_order="left"
    )
    said = given.select("target_id", "candidate").collect(engine="streaming")
    for (document,), part in asked.group_by("document", maintain_order=True):
        answers = said.join(part, on="target_id", how="semi")["candidate"]
        lengths = part["reference"].str.len_chars().cast(pl.Int64) + len(_BREAK)
        first = lengths.cum_sum() - lengths
        for k in (k for k in _WORDS if k <= part["longest_words"].max()):  # type: ignore[operator]
            found = book_coverage(
                _BREAK.join(part["reference"]), answers, words=words, k=k
            )
            places = found["blocks"].explode(empty_as_null=False).struct.unnest()
            # From places in the joined references to those in their document.
            window = (
                first.search_sorted(places["start"].cast(pl.Int64), side="right") - 1
            )
            runs = part.select("prefix", "reference")[window].hstack(places)
            start = pl.col("start") - first.gather(window)
            passage = pl.col("reference").str.slice(
                start, pl.col("end") - pl.col("start")
            )
            counted = count_run_words(
                text_before(start), passage, pl.col("words"), words
            ).struct
            counts = runs.select(counted.field("n_left") >= k).to_series()
            places, window = places.filter(counts), window.filter(counts)
            shift = (part["begin"].cast(pl.Int64) - first).gather(window)
            yield places.select(
                pl.col("start", "end").cast(pl.Int64) + shift,
                document=pl.lit(document),
                k=pl.lit(k),
            )


# From texts to whole documents and groups: what a report says of each.

_SUMS = pl.col(
    "^n_(windows|asked|scored|above|sampled|verbatim|near|common|measured|likely)$"
)
_EXTRACTED = {
    "key": "document_id",
    "extracted_words": "longest_words",
    "extracted_share": "coverage",
}
_WALKED = ("bmc_5", "bmc_5_others", "passages_20", "passages_50")
_COMMON = pl.col("common")
_ANY_WINDOWS = (
    pl.col("n_windows") > 1
).any()  # no rows where each document is one window
_LABELS = ("group", "member")
# The attack whose score is the log of the probability that the reference is said in
# full.
_PROBABILITY = "extraction_v1"
_CHOSEN = (
    "windows were asked until the group was decided, so that they stand for no others"
)
_LEAST_PROBABILITY = 0.001  # of a window that a thousand draws give


def rollup(
    targets: pl.LazyFrame,
    scores: pl.LazyFrame,
    runs: pl.DataFrame,
    verdicts: pl.LazyFrame,
    plan: VerdictPlan,
    *,
    extracted: pl.LazyFrame,
    candidates: pl.LazyFrame,
    samples: int,
    words: WordRule,
    blind_warns: bool,
    findings: pl.DataFrame,
    controls: pl.LazyFrame | None = None,
    all_continued: bool = True,
) -> pl.DataFrame:
    """Sum up the documents of role ``target`` by the primary attack, and groups of several."""
    # ``targets``, ``scores`` and ``runs`` (what continuations give back) have their
    # rows in one order. The first ``samples`` continuations count, those of passages
    # that ``controls`` mark as common do not. Unless ``all_continued`` texts were
    # chosen by their scores, and no share of them is said to come out. The interval of
    # the mean takes windows as independent draws; those of one document are not, so it
    # is rather too narrow.
    sets = read_comparison_sets(scores, named=False)
    score = read_finite(scores, plan.primary, sets.target_id.len())
    chosen = _CHOSEN if plan.adjustment == "e-bh" else None
    share = WindowShare(sets, score, plan.fpr, blind_warns=blind_warns, lack=chosen)
    windows = _windows(targets, scores, score, sets, controls)
    windows = windows.hstack(runs).with_row_index("row")
    windows = windows.filter(pl.any_horizontal("is_target", "is_non_member"))
    if not windows.select(
        _ANY_WINDOWS
    ).item():  # texts alone: only groups are summed up
        grouped = read_numbers(
            targets, pl.col("group").is_not_null(), score.size, np.bool_
        )
        windows = windows.filter(pl.Series(grouped[windows["row"].to_numpy()]))
    documents = _documents(windows, share.threshold)
    documents = documents.sort("is_target", descending=True, maintain_order=True)
    documents = documents.join(
        _said(targets, documents["row"]), on="row", maintain_order="left"
    )
    walked, same = pl.col("passages_20").is_not_null(), ["key", "is_target"]
    walks = extracted.select(
        *_WALKED, **_EXTRACTED, is_target=True, walked=walked
    ).collect()
    documents = documents.join(walks, on=same, how="left", maintain_order="left")
    counts = count_passages(
        windows.with_columns(target_id=sets.target_id.gather(windows["row"])).filter(
            ~_COMMON
        ),
        *(documents, targets, candidates),
        samples=samples,
        words=words,
    )
    documents = documents.join(counts, on="document", how="left", maintain_order="left")
    own, others = documents.filter("is_target"), documents.filter(~pl.col("is_target"))
    outside = others.filter(_ANY_WINDOWS).with_columns(
        pl.col("said").struct.with_fields(member=pl.lit(value=False)),
        level=pl.lit("outside"),
        tested=pl.lit(None, pl.String),
    )
    rows = with_mean(pl.concat([_units(own), _groups(own), outside], how="diagonal"))
    if chosen:
        rows = rows.with_columns(mean_low=None, mean_high=None)
    rows = _with_figures(
        rows, sets.target_id, all_continued=all_continued
    ).with_columns(
        attack=pl.lit(plan.primary),
        n_common=None if controls is None else pl.col("n_common"),
    )
    rows = with_share(rows, share, why_withheld(findings))
    exploratory = gate_verdict(findings) == "exploratory"
    rows = with_answer(
        rows, verdicts, plan, any_null=sets.nulls.size > 0, exploratory=exploratory
    )
    rows = with_claim(rows, plan)
    typed = (pl.col(name).cast(dtype) for name, dtype in _TYPES.items())
    return rows.select(*typed, "said").unnest("said")


def _with_figures(
    rows: pl.DataFrame, target_id: pl.Series, *, all_continued: bool
) -> pl.DataFrame:
    any_run, sampled = pl.when(pl.col("longest_words") > 0), pl.col("n_sampled") > 0
    sources = pl.concat_list(
        pl.when(sampled).then(pl.lit("samples")),
        pl.when("walked").then(pl.lit("walks")),
    ).list.drop_nulls()
    any_source = pl.when(sources.list.len() > 0)
    shown = pl.when(pl.lit(all_continued))
    return rows.with_columns(
        any_source.then(pl.col(PASSAGE_COUNTS).fill_null(0)),
        passages_from=any_source.then(sources.list.join(" and ")),
        longest_target_id=any_run.then(target_id.gather(rows["longest_row"])),
        longest_sample_index=any_run.then("longest_sample_index"),
        share_verbatim=shown.then(pl.col("n_verbatim") / pl.col("n_sampled")).fill_nan(
            None
        ),
        extraction_probability=pl.col("log_p").exp(),
        share_extractable=(pl.col("n_likely") / pl.col("n_measured")).fill_nan(None),
        share_near_verbatim=shown.then(pl.col("n_near") / pl.col("n_sampled")).fill_nan(
            None
        ),
    )


def _windows(
    targets: pl.LazyFrame,
    scores: pl.LazyFrame,
    score: Floats,
    sets: ComparisonSets,
    controls: pl.LazyFrame | None,
) -> pl.DataFrame:
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
            "n_windows": read_numbers(
                targets, pl.col("n_windows"), score.size, np.uint32
            ),
            "asked": asked | ~np.isnan(score),
            "score": pl.Series(score, nan_to_null=True),
            "outside": outside,
            "log_p": pl.Series(log_p, nan_to_null=True),
            "common": read_numbers(targets, common, score.size, np.bool_),
            "is_target": read_numbers(
                targets, pl.col("role") == "target", score.size, np.bool_
            ),
            "is_non_member": read_numbers(
                targets, pl.col("role") == "non_member", score.size, np.bool_
            ),
        }
    )


def _documents(windows: pl.DataFrame, threshold: float) -> pl.DataFrame:
    """Sum up the windows of each document; ``row`` is its first."""
    score = pl.col("score")
    own, log_p = ~_COMMON, pl.col("log_p")
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
        n_common=_COMMON.sum(),
        n_measured=log_p.count(),
        n_likely=(own & (log_p >= log(_LEAST_PROBABILITY))).sum(),
        log_p=pl.when(own).then(log_p).max(),
        mean=score.mean(),
        squares=((score - score.mean()) ** 2).sum(),
        outside=pl.col("outside").all(),
        varies=score.n_unique() > 1 + score.null_count().clip(upper_bound=1),
        longest_words=longest.max(),
        longest_row=pl.col("row").get(longest.arg_max(), null_on_oob=True),
        longest_sample_index=pl.col("sample_index").get(
            longest.arg_max(), null_on_oob=True
        ),
    )


def _said(targets: pl.LazyFrame, rows: pl.Series) -> pl.DataFrame:
    """Name these rows' documents; ``said`` has what the corpus says of each."""
    own = (*Targets.column_names(), *_TYPES, "window_chapter")
    further = [
        name
        for name, dtype in targets.collect_schema().items()
        if name in _LABELS or not (name in own or dtype.is_nested())
    ]
    said = targets.select(
        key=pl.coalesce("document_id", "target_id"), said=pl.struct(further)
    )
    found = said.with_row_index("row").filter(pl.col("row").is_in(rows.implode()))
    return found.collect(engine="streaming")


def _units(documents: pl.DataFrame) -> pl.DataFrame:
    """Name the cluster whose p-value is a document's: itself, or a group of it alone."""
    group = pl.col("said").struct.field("group")
    alone = pl.len().over(group) == 1
    return documents.filter(_ANY_WINDOWS).with_columns(
        level=pl.lit("document"),
        tested=pl.when(group.is_null())
        .then(pl.format("document {}", "key"))
        .when(alone)
        .then(pl.format("group {}", group)),
    )


def _groups(documents: pl.DataFrame) -> pl.DataFrame:
    """Sum up the documents of each group of several, in the order of the first."""
    said, n, longest = (
        pl.col("said").struct,
        pl.col("n_scored"),
        pl.col("longest_words"),
    )
    constant = (
        pl.when(said.field(name).n_unique() == 1)
        .then(said.field(name).first())
        .alias(name)
        for name in documents["said"].struct.fields
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
            varies=pl.col("varies").any()
            | (pl.col("mean").drop_nulls().n_unique() > 1),
            longest_words=longest.max(),
            longest_row=pl.col("longest_row").get(longest.arg_max(), null_on_oob=True),
            longest_sample_index=pl.col("longest_sample_index").get(
                longest.arg_max(), null_on_oob=True
            ),
            said=pl.struct(constant),
        )
        .with_columns(level=pl.lit("group"), tested=pl.format("group {}", "key"))
    )


# How sure models are of each text: perplexity and entropy, side by side.

_NO_NUMBER = (
    "no token has a log-probability, or the perplexity is too large for a number"
)
_NO_ENTROPY = "no attack of the run needs the whole distribution, or it cannot be had"
_NO_REFERENCE = "no reference model was asked for log-probabilities of the text"


def perplexities(own: pl.LazyFrame, reference: pl.LazyFrame) -> pl.LazyFrame:
    def mean(column: str) -> pl.Expr:
        numbers = pl.col(column).cast(pl.List(pl.Float64)).list
        n = numbers.len() - numbers.count_matches(None)
        return pl.when(n > 0).then(numbers.sum() / n)

    figures = {
        "perplexity": (-mean("logprob")).exp(),
        "entropy": -mean("vocabulary_mean"),
    }
    figures = {
        name: pl.when(each.is_finite()).then(each) for name, each in figures.items()
    }
    control = reference.select(
        "target_id",
        reference_perplexity=figures["perplexity"],
        of_reference=pl.coalesce("reason", pl.lit(_NO_NUMBER)),
    )
    reasons = {
        name: (
            pl.when(pl.col(value).is_null()).then(pl.coalesce(found, pl.lit(otherwise)))
        )
        for name, value, found, otherwise in (
            ("reason", "perplexity", "reason", _NO_NUMBER),
            ("entropy_reason", "entropy", "reason", _NO_ENTROPY),
            ("reference_reason", "reference_perplexity", "of_reference", _NO_REFERENCE),
        )
    }
    types = Perplexities.create_empty().schema
    asked = own.select("target_id", "reason", **figures)
    both = asked.join(control, on="target_id", how="left", maintain_order="left")
    return both.with_columns(**reasons).select(*types).cast(types)
