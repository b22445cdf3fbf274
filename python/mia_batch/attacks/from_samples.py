"""Attacks on what a model says: continuations, answers at points, choices among passages."""

from collections.abc import Callable, Iterator

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
    """Share of one count in another, float64 in [0, 1]; 0 where both are 0."""
    parts = pl.col(part) if isinstance(part, str) else part
    wholes = pl.col(whole) if isinstance(whole, str) else whole
    return parts / wholes.clip(lower_bound=1)


def _ngrams(words: str, n: int) -> pl.Expr:
    """Count the n-grams of a text of so many words; 0 or less where it is shorter than n."""
    return pl.col(words).cast(pl.Int64) - (n - 1)


def _where_long(expr: pl.Expr, n: int) -> tuple[pl.Expr, str]:
    """Let a score stand where the reference has n-grams; and say why it does not elsewhere."""
    why = (
        f"the reference has fewer than {n} words" if n > 1 else "the reference is empty"
    )
    return pl.when(pl.col("words_reference").max() >= n).then(expr), why


def _ending(n: int) -> str:
    return "" if n == 1 else f"_n{n}"


# SaMIA and its relatives: n-gram overlap between sampled candidates and the reference.
#
# ``samia_...`` attacks read whole candidates and keep the denominators of the authors' code;
# ``samia_matched_...`` attacks read each candidate up to the reference's number of words. In
# version 1 of the paper, equation 9 is 11.

_SAMIA = "Kaneko et al. 2024 (arXiv:2404.11262v2)"
_KINDS = {"": "equations 1 and 5", "_precision": "equation 9", "_zlib": "equation 7"}
"""Mean recall and precision lie in [0, 1]; with compressed sizes in bytes a score is 0 or more."""
_PLUS_ZLIB = ("_plus_zlib", "appendix D, table 11", 1)


def _samia(*, matched: bool) -> Iterator[tuple[str, Formula]]:
    cut = "_matched" if matched else ""
    asked = [(kind, place, n) for kind, place in _KINDS.items() for n in range(1, 6)]
    for kind, place, n in asked if matched else [*asked, _PLUS_ZLIB]:
        side = f"words_candidate{cut}" if kind == "_precision" else "words_reference"
        overlap, zlib = f"overlap_{n}{cut}", f"zlib_candidate{cut}"
        term = _share(overlap, _ngrams(side, n) if matched else pl.col(side))
        formula = (
            f"{overlap} / ({side} - {n - 1})"
            if matched and n > 1
            else f"{overlap} / {side}"
        )
        if kind == "_zlib":
            term, formula = term * pl.col(zlib), f"{formula} * {zlib}"
        if kind == "_plus_zlib":
            term, formula = term + pl.col(zlib), f"{formula} + {zlib}"
        expr, why = (
            _where_long(mean(term), n)
            if matched
            else (mean(term), "there is no candidate")
        )
        said, source = (
            f"mean over candidates of {formula}",
            f"{_SAMIA}, {place}, N = {n}",
        )
        yield f"samia{cut}{kind}{_ending(n)}", (expr, said, source, why)


# ROUGE between whole candidates and the reference, under the run's word rule, in [0,
# 1]. With the word rule ``rouge`` the counts are those of the ``rouge-score`` package
# without stemming.


_ROUGE_L = ("l", 1, "lcs_words", "section 3.1 (ROUGE-L)")


def _rouge() -> Iterator[tuple[str, Formula]]:
    """Recall, precision and F1 of each kind; a side without n-grams gives 0."""
    ngrams = (
        (f"{n}", n, f"overlap_{n}", f"section 2 (ROUGE-N), N = {n}")
        for n in range(1, 6)
    )
    for kind, n, shared, section in (*ngrams, _ROUGE_L):
        recall = _share(shared, _ngrams("words_reference", n))
        precision = _share(shared, _ngrams("words_candidate", n))
        f1 = 2 * recall * precision / (recall + precision)
        f1 = pl.when(recall + precision == 0).then(0.0).otherwise(f1)  # null stays null
        there, here = "words_reference", "words_candidate"
        if n > 1:
            there, here = (f"({words} - {n - 1})" for words in (there, here))
        for ending, term, formula in (
            ("", recall, f"{shared} / {there}"),
            ("_precision", precision, f"{shared} / {here}"),
            ("_f1", f1, f"2 {shared} / ({there} + {here})"),
        ):
            expr, why = _where_long(mean(term), n)
            said = f"mean over candidates of {formula}"
            yield f"rouge_{kind}{ending}", (expr, said, f"Lin 2004, {section}", why)


# Probes: whether the model goes on with the true next words at many points of a text.
#
# Either by what it answers, or by the log-probability that it gives to the true next token.
# ``..._rarity_...`` attacks weigh each shared word by how rarely the model says it elsewhere.

_PETAL = "He et al. 2025 (USENIX Security)"
_WEIGHED = "weight: Spärck Jones 1972"
_TOO_SHORT = "the text is too short for a point"
_WEIGHT = "ln(T / (1 + df))"


def _of_words(weighed: str) -> pl.Expr:
    return pl.col(weighed) / pl.col("words_reference").clip(lower_bound=1)


def _leading_rarity(view: tuple[str, str]) -> pl.Expr:
    return mean(pl.when(matches_views([view])).then(_of_words("rarity_leading")))


def _log_hit_rate() -> pl.Expr:
    """Log of the smoothed share of hits at each point; rows come point by point."""
    is_last = (pl.col("view_index") != pl.col("view_index").shift(-1)).fill_null(
        value=True
    )
    hits = (pl.col("leading_words") >= 1).cum_sum().cast(pl.Float64).filter(is_last)
    answers = pl.int_range(1, pl.len() + 1).cast(pl.Float64).filter(is_last)
    first = hits - hits.shift(1, fill_value=0), answers - answers.shift(1, fill_value=0)
    return ((first[0] + 0.5) / (first[1] + 1)).log()


_LEADING, _SUM_OF = (
    "leading words that agree / words asked",
    f"the sum of {_WEIGHT} over",
)
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
                _of_words("rarity_leading"),
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
                _of_words("rarity_1"),
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
    """Rows of features with how often the model says their true tokens elsewhere: `EXPECTED`."""
    # ``texts`` has the ``target_id`` of each text, the number of its ``group``, and whether it is
    # ``counted``. Groups are dealt into 16 folds. With n counted points of other folds that have
    # this true token, h of them hits, and a share r of hits at counted points of other folds whose
    # true tokens occur in the run as often, up to a factor of two, what is expected is (h + 30 r)
    # / (n + 30). It is null where other folds have fewer than 100 answers.
    #
    # Counted are the texts that others are compared with, as for rarity. A text that was never
    # seen and a non-member of the same fold are measured by the same answers, none of them their
    # own, and how often a token occurs is a matter of the texts, the same for all. So the two
    # could change places, and conformal p-values hold as for scores of texts alone; between folds,
    # which leave out other non-members, they do so nearly (the tests simulate it). With its own
    # answers counted, or those of other parts of its book, a non-member would be measured
    # otherwise than a target, and a book that is known whole would hide.
    token = matches_views([TOKEN]) & pl.col("words_candidate").is_not_null()
    fold = (pl.col("target_id").min().over("group").rank("dense") % _FOLDS).cast(
        pl.UInt8
    )
    dealt = texts.select("target_id", "counted", fold=fold).lazy()
    found = rows.join(dealt, on="target_id", how="left", maintain_order="left")
    key = ["fold", "true_token"]
    sums = (
        found.filter(token)
        .group_by(key)
        .agg(
            asked=pl.len(),
            n=pl.col("counted").sum(),
            hits=(pl.col("counted") & _IS_TRUE).sum(),
        )
        .collect(engine="streaming")
    )
    whole = sums.group_by("true_token").agg(pl.col("asked", "n", "hits").sum())
    often = whole.with_columns(often=(pl.col("asked") + 0.5).log(2).cast(pl.UInt8))
    cells = sums.select("fold").unique().join(often.drop("asked"), how="cross")
    cells = cells.join(
        sums.drop("asked"), on=key, how="left", suffix="_own"
    ).with_columns(
        pl.col(name).cast(pl.Int64) - pl.col(f"{name}_own").fill_null(0)
        for name in ("n", "hits")
    )
    n, hits = (pl.col(name).sum() for name in ("n", "hits"))
    alike = ["fold", "often"]
    share = (hits.over(alike) + hits.over("fold") / n.over("fold")) / (
        n.over(alike) + 1
    )
    expected = (pl.col("hits") + _PRIOR * share) / (pl.col("n") + _PRIOR)
    enough = n.over("fold") >= _LEAST
    table = cells.select(*key, pl.when(enough).then(expected).alias(EXPECTED)).lazy()
    made = found.join(table, on=key, how="left", maintain_order="left")
    return made.drop("fold", "counted")


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
    expr, why = _where_long(mean(term), n)
    formula = (
        f"mean over candidates of {_SUM_OF} shared {n}-grams / {n}-grams of the"
        " reference"
    )
    return expr, formula, f"{_SAMIA}, N = {n}; {_WEIGHED}", why


MATCHED_RARITY_ATTACKS = build_attacks(
    {f"samia_matched_rarity{_ending(n)}": _matched_rarity(n) for n in (1, 2)}, ""
)


# Words of a candidate in spans that the reference has, too; and the longest such spans.
#
# The released code matches detokenised text, so that parts of words match, and finds spans for one
# length only; here spans start and end between words, and each length is exact.

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


def _aggregated(terms: dict[str, tuple[pl.Expr, str, str]]) -> tuple[Attack, ...]:
    """Mean, maximum, median and minimum of terms over candidates."""
    formulas: dict[str, Formula] = {
        f"{name}{ending}": (
            aggregate(term.cast(pl.Float64)),
            f"{ending.removeprefix('_') or 'mean'} over candidates of {formula}",
            source,
        )
        for name, (term, formula, source) in terms.items()
        for ending, aggregate in _AGGREGATES.items()
    }
    return build_attacks(formulas, "there is no candidate", whole_candidates=True)


_CREATIVITY = [_share(f"covered_{length}", _CANDIDATE) for length in range(2, 13)]
_COVERAGE_ATTACKS = _aggregated(
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
_VERBATIM_ATTACKS = _aggregated(
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


# PETAL: log-probabilities guessed from how alike the model's word and the true word are.
#
# With log similarity, its floor and a line per text as in the authors' code.

_FLOOR = 1e-16  # of similarity, in the authors' code


def _log_similarity(view: tuple[str, str]) -> pl.Expr:
    """Log similarity of the first answer at each point; null in other rows."""
    first = matches_views([view]) & (pl.col("sample_index") == 0)
    return pl.when(first).then(pl.col("similarity").clip(lower_bound=_FLOOR).log())


def _petal() -> pl.Expr:
    """Fit a line on the surrogate, from similarity to log-probability, and apply it."""
    same = pl.all_horizontal(
        pl.col(name) == pl.col(name).shift(1)
        for name in ("model", "view", "view_index")
    )
    logprob = (
        pl.when(same).then(pl.col("logprob").shift(1)).list.first().cast(pl.Float64)
    )
    known = pl.when(logprob.is_not_null()).then(_log_similarity(REFERENCE_PROBE))
    logprob = pl.when(known.is_not_null()).then(logprob)
    spread = mean((known - mean(known)) ** 2)
    both = mean((known - mean(known)) * (logprob - mean(logprob)))
    slope = pl.when(known.max() > known.min()).then(both / spread).otherwise(0.0)
    return mean(logprob) + slope * (mean(_log_similarity(PROBE)) - mean(known))


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


# DE-COP: whether the model tells a text from three paraphrases of it, shown in every order.
#
# Every score is a mean over the four labels of what is found where that label is right. A model
# that prefers a label whatever it stands for is thereby at chance, 0.25, exactly.

_DECOP = "Duarte et al. 2024 (arXiv:2402.09910), DE-COP"
_PARAPHRASES = ("paraphrases_column",)
_FEW = "the text has no three paraphrases that differ from it and each other"
_RIGHT = pl.col("view_index") % len(LABELS)
_LOG_P = [
    pl.col("logprob").list.get(i, null_on_oob=True).cast(pl.Float64)
    for i in range(len(LABELS))
]
_ODDS = [each.exp() for each in _LOG_P]
_P = [each / pl.sum_horizontal(_ODDS, ignore_nulls=False) for each in _ODDS]


def _over_labels(term: pl.Expr) -> pl.Expr:
    """Mean over labels of the mean of a term over the orders where the label is right."""
    means = [
        mean(pl.when(matches_views([CHOICE]), place == _RIGHT).then(term))
        for place in range(len(LABELS))
    ]
    return pl.sum_horizontal(means, ignore_nulls=False) / len(LABELS)


def _less_means(values: list[pl.Expr]) -> pl.Expr:
    """Take each label's mean off its values; a list."""
    return pl.concat_list(each - _over_labels(each) for each in values)


def _is_highest(values: pl.Expr) -> pl.Expr:
    """1 where the right label's value is the highest, or the first of several such; else 0."""
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
            f"mean over labels of {what} where the label is right",
            f"{_DECOP}, {source}",
        )
        for name, term, what, source in (
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
    "SaMIA, length-matched": build_attacks(dict(_samia(matched=True)), ""),
    "SaMIA": build_attacks(dict(_samia(matched=False)), "", whole_candidates=True),
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
