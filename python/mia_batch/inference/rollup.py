"""Whole documents and groups: what a report says of each, and how sure models are."""

from collections.abc import Iterator
from math import log

import numpy as np
import polars as pl

from mia_batch.attacks.attack import matches_views
from mia_batch.inference.comparison import ComparisonSets, read_comparison_sets
from mia_batch.inference.estimates import WindowShare
from mia_batch.inference.findings import DecisionRule, gate_verdict, why_withheld
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
from mia_batch.stats import Flags, Floats
from mia_batch.tables import read_finite, read_numbers
from mia_batch.targets import document_numbers

_TYPES = Rollup.create_empty().schema
# Times the smallest p-value there can be: no comparison text scores as high
_BEST = 1.5
_NOT_LISTED = (
    "it is not on the list that is reported, so that no share above 0 is claimed"
)
_OUTSIDE = "known to be outside the training data: others are compared with it"


def with_mean(rows: pl.DataFrame) -> pl.DataFrame:
    """Add Student's interval of the mean; all are null below two scores."""
    from scipy.stats import t

    freedom = np.maximum(rows["n_scored"].to_numpy(), 2) - 1
    quantile = pl.Series("t", t.ppf(0.975, freedom))
    n = pl.col("n_scored")
    mean = pl.col("mean")
    half_width = quantile * (pl.col("squares") / (n - 1.0) / n).sqrt()
    low = mean - half_width
    high = mean + half_width
    has_width = pl.when(
        n > 1,
        "varies",
        low < mean,
        mean < high,
    )
    return rows.with_columns(
        mean=pl.when(n > 1).then(mean),
        mean_low=has_width.then(low),
        mean_high=has_width.then(high),
    )


def with_share(
    rows: pl.DataFrame,
    share: WindowShare,
    withheld: str | None = None,
) -> pl.DataFrame:
    """Add to each row the share of its windows that were in the training data."""
    estimates = list[tuple[float | None, float | None, float | None, str | None]]()
    counts = rows.select(
        "n_above",
        "n_scored",
        "n_asked",
        "outside",
    )
    for n_above, n_scored, n_asked, is_outside in counts.iter_rows():
        reason = _OUTSIDE if is_outside else withheld
        if reason:
            estimates.append((None, None, None, reason))
        else:
            rate = share.estimate(n_above, n_scored, n_asked)
            estimates.append((rate.value, rate.low, rate.high, rate.reason))
    names = (
        "contamination",
        "contamination_low",
        "contamination_high",
        "contamination_reason",
    )
    schema = {name: _TYPES[name] for name in names}
    columns = pl.DataFrame(estimates, schema=schema, orient="row")
    return pl.concat([rows, columns], how="horizontal")


def with_answer(
    rows: pl.DataFrame,
    verdicts: pl.LazyFrame,
    rule: DecisionRule,
    *,
    any_null: bool,
    exploratory: bool,
) -> pl.DataFrame:
    """Add to each row the p-value of its cluster, or why it has none, and a verdict."""
    level = pl.col("level").cast(pl.String)
    is_group_test = level.is_in(["document", "group"]) & pl.col("estimate").is_null()
    tests = verdicts.filter(
        is_group_test,
        attack=rule.primary,
        versus="non_members",
    ).select(
        "p_value",
        "q_value",
        "n_null",
        "reason",
        tested=level + " " + pl.col("key"),
    )
    tests_alone = "no document has two windows, so that texts are tested alone"
    why_untested = (
        pl.when("outside")
        .then(pl.lit(_OUTSIDE))
        .when(not any_null)
        .then(pl.lit(NO_NULL))
        .when(pl.col("tested").is_null())
        .then(pl.lit("its group is tested as a whole"))
        .otherwise(pl.lit(tests_alone))
    )
    n_words_out = pl.max_horizontal("longest_words", "extracted_words")
    p_value = pl.col("p_value")
    verdict = (
        pl.when(n_words_out >= VERBATIM_WORDS)
        .then(pl.lit("comes_out"))
        .when(p_value.is_null() | exploratory)
        .then(pl.lit("cannot_tell"))
        .when(pl.col("q_value") <= rule.q)
        .then(pl.lit("known_better"))
        .when(p_value * (pl.col("n_null") + 1) < _BEST)
        .then(pl.lit("above_all"))
        .otherwise(pl.lit("nothing_found"))
    )
    joined = rows.join(
        tests.collect(engine="streaming"),
        on="tested",
        how="left",
        maintain_order="left",
    )
    reason = pl.coalesce("reason", why_untested)
    return joined.with_columns(
        reason=pl.when(p_value.is_null()).then(reason),
        verdict=verdict,
    )


def with_claim(rows: pl.DataFrame, rule: DecisionRule) -> pl.DataFrame:
    """Claim a share above 0 of those on the list alone."""
    # A bound holds for a row that was named before: among fifty rows of which none was
    # trained on, some bound is above 0 more often than not, while a list at level q
    # names any in at most a share q of audits. To widen an interval downwards is safe,
    # so its estimate and upper end stay.
    is_listed = pl.col("q_value") <= rule.q
    low = pl.col("contamination_low")
    has_low = low.is_not_null()
    claimed = pl.when(is_listed).then(low).otherwise(0.0)
    has_bound_alone = has_low & pl.col("contamination").is_null()
    is_dropped = has_bound_alone & ~is_listed.fill_null(False)
    return rows.with_columns(
        contamination_low=pl.when(has_low).then(claimed),
        contamination_reason=pl.when(is_dropped)
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
    {
        "start": pl.Int64,
        "end": pl.Int64,
        "document": pl.UInt32,
        "k": pl.UInt32,
    }
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
    tables = [pl.DataFrame(schema=_SPAN)]
    long = windows.filter(pl.col("longest_words") >= min(_WORDS))
    for batch in long.iter_slices(_WINDOWS_AT_ONCE):
        tables += _window_spans(
            batch,
            targets,
            candidates,
            samples,
            words,
        )
    for k in _WORDS:
        walks = documents.select("document", passage=f"passages_{k}")
        place = pl.col("passage").struct
        tables.append(
            walks.explode("passage")
            .drop_nulls()
            .select(
                start=place.field("start"),
                end=place.field("end"),
                document="document",
                k=pl.lit(k),
            )
        )
    spans = pl.concat([table.cast(_SPAN) for table in tables])
    spans = spans.sort("document", "k", "start")
    reached = pl.col("end").cum_max().shift().over("document", "k")
    is_first = (pl.col("start") >= reached).fill_null(value=True)
    counts = {
        name: (pl.col("k") == k).sum()
        for name, k in zip(PASSAGE_COUNTS, _WORDS, strict=True)
    }
    passages = spans.filter(is_first)
    return passages.group_by("document", maintain_order=True).agg(**counts)


def _window_spans(
    windows: pl.DataFrame,
    targets: pl.LazyFrame,
    candidates: pl.LazyFrame,
    samples: int,
    words: WordRule,
) -> Iterator[pl.DataFrame]:
    """Find passages in answers about windows, by their places in the documents."""
    is_asked = pl.col("target_id").is_in(windows["target_id"].implode())
    texts = targets.filter(is_asked).select(
        "target_id",
        "prefix",
        pl.col("reference").fill_null(""),
        begin=pl.col("start").fill_null(0) + pl.col("prefix").str.len_chars(),
    )
    windows = windows.join(
        texts.collect(engine="streaming"),
        on="target_id",
        maintain_order="left",
    )
    continuations = candidates.filter(
        is_asked,
        matches_views(CONTINUED),
        pl.col("sample_index") < samples,
        pl.col("candidate").is_not_null(),
    ).select("target_id", "candidate")
    answers = continuations.collect(engine="streaming")
    for (document,), rows in windows.group_by("document", maintain_order=True):
        own_answers = answers.join(rows, on="target_id", how="semi")["candidate"]
        for k in _WORDS:
            if (rows["longest_words"] >= k).any():
                spans = _document_spans(
                    rows,
                    own_answers,
                    k,
                    words,
                )
                yield spans.with_columns(document=pl.lit(document), k=pl.lit(k))


def _document_spans(
    windows: pl.DataFrame,
    answers: pl.Series,
    k: int,
    words: WordRule,
) -> pl.DataFrame:
    """Find passages of k words or more in the windows of a document, joined for that."""
    references = windows["reference"]
    coverage = book_coverage(
        _BREAK.join(references),
        answers,
        words=words,
        k=k,
    )
    places = coverage["blocks"].explode(empty_as_null=False).struct.unnest()
    # From places in the joined references to those in their document.
    lengths = references.str.len_chars().cast(pl.Int64) + len(_BREAK)
    offsets = lengths.cum_sum() - lengths
    starts = places["start"].cast(pl.Int64)
    window = offsets.search_sorted(starts, side="right") - 1
    runs = windows.select("prefix", "reference")[window].hstack(places)
    start = pl.col("start") - offsets.gather(window)
    length = pl.col("end") - pl.col("start")
    n_words = count_run_words(
        text_before(start),
        pl.col("reference").str.slice(start, length),
        pl.col("words"),
        words,
    )
    n_left = n_words.struct.field("n_left")
    is_long = runs.select(n_left >= k).to_series()
    shifts = windows["begin"].cast(pl.Int64) - offsets
    shift = shifts.gather(window.filter(is_long))
    return places.filter(is_long).select(pl.col("start", "end").cast(pl.Int64) + shift)


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
# No rows where each document is one window
_ANY_WINDOWS = (pl.col("n_windows") > 1).any()
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
    rule: DecisionRule,
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
    sets = read_comparison_sets(scores, with_names=False)
    score = read_finite(scores, rule.primary, sets.target_id.len())
    withheld = _CHOSEN if rule.adjustment == "e-bh" else None
    share = WindowShare(
        sets, score, rule.fpr, blind_warns=blind_warns, withheld=withheld
    )
    windows = _read_windows(targets, scores, score, sets, controls)
    windows = _select_windows(windows.hstack(runs).with_row_index("row"), targets)
    documents = _read_documents(windows, share.threshold, targets, extracted)
    target_id = sets.target_id.gather(windows["row"])
    counts = count_passages(
        windows.with_columns(target_id=target_id).filter(~_COMMON),
        documents,
        targets,
        candidates,
        samples=samples,
        words=words,
    )
    documents = documents.join(counts, on="document", how="left", maintain_order="left")
    rows = with_mean(_list_units(documents))
    if withheld:
        rows = rows.with_columns(mean_low=None, mean_high=None)
    rows = _with_figures(rows, sets.target_id, all_continued=all_continued)
    n_common = None if controls is None else pl.col("n_common")
    rows = rows.with_columns(attack=pl.lit(rule.primary), n_common=n_common)
    rows = with_share(rows, share, why_withheld(findings))
    rows = with_answer(
        rows,
        verdicts,
        rule,
        any_null=sets.nulls.size > 0,
        exploratory=gate_verdict(findings) == "exploratory",
    )
    return _select_columns(with_claim(rows, rule))


def _select_columns(rows: pl.DataFrame) -> pl.DataFrame:
    typed = [pl.col(name).cast(dtype) for name, dtype in _TYPES.items()]
    return rows.select(*typed, "labels").unnest("labels")


def _select_windows(windows: pl.DataFrame, targets: pl.LazyFrame) -> pl.DataFrame:
    """Select windows of targets and non-members; where texts are alone, those of groups."""
    selected = windows.filter(pl.any_horizontal("is_target", "is_non_member"))
    if selected.select(_ANY_WINDOWS).item():
        return selected
    is_grouped = pl.col("group").is_not_null()
    has_group = read_numbers(
        targets,
        is_grouped,
        windows.height,
        np.bool_,
    )
    return selected.filter(pl.Series(has_group[selected["row"].to_numpy()]))


def _read_documents(
    windows: pl.DataFrame,
    threshold: float,
    targets: pl.LazyFrame,
    extracted: pl.LazyFrame,
) -> pl.DataFrame:
    """Read documents, targets first, with their labels and what walks extracted of them."""
    documents = _sum_up_documents(windows, threshold)
    documents = documents.sort("is_target", descending=True, maintain_order=True)
    labels = _read_labels(targets, documents["row"])
    documents = documents.join(labels, on="row", maintain_order="left")
    walked = pl.col("passages_20").is_not_null()
    walks = extracted.select(
        *_WALKED,
        **_EXTRACTED,
        is_target=True,
        walked=walked,
    )
    return documents.join(
        walks.collect(),
        on=["key", "is_target"],
        how="left",
        maintain_order="left",
    )


def _list_units(documents: pl.DataFrame) -> pl.DataFrame:
    """List documents and groups of targets, and the documents known to be outside."""
    targets = documents.filter("is_target")
    non_members = documents.filter(~pl.col("is_target"))
    outside = non_members.filter(_ANY_WINDOWS).with_columns(
        pl.col("labels").struct.with_fields(member=pl.lit(value=False)),
        level=pl.lit("outside"),
        tested=pl.lit(None, pl.String),
    )
    levels = [_add_tests(targets), _sum_up_groups(targets), outside]
    return pl.concat(levels, how="diagonal")


def _with_figures(
    rows: pl.DataFrame,
    target_id: pl.Series,
    *,
    all_continued: bool,
) -> pl.DataFrame:
    n_sampled = pl.col("n_sampled")
    has_run = pl.when(pl.col("longest_words") > 0)
    sources = pl.concat_list(
        pl.when(n_sampled > 0).then(pl.lit("samples")),
        pl.when("walked").then(pl.lit("walks")),
    ).list.drop_nulls()
    has_source = pl.when(sources.list.len() > 0)
    if_continued = pl.when(pl.lit(all_continued))
    share_verbatim = if_continued.then(pl.col("n_verbatim") / n_sampled)
    share_near = if_continued.then(pl.col("n_near") / n_sampled)
    share_extractable = pl.col("n_likely") / pl.col("n_measured")
    return rows.with_columns(
        has_source.then(pl.col(PASSAGE_COUNTS).fill_null(0)),
        passages_from=has_source.then(sources.list.join(" and ")),
        longest_target_id=has_run.then(target_id.gather(rows["longest_row"])),
        longest_sample_index=has_run.then("longest_sample_index"),
        share_verbatim=share_verbatim.fill_nan(None),
        extraction_probability=pl.col("log_p").exp(),
        share_extractable=share_extractable.fill_nan(None),
        share_near_verbatim=share_near.fill_nan(None),
    )


def _read_windows(
    targets: pl.LazyFrame,
    scores: pl.LazyFrame,
    score: Floats,
    sets: ComparisonSets,
    controls: pl.LazyFrame | None,
) -> pl.DataFrame:
    n_rows = score.size
    outside = np.zeros(n_rows, np.bool_)
    outside[sets.nulls] = True
    log_p = np.full(n_rows, np.nan)
    if _PROBABILITY in scores.collect_schema():
        log_p = read_finite(scores, _PROBABILITY, n_rows)
    is_common = pl.lit(value=False)
    if controls is not None:
        common = common_targets(controls).implode()
        is_common = pl.col("target_id").is_in(common)

    def read_flags(flag: pl.Expr) -> Flags:
        return read_numbers(
            targets,
            flag,
            n_rows,
            np.bool_,
        )

    is_asked = read_flags(pl.col("reason").is_null())
    n_windows = read_numbers(
        targets,
        pl.col("n_windows"),
        n_rows,
        np.uint32,
    )
    return pl.DataFrame(
        {
            "document": document_numbers(targets),
            "n_windows": n_windows,
            "asked": is_asked | ~np.isnan(score),
            "score": pl.Series(score, nan_to_null=True),
            "outside": outside,
            "log_p": pl.Series(log_p, nan_to_null=True),
            "common": read_flags(is_common),
            "is_target": read_flags(pl.col("role") == "target"),
            "is_non_member": read_flags(pl.col("role") == "non_member"),
        }
    )


def _sum_up_documents(windows: pl.DataFrame, threshold: float) -> pl.DataFrame:
    """Sum up the windows of each document; ``row`` is its first."""
    score = pl.col("score")
    log_p = pl.col("log_p")
    is_own = ~_COMMON
    longest = pl.when(is_own).then(pl.col("longest_words"))
    is_near = pl.col("near_words") >= VERBATIM_WORDS
    is_likely = log_p >= log(_LEAST_PROBABILITY)
    place = longest.arg_max()
    has_null = score.null_count().clip(upper_bound=1)
    return windows.group_by("document", maintain_order=True).agg(
        pl.col("row", "n_windows", "is_target").first(),
        n_asked=pl.col("asked").sum(),
        n_scored=score.count(),
        n_above=(score > threshold).sum(),
        n_sampled=pl.col("longest_words").count(),
        n_verbatim=(longest >= VERBATIM_WORDS).sum(),
        n_near=(is_own & is_near).sum(),
        n_common=_COMMON.sum(),
        n_measured=log_p.count(),
        n_likely=(is_own & is_likely).sum(),
        log_p=pl.when(is_own).then(log_p).max(),
        mean=score.mean(),
        squares=((score - score.mean()) ** 2).sum(),
        outside=pl.col("outside").all(),
        varies=score.n_unique() > 1 + has_null,
        longest_words=longest.max(),
        longest_row=pl.col("row").get(place, null_on_oob=True),
        longest_sample_index=pl.col("sample_index").get(place, null_on_oob=True),
    )


def _read_labels(targets: pl.LazyFrame, rows: pl.Series) -> pl.DataFrame:
    """Read the keys of these rows' documents, and what the corpus says as ``labels``."""
    known_names = {*Targets.column_names(), *_TYPES, "window_chapter"}
    names = []
    for name, dtype in targets.collect_schema().items():
        if name in _LABELS or not (name in known_names or dtype.is_nested()):
            names.append(name)
    key = pl.coalesce("document_id", "target_id")
    labels = targets.select(key=key, labels=pl.struct(names)).with_row_index("row")
    of_documents = labels.filter(pl.col("row").is_in(rows.implode()))
    return of_documents.collect(engine="streaming")


def _add_tests(documents: pl.DataFrame) -> pl.DataFrame:
    """Add the cluster whose p-value is a document's: itself, or a group of it alone."""
    group = pl.col("labels").struct.field("group")
    is_alone = pl.len().over(group) == 1
    cluster = (
        pl.when(group.is_null())
        .then(pl.format("document {}", "key"))
        .when(is_alone)
        .then(pl.format("group {}", group))
    )
    listed = documents.filter(_ANY_WINDOWS)
    return listed.with_columns(level=pl.lit("document"), tested=cluster)


def _sum_up_groups(documents: pl.DataFrame) -> pl.DataFrame:
    """Sum up the documents of each group of several, in the order of the first."""
    label = pl.col("labels").struct
    # Labels that all documents of a group share
    labels = []
    for name in documents["labels"].struct.fields:
        value = label.field(name)
        shared = pl.when(value.n_unique() == 1).then(value.first())
        labels.append(shared.alias(name))
    n = pl.col("n_scored")
    mean = (n * pl.col("mean")).sum() / n.sum()
    between = n * (pl.col("mean") - mean) ** 2
    means_vary = pl.col("mean").drop_nulls().n_unique() > 1
    place = pl.col("longest_words").arg_max()
    in_several = pl.len().over("key") > 1
    grouped = documents.with_columns(key=label.field("group"))
    grouped = grouped.filter(pl.col("key").is_not_null(), in_several)
    groups = grouped.group_by("key", maintain_order=True).agg(
        _SUMS.sum(),
        pl.col(PASSAGE_COUNTS).sum(),
        pl.col("walked").any(),
        pl.col("log_p").max(),
        pl.col("extracted_words").max(),
        mean=mean.fill_nan(None),
        squares=pl.col("squares").sum() + between.sum(),
        outside=pl.col("outside").all(),
        varies=pl.col("varies").any() | means_vary,
        longest_words=pl.col("longest_words").max(),
        longest_row=pl.col("longest_row").get(place, null_on_oob=True),
        longest_sample_index=pl.col("longest_sample_index").get(
            place, null_on_oob=True
        ),
        labels=pl.struct(labels),
    )
    return groups.with_columns(
        level=pl.lit("group"), tested=pl.format("group {}", "key")
    )


# How sure models are of each text: perplexity and entropy, side by side.

_NO_NUMBER = (
    "no token has a log-probability, or the perplexity is too large for a number"
)
_NO_ENTROPY = "no attack of the run needs the whole distribution, or it cannot be had"
_NO_REFERENCE = "no reference model was asked for log-probabilities of the text"


def perplexities(logprobs: pl.LazyFrame, reference: pl.LazyFrame) -> pl.LazyFrame:
    def mean(column: str) -> pl.Expr:
        numbers = pl.col(column).cast(pl.List(pl.Float64)).list
        n = numbers.len() - numbers.count_matches(None)
        return pl.when(n > 0).then(numbers.sum() / n)

    def finite(figure: pl.Expr) -> pl.Expr:
        return pl.when(figure.is_finite()).then(figure)

    def why_null(
        figure: str,
        recorded: str,
        otherwise: str,
    ) -> pl.Expr:
        reason = pl.coalesce(recorded, pl.lit(otherwise))
        return pl.when(pl.col(figure).is_null()).then(reason)

    perplexity = finite((-mean("logprob")).exp())
    figures = logprobs.select(
        "target_id",
        "reason",
        perplexity=perplexity,
        entropy=finite(-mean("vocabulary_mean")),
    )
    reference_figures = reference.select(
        "target_id",
        reference_perplexity=perplexity,
        of_reference=pl.coalesce("reason", pl.lit(_NO_NUMBER)),
    )
    table = figures.join(
        reference_figures,
        on="target_id",
        how="left",
        maintain_order="left",
    )
    table = table.with_columns(
        reason=why_null("perplexity", "reason", _NO_NUMBER),
        entropy_reason=why_null("entropy", "reason", _NO_ENTROPY),
        reference_reason=why_null(
            "reference_perplexity", "of_reference", _NO_REFERENCE
        ),
    )
    types = Perplexities.create_empty().schema
    return table.select(*types).cast(types)
