"""Attacks on what a model says: continuations, answers at points, choices of passages."""

from collections.abc import Callable, Iterator
from itertools import product

import polars as pl

from mia_batch.attacks.attack import (
    CHOICE,
    CLOZE,
    PROBE,
    REFERENCE_PROBE,
    TEXT,
    TOKEN,
    Attack,
    Formula,
    ModelView,
    build_attacks,
    matches_views,
    mean,
)
from mia_batch.attacks.from_logprobs import (
    build_text_attacks,
    logprobs,
    lowest,
    mean_logprob,
)
from mia_batch.prompts import LABELS


def _share(part: str | pl.Expr, whole: str | pl.Expr) -> pl.Expr:
    """Return the share of one count in another, in [0, 1]; 0 where both are 0."""
    parts = pl.col(part) if isinstance(part, str) else part
    wholes = pl.col(whole) if isinstance(whole, str) else whole
    return parts / wholes.clip(lower_bound=1)


def _ngrams(words: str, n: int) -> pl.Expr:
    """Return the n-grams of a text of so many words; 0 or less where it is shorter."""
    return pl.col(words).cast(pl.Int64) - (n - 1)


def _where_long(expr: pl.Expr, n: int) -> tuple[pl.Expr, str]:
    """Return a score where the reference has n-grams, and the reason elsewhere."""
    undefined = "the reference is empty"
    if n > 1:
        undefined = f"the reference has fewer than {n} words"
    return pl.when(pl.col("words_reference").max() >= n).then(expr), undefined


def _suffix(n: int) -> str:
    return "" if n == 1 else f"_n{n}"


# SaMIA and its relatives: n-gram overlap between sampled candidates and the reference.
#
# ``samia_...`` attacks read whole candidates and keep the denominators of the authors'
# code; ``samia_matched_...`` attacks read each candidate up to the reference's number
# of words. In version 1 of the paper, equation 9 is 11.

_SAMIA = "Kaneko et al. 2024 (arXiv:2404.11262v2)"
_KINDS = {"": "equations 1 and 5", "_precision": "equation 9", "_zlib": "equation 7"}
"""Recall and precision lie in [0, 1]; with compressed sizes a score is 0 or more."""
_SAMIA_FORMULAS = [
    (kind, place, n) for (kind, place), n in product(_KINDS.items(), range(1, 6))
]
_PLUS_ZLIB = ("_plus_zlib", "appendix D, table 11", 1)


def _samia() -> Iterator[tuple[str, Formula]]:
    """Iterate over the authors' formulas, of whole candidates."""
    for kind, place, n in [*_SAMIA_FORMULAS, _PLUS_ZLIB]:
        side = "words_candidate" if kind == "_precision" else "words_reference"
        term = _share(f"overlap_{n}", pl.col(side))
        formula = f"overlap_{n} / {side}"
        if kind == "_zlib":
            term = term * pl.col("zlib_candidate")
            formula += " * zlib_candidate"
        if kind == "_plus_zlib":
            term = term + pl.col("zlib_candidate")
            formula += " + zlib_candidate"
        yield (
            f"samia{kind}{_suffix(n)}",
            (
                mean(term),
                f"mean over candidates of {formula}",
                f"{_SAMIA}, {place}, N = {n}",
                "there is no candidate",
            ),
        )


def _matched_samia() -> Iterator[tuple[str, Formula]]:
    """Iterate over the formulas of candidates that are as long as the reference."""
    for kind, place, n in _SAMIA_FORMULAS:
        is_precision = kind == "_precision"
        side = "words_candidate_matched" if is_precision else "words_reference"
        term = _share(f"overlap_{n}_matched", _ngrams(side, n))
        n_grams = f"({side} - {n - 1})" if n > 1 else side
        formula = f"overlap_{n}_matched / {n_grams}"
        if kind == "_zlib":
            term = term * pl.col("zlib_candidate_matched")
            formula += " * zlib_candidate_matched"
        expr, undefined = _where_long(mean(term), n)
        yield (
            f"samia_matched{kind}{_suffix(n)}",
            (
                expr,
                f"mean over candidates of {formula}",
                f"{_SAMIA}, {place}, N = {n}",
                undefined,
            ),
        )


# ROUGE between whole candidates and the reference, under the run's word rule, in [0,
# 1]. With the word rule ``rouge`` the counts are those of the ``rouge-score`` package
# without stemming.


_ROUGE_L = ("l", 1, "lcs_words", "section 3.1 (ROUGE-L)")


def _rouge() -> Iterator[tuple[str, Formula]]:
    """Iterate over recall, precision and F1 of each kind; without n-grams 0."""
    ngrams = (
        (f"{n}", n, f"overlap_{n}", f"section 2 (ROUGE-N), N = {n}")
        for n in range(1, 6)
    )
    for kind, n, shared, section in (*ngrams, _ROUGE_L):
        recall = _share(shared, _ngrams("words_reference", n))
        precision = _share(shared, _ngrams("words_candidate", n))
        f1 = 2 * recall * precision / (recall + precision)
        f1 = pl.when(recall + precision == 0).then(0.0).otherwise(f1)  # null stays null
        reference = "words_reference"
        candidate = "words_candidate"
        if n > 1:
            reference = f"(words_reference - {n - 1})"
            candidate = f"(words_candidate - {n - 1})"
        for suffix, term, formula in (
            ("", recall, f"{shared} / {reference}"),
            ("_precision", precision, f"{shared} / {candidate}"),
            ("_f1", f1, f"2 {shared} / ({reference} + {candidate})"),
        ):
            expr, undefined = _where_long(mean(term), n)
            yield (
                f"rouge_{kind}{suffix}",
                (
                    expr,
                    f"mean over candidates of {formula}",
                    f"Lin 2004, {section}",
                    undefined,
                ),
            )


# Probes: whether the model goes on with the true next words at many points of a text.
#
# Either by what it answers, or by the log-probability that it gives to the true next
# token. ``..._rarity_...`` attacks weigh each shared word by how rarely the model says
# it elsewhere.

_PETAL = "He et al. 2025 (USENIX Security)"
_WEIGHED = "weight: Spärck Jones 1972"
_TOO_SHORT = "the text is too short for a point"
_WEIGHT = "ln(T / (1 + df))"


def _by_words(weighed: str) -> pl.Expr:
    return pl.col(weighed) / pl.col("words_reference").clip(lower_bound=1)


def _leading_rarity(view: ModelView) -> pl.Expr:
    return mean(pl.when(matches_views([view])).then(_by_words("rarity_leading")))


def _log_hit_rate() -> pl.Expr:
    """Return the log of the smoothed share of hits at each point, in the points' order."""
    index = pl.col("view_index")
    is_last = (index != index.shift(-1)).fill_null(value=True)
    n_hits = (pl.col("leading_words") >= 1).cum_sum().cast(pl.Float64).filter(is_last)
    n_answers = pl.int_range(1, pl.len() + 1).cast(pl.Float64).filter(is_last)
    hits = n_hits - n_hits.shift(1, fill_value=0)
    answers = n_answers - n_answers.shift(1, fill_value=0)
    return ((hits + 0.5) / (answers + 1)).log()


_LEADING = "leading words that agree / words asked"
_SUM_OF = f"the sum of {_WEIGHT} over"
PROBE_ATTACKS = build_attacks(
    {
        f"probe_{name}": (
            mean(term.cast(pl.Float64)),
            f"mean over the answers at all points of {formula}",
            f"{_PETAL}; {_WEIGHED}" if "rarity" in name else _PETAL,
        )
        for name, term, formula in (
            (
                "leading_rarity",
                _by_words("rarity_leading"),
                f"{_SUM_OF} the {_LEADING}",
            ),
            (
                "first_word",
                pl.col("leading_words") >= 1,
                "1 where the first word is right",
            ),
            ("leading", _share("leading_words", "words_reference"), _LEADING),
            (
                "recall_rarity",
                _by_words("rarity_1"),
                f"{_SUM_OF} shared words / words asked",
            ),
        )
    },
    _TOO_SHORT,
    reads=(PROBE,),
)
_IS_TRUE = pl.col("leading_characters") == pl.max_horizontal(
    "characters_candidate", "characters_reference"
)
EXPECTED = "expected_hits"  # column of `with_expected`
_RAISED = "a raised logit: Carlini et al. 2024 (arXiv:2403.06634), section 5"
_PRIOR = 30  # answers that the mean over equally frequent tokens counts as
_LEAST = 100  # answers about other groups
_FOLDS = 16
_HIT = _IS_TRUE.cast(pl.Float64)
_LIKELIEST = (
    "the likeliest token, nudge added to the logit of the true one, is the true one"
)
TOKEN_ATTACKS = build_attacks(
    {
        "token_hits_less_expected": (
            mean(
                pl.when(pl.col("true_token").is_not_null()).then(
                    _HIT - pl.col(EXPECTED)
                )
            ),
            (
                f"mean over points of 1 where {_LIKELIEST}, less (h + {_PRIOR} r) / (n"
                f" + {_PRIOR}): of the n points in texts of other groups that have this"
                " true token h are right, and a share r where true tokens are about as"
                " frequent"
            ),
            (
                f"{_PETAL}; {_RAISED}; shrunk shares: Efron and Morris 1975; its own"
                " baseline, chosen by benches.blackbox"
            ),
            (
                f"{_TOO_SHORT}, or there are fewer than {_LEAST} answers about other"
                " groups"
            ),
        ),
        "token_hits": (
            mean(_HIT),
            f"share of points at which {_LIKELIEST}",
            f"{_PETAL}; {_RAISED}",
        ),
    },
    _TOO_SHORT,
    reads=(TOKEN,),
)


def with_expected(rows: pl.LazyFrame, texts: pl.DataFrame) -> pl.LazyFrame:
    """Return rows with how often the model says their true tokens elsewhere: `EXPECTED`."""
    # ``texts`` has the ``target_id`` of each text, the number of its ``group``, and
    # whether it is ``counted``. Groups are dealt into 16 folds.
    # With n counted points of other folds that have this true token, h of them hits,
    # and a share r of hits at counted points of other folds whose true tokens occur in
    # the run as often, up to a factor of two, what is expected is (h + 30 r) / (n +
    # 30). It is null where other folds have fewer than 100 answers.
    #
    # Counted are the texts that others are compared with, as for rarity. A text that
    # was never seen and a non-member of the same fold are measured by the same answers,
    # none of them their own, and how often a token occurs is a matter of the texts, the
    # same for all. So the two could change places, and conformal p-values hold as for
    # scores of texts alone; between folds, which leave out other non-members, they do
    # so nearly (the tests simulate it). With its own answers counted, or those of other
    # parts of its book, a non-member would be measured otherwise than a target, and a
    # book that is known whole would hide.
    first_of_group = pl.col("target_id").min().over("group")
    fold = (first_of_group.rank("dense") % _FOLDS).cast(pl.UInt8)
    folds = texts.select("target_id", "counted", fold=fold).lazy()
    rows = rows.join(folds, on="target_id", how="left", maintain_order="left")
    cells = _count_elsewhere(rows)
    n = pl.col("n").sum()
    hits = pl.col("hits").sum()
    cell = ["fold", "frequency"]
    share_of_fold = hits.over("fold") / n.over("fold")
    share = (hits.over(cell) + share_of_fold) / (n.over(cell) + 1)
    expected = (pl.col("hits") + _PRIOR * share) / (pl.col("n") + _PRIOR)
    has_enough = n.over("fold") >= _LEAST
    key = ["fold", "true_token"]
    expected = pl.when(has_enough).then(expected).alias(EXPECTED)
    table = cells.select(*key, expected).lazy()
    rows = rows.join(table, on=key, how="left", maintain_order="left")
    return rows.drop("fold", "counted")


def _count_elsewhere(rows: pl.LazyFrame) -> pl.DataFrame:
    """Count points ``n`` and ``hits`` of each true token in all folds but one, for each fold."""
    key = ["fold", "true_token"]
    is_answer = matches_views([TOKEN]) & pl.col("words_candidate").is_not_null()
    in_fold = (
        rows.filter(is_answer)
        .group_by(key)
        .agg(
            asked=pl.len(),
            n=pl.col("counted").sum(),
            hits=(pl.col("counted") & _IS_TRUE).sum(),
        )
        .collect(engine="streaming")
    )
    everywhere = in_fold.group_by("true_token").agg(pl.col("asked", "n", "hits").sum())
    frequency = (pl.col("asked") + 0.5).log(2).cast(pl.UInt8)
    everywhere = everywhere.with_columns(frequency=frequency).drop("asked")
    cells = in_fold.select("fold").unique().join(everywhere, how="cross")
    return cells.join(
        in_fold.drop("asked"), on=key, how="left", suffix="_own"
    ).with_columns(
        pl.col(name).cast(pl.Int64) - pl.col(f"{name}_own").fill_null(0)
        for name in ("n", "hits")
    )


_DIFFERENCE = Attack(  # what this model knows that the reference model does not
    name="probe_rarity_difference_v1",
    expr=_leading_rarity(PROBE) - _leading_rarity(REFERENCE_PROBE),
    formula="probe_leading_rarity_v1 less the same of the reference model",
    source=f"Carlini et al. 2021 (arXiv:2012.07805), section 5.2; {_PETAL}; {_WEIGHED}",
    undefined=f"{_TOO_SHORT}, or one of the two models gave no answer",
    reads=(PROBE, REFERENCE_PROBE),
    settings=("reference_model",),
)
_LOG_HIT_RATE = Attack(  # what log-probabilities would be, estimated from drawn answers
    name="probe_logprob_v1",
    expr=mean(_log_hit_rate()),
    formula=(
        "mean over points of ln((answers whose first word is right + 1/2) / (answers"
        " + 1))"
    ),
    source=f"Krichevsky and Trofimov 1981 (smoothing); {_PETAL}",
    undefined=_TOO_SHORT,
    reads=(PROBE,),
    settings=("samples",),
)
_COMBINED = Attack(
    name="probe_rarity_loss_v1",
    expr=_leading_rarity(PROBE) + mean_logprob(TEXT),
    formula="probe_leading_rarity_v1 + loss_v1: per word, and per token, in nats",
    source=(
        f"Church and Hanks 1990 (pointwise mutual information); {_PETAL}; {_WEIGHED}"
    ),
    undefined=f"{_TOO_SHORT}, or no token has a log-probability",
    reads=(PROBE,),
    logprobs=(TEXT,),
)
_FIRST, _EXPECTED = (
    pl.when(matches_views([PROBE])).then(pl.col(name).list.first().cast(pl.Float64))
    for name in ("logprob", "vocabulary_mean")
)
PROBE_LOGPROB_ATTACKS = build_text_attacks(
    {
        "probe_centred": (
            mean(_FIRST - _EXPECTED),
            "mean of logprob - vocabulary_mean of the first token after each point",
            (
                "Zhang et al. 2025 (arXiv:2404.02936), the Min-K%++ score without its"
                " divisor, of tokens after points; where an endpoint lists some tokens"
                " only, both are upper bounds"
            ),
        ),
        "probe_loss": (
            mean(logprobs(PROBE)),
            "mean of logprob of the first token after each point",
            (
                "Yeom et al. 2018 (arXiv:1709.01604), adversary 2, of the tokens after"
                " points"
            ),
        ),
        "probe_min_k_20": (
            mean(lowest(logprobs(PROBE), 20)),
            "mean of the lowest 20 % of logprob of the first token after each point",
            (
                "Shi et al. 2024 (arXiv:2310.16789), equation 1, k = 20, of the tokens"
                " after points"
            ),
        ),
    },
    _TOO_SHORT,
    reads=(PROBE,),
)


def _matched_rarity(n: int) -> Formula:
    term = pl.col(f"rarity_{n}") / _ngrams("words_reference", n).clip(lower_bound=1)
    expr, undefined = _where_long(mean(term), n)
    formula = (
        f"mean over candidates of {_SUM_OF} shared {n}-grams / {n}-grams of the"
        " reference"
    )
    return expr, formula, f"{_SAMIA}, N = {n}; {_WEIGHED}", undefined


MATCHED_RARITY_ATTACKS = build_attacks(
    {f"samia_matched_rarity{_suffix(n)}": _matched_rarity(n) for n in (1, 2)}, ""
)


# Words of a candidate in spans that the reference has, too; and the longest such spans.
#
# The released code matches detokenised text, so that parts of words match, and finds
# spans for one length only; here spans start and end between words, and each length is
# exact.

_HALLINAN = "Hallinan et al. 2025 (arXiv:2508.09603)"
_SUBSTRING = f"{_HALLINAN}, longest common substring"
_COVERAGE = f"{_HALLINAN}, coverage, L = 3"
_COVERED = pl.col("covered_3")  # spans of 3 words, as published
_CANDIDATE = pl.col("words_candidate")
_LONGER = pl.max_horizontal("words_candidate", "words_reference")
_LONGER_TEXT = "max(words_candidate, words_reference)"
_AGGREGATES: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "": mean,
    "_max": pl.Expr.max,
    "_median": pl.Expr.median,
    "_min": pl.Expr.min,
}


def _build_aggregates(terms: dict[str, tuple[pl.Expr, str, str]]) -> tuple[Attack, ...]:
    """Build attacks by the mean, maximum, median and minimum of terms over candidates."""
    formulas: dict[str, Formula] = {}
    for name, (term, formula, source) in terms.items():
        for suffix, aggregate in _AGGREGATES.items():
            formulas[f"{name}{suffix}"] = (
                aggregate(term.cast(pl.Float64)),
                f"{suffix.removeprefix('_') or 'mean'} over candidates of {formula}",
                source,
            )
    return build_attacks(formulas, "there is no candidate", whole_candidates=True)


_CREATIVITY = [_share(f"covered_{length}", _CANDIDATE) for length in range(2, 13)]
_COVERAGE_ATTACKS = _build_aggregates(
    {
        "ngram_coverage": (
            _share(_COVERED, _CANDIDATE),
            "covered_3 / words_candidate",
            _COVERAGE,
        ),
        "ngram_coverage_reference": (
            _share(_COVERED, _LONGER),
            f"covered_3 / {_LONGER_TEXT}",
            _COVERAGE,
        ),
        "ngram_coverage_total": (
            _share(2 * _COVERED, _CANDIDATE + _LONGER),
            f"2 covered_3 / (words_candidate + {_LONGER_TEXT})",
            _COVERAGE,
        ),
        "creativity": (
            pl.sum_horizontal(_CREATIVITY, ignore_nulls=False),
            "(covered_2 + ... + covered_12) / words_candidate",
            f"{_HALLINAN}, sum of coverages, L = 2 to 12",
        ),
    }
)
_VERBATIM_ATTACKS = _build_aggregates(
    {
        "longest_block": (
            pl.col("longest_block_words"),
            "longest_block_words",
            f"{_SUBSTRING}, in words",
        ),
        "longest_block_chars": (
            pl.col("longest_block_chars"),
            "longest_block_chars",
            f"{_SUBSTRING}, in characters",
        ),
        "longest_block_share": (
            _share("longest_block_words", "words_reference"),
            "longest_block_words / words_reference",
            f"{_SUBSTRING}, by the reference's words",
        ),
        "near_verbatim": (
            _share("near_verbatim_words", "words_reference"),
            "near_verbatim_words / words_reference",
            (
                "Ahmed et al. 2026 (arXiv:2601.02671), near-verbatim recall, here of"
                " blocks of 8 words"
            ),
        ),
    }
)


# PETAL: log-probabilities guessed from how alike the model's word and the true word
# are.
#
# With log similarity, its floor and a line per text as in the authors' code.

_FLOOR = 1e-16  # of similarity, in the authors' code


def _log_similarity(view: ModelView) -> pl.Expr:
    """Return the log similarity of the first answer at each point; null in other rows."""
    is_first = matches_views([view]) & (pl.col("sample_index") == 0)
    return pl.when(is_first).then(pl.col("similarity").clip(lower_bound=_FLOOR).log())


def _petal() -> pl.Expr:
    """Return a line, fitted on the surrogate from similarity to log-probability, applied."""
    follows_its_logprob = pl.all_horizontal(
        pl.col(name) == pl.col(name).shift(1)
        for name in ("model", "view", "view_index")
    )
    logprobs_before = pl.when(follows_its_logprob).then(pl.col("logprob").shift(1))
    logprob = logprobs_before.list.first().cast(pl.Float64)
    has_logprob = logprob.is_not_null()
    similarity = pl.when(has_logprob).then(_log_similarity(REFERENCE_PROBE))
    logprob = pl.when(similarity.is_not_null()).then(logprob)
    distance = similarity - mean(similarity)
    variance = mean(distance**2)
    covariance = mean(distance * (logprob - mean(logprob)))
    differ = similarity.max() > similarity.min()
    slope = pl.when(differ).then(covariance / variance).otherwise(0.0)
    return mean(logprob) + slope * (mean(_log_similarity(PROBE)) - mean(similarity))


PETAL_ATTACKS = (
    Attack(
        name="petal_v1",
        expr=_petal(),
        formula=(
            "mean over points of a + b ln(similarity of the answer and the true word);"
            " a and b fitted on the reference model's answers and log-probabilities of"
            " the same text"
        ),
        source=f"{_PETAL}, the surrogate is the reference model",
        undefined=(
            "the text is too short for a point, or one of the two models gave no answer"
        ),
        reads=(PROBE, REFERENCE_PROBE),
        logprobs=(REFERENCE_PROBE,),
        settings=("reference_model",),
    ),
    Attack(
        name="petal_similarity_v1",
        expr=mean(_log_similarity(PROBE)),
        formula="mean over points of ln(similarity of the answer and the true word)",
        source=f"{_PETAL}, without a surrogate",
        undefined=_TOO_SHORT,
        reads=(PROBE,),
    ),
)


# DE-COP: whether the model tells a text from three paraphrases of it, shown in every
# order.
#
# Every score is a mean over the four labels of what is found where that label is right.
# A model that prefers a label whatever it stands for is thereby at chance, 0.25,
# exactly.

_DECOP = "Duarte et al. 2024 (arXiv:2402.09910), DE-COP"
_PARAPHRASES = ("paraphrases_column",)
_FEW = "the text has no three paraphrases that differ from it and each other"
_RIGHT = pl.col("view_index") % len(LABELS)
_LOG_P = [
    pl.col("logprob").list.get(place, null_on_oob=True).cast(pl.Float64)
    for place in range(len(LABELS))
]
_ODDS = [log_p.exp() for log_p in _LOG_P]
_P = [odds / pl.sum_horizontal(_ODDS, ignore_nulls=False) for odds in _ODDS]


def _over_labels(term: pl.Expr) -> pl.Expr:
    """Return the mean over labels of a term's mean over the orders where each is right."""
    means = [
        mean(pl.when(matches_views([CHOICE]), place == _RIGHT).then(term))
        for place in range(len(LABELS))
    ]
    return pl.sum_horizontal(means, ignore_nulls=False) / len(LABELS)


def _less_means(values: list[pl.Expr]) -> pl.Expr:
    """Return a list of the labels' values, each less its mean."""
    return pl.concat_list(value - _over_labels(value) for value in values)


def _is_highest(values: pl.Expr) -> pl.Expr:
    """Return 1 where the right label's value is the highest, or the first such; else 0."""
    return (values.list.arg_max() == _RIGHT).cast(pl.Float64)


CHOICE_ATTACK = Attack(
    name="decop_v1",
    expr=_over_labels((pl.col("choice") == _RIGHT).cast(pl.Float64)),
    formula=(
        "mean over labels of the share of answers that name the label where it is right"
    ),
    source=f"{_DECOP}, from answers alone",
    undefined=f"{_FEW}, or where some label is right no answer names one label",
    reads=(CHOICE,),
    settings=_PARAPHRASES,
)
CHOICE_LOGPROB_ATTACKS = build_text_attacks(
    {
        f"decop_{name}": (
            _over_labels(term),
            f"mean over labels of {formula} where the label is right",
            f"{_DECOP}, {source}",
        )
        for name, term, formula, source in (
            (
                "calibrated",
                _is_highest(_less_means(_P)),
                (
                    "1 where, less its mean over the text's orders, the label's"
                    " probability is the highest"
                ),
                "calibrated by the orders of this text",
            ),
            (
                "log_calibrated",  # what is added to a label's logit in all orders changes nothing
                _is_highest(_less_means(_LOG_P)),
                (
                    "1 where, less its mean over the text's orders, the label's"
                    " log-probability is the highest"
                ),
                "calibrated on log-probabilities",
            ),
            (
                "logprob",
                _is_highest(pl.col("logprob")),
                "1 where the label's probability is the highest",
                "from probabilities, as in the authors' code",
            ),
            (
                "probability",
                pl.concat_list(_P).list.get(_RIGHT),
                "its probability among the four",
                "the probability itself",
            ),
        )
    },
    f"{_FEW}, or where some label is right no order has probabilities",
    reads=(CHOICE,),
    settings=_PARAPHRASES,
)

CLOZE_ATTACK = Attack(
    name="masked_hits_v1",
    expr=mean(pl.col("has_text").cast(pl.Float64)),
    formula="share of hidden words that the answer has",
    source=(
        "Lan et al. 2026 (arXiv:2606.07996), MC-PDD, the hit rate; known from its"
        " abstract and notes alone: which words are hidden, and the question, are a"
        " reading of it. Its test of a corpus against non-members is the collection's"
        " verdict"
    ),
    undefined="the text has no word that can be hidden",
    reads=(CLOZE,),
)

FAMILIES: dict[str, tuple[Attack, ...]] = {
    "SaMIA, length-matched": build_attacks(dict(_matched_samia()), ""),
    "SaMIA": build_attacks(dict(_samia()), "", whole_candidates=True),
    "ROUGE": build_attacks(dict(_rouge()), "", whole_candidates=True),
    "Next tokens": TOKEN_ATTACKS,
    "Probes": PROBE_ATTACKS,
    "Probes of two models": (_DIFFERENCE,),
    "Probes, drawn answers": (_LOG_HIT_RATE,),
    "SaMIA, weighed by rarity": MATCHED_RARITY_ATTACKS,
    "PETAL": PETAL_ATTACKS,
    "DE-COP": (CHOICE_ATTACK,),
    "Masked words": (CLOZE_ATTACK,),
    "Probes and loss": (_COMBINED,),
    "N-gram coverage": _COVERAGE_ATTACKS,
    "Verbatim blocks": _VERBATIM_ATTACKS,
    "Log-probabilities at points": PROBE_LOGPROB_ATTACKS,
    "DE-COP from log-probabilities": CHOICE_LOGPROB_ATTACKS,
}
