"""Attacks on what a model says: continuations, probes, choices, ranks of its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import polars as pl

from mia_batch.attacks.attack import (
    AGGREGATES,
    CHOICE,
    EXTRACTION,
    PROBE,
    REFERENCE_PROBE,
    TEXT,
    Attack,
    among,
    average,
    logprobs,
    lowest,
    mean,
    n_lowest,
    ngrams,
    of_texts,
    scored,
    share,
    tokens,
)
from mia_batch.prompts.views import LABELS

# SaMIA and its relatives: n-gram overlap between sampled candidates and the reference.
#
# ``samia_...`` attacks read whole candidates and keep the denominators of the authors' code;
# ``samia_matched_...`` attacks read each candidate up to the reference's number of words. In
# version 1 of the paper, equation 9 is 11.


_SAMIA = "Kaneko et al. 2024 (arXiv:2404.11262v2)"
_KINDS = {
    "": "equations 1 and 5",
    "_precision": "equation 9",
    "_zlib": "equation 7",
    "_plus_zlib": "appendix D, table 11",
}
"""Mean recall and precision lie in [0, 1]; with compressed sizes in bytes a score is 0 or more."""


def _where_long(expr: pl.Expr, n: int) -> tuple[pl.Expr, str]:
    """Let a score stand where the reference has n-grams; and say why it does not elsewhere."""
    why = f"the reference has fewer than {n} words" if n > 1 else "the reference is empty"
    return pl.when(pl.col("words_reference").max() >= n).then(expr), why


def _samia(kind: str, n: int, *, matched: bool) -> Attack:
    cut = "_matched" if matched else ""
    side = f"words_candidate{cut}" if kind == "_precision" else "words_reference"
    overlap, zlib = f"overlap_{n}{cut}", f"zlib_candidate{cut}"
    term = share(overlap, ngrams(side, n) if matched else pl.col(side))
    formula = f"{overlap} / ({side} - {n - 1})" if matched and n > 1 else f"{overlap} / {side}"
    if kind == "_zlib":
        term, formula = term * pl.col(zlib), f"{formula} * {zlib}"
    if kind == "_plus_zlib":
        term, formula = term + pl.col(zlib), f"{formula} + {zlib}"
    expr, undefined = mean(term), "there is no candidate"
    if matched:
        expr, undefined = _where_long(expr, n)
    return Attack(
        name=f"samia{cut}{kind}{'' if n == 1 else f'_n{n}'}_v1",
        expr=expr,
        formula=f"mean over candidates of {formula}",
        source=f"{_SAMIA}, {_KINDS[kind]}, N = {n}",
        undefined=undefined,
        whole_candidates=not matched,
    )


def _family(*, matched: bool) -> tuple[Attack, ...]:
    kinds = ("", "_precision", "_zlib")
    return tuple(_samia(kind, n, matched=matched) for kind in kinds for n in range(1, 6))


MATCHED_ATTACKS = _family(matched=True)

SAMIA_ATTACKS = (*_family(matched=False), _samia("_plus_zlib", 1, matched=False))


# ROUGE between whole candidates and the reference, under the run's word rule, in [0, 1]. With the
# word rule ``rouge`` the counts are those of the ``rouge-score`` package without stemming.


def _rouge(kind: str, n: int, shared: str, section: str) -> Iterator[Attack]:
    """Recall, precision and F1 of one kind; a side without n-grams gives 0."""
    recall = share(shared, ngrams("words_reference", n))
    precision = share(shared, ngrams("words_candidate", n))
    f1 = 2 * recall * precision / (recall + precision)
    f1 = pl.when(recall + precision == 0).then(0.0).otherwise(f1)  # null stays null
    there, here = "words_reference", "words_candidate"
    if n > 1:
        there, here = (f"({words} - {n - 1})" for words in (there, here))
    formulas = {
        "": (recall, f"{shared} / {there}"),
        "_precision": (precision, f"{shared} / {here}"),
        "_f1": (f1, f"2 {shared} / ({there} + {here})"),
    }
    for ending, (term, formula) in formulas.items():
        expr, undefined = _where_long(mean(term), n)
        yield Attack(
            name=f"rouge_{kind}{ending}_v1",
            expr=expr,
            formula=f"mean over candidates of {formula}",
            source=f"Lin 2004, {section}",
            undefined=undefined,
            whole_candidates=True,
        )


ROUGE_ATTACKS: tuple[Attack, ...] = (
    *(
        attack
        for n in range(1, 6)
        for attack in _rouge(str(n), n, f"overlap_{n}", f"section 2 (ROUGE-N), N = {n}")
    ),
    *_rouge("l", 1, "lcs_words", "section 3.1 (ROUGE-L)"),
)


# Probes: whether the model goes on with the true next words at many points of a text.
#
# Either by what it answers, or by the log-probability that it gives to the true next token.
# ``..._rarity_...`` attacks weigh each shared word by how rarely the model says it elsewhere.


_PETAL = "He et al. 2025 (USENIX Security)"
_WEIGHED = "weight: Spärck Jones 1972"
_TOO_SHORT = "the text is too short for a point"
_WEIGHT = "ln(T / (1 + df))"


def _probe(name: str, term: pl.Expr, formula: str, source: str = _PETAL) -> Attack:
    return Attack(
        name=f"probe_{name}_v1",
        expr=mean(term.cast(pl.Float64)),
        formula=f"mean over the answers at all points of {formula}",
        source=source,
        undefined=_TOO_SHORT,
        reads=(PROBE,),
    )


def _of_words(weighed: str) -> pl.Expr:
    return pl.col(weighed) / pl.col("words_reference").clip(lower_bound=1)


def _leading_rarity(view: tuple[str, str]) -> pl.Expr:
    return mean(pl.when(among([view])).then(_of_words("rarity_leading")))


PROBE_ATTACKS = (
    _probe(
        "leading_rarity",
        _of_words("rarity_leading"),
        f"the sum of {_WEIGHT} over the leading words that agree / words asked",
        f"{_PETAL}; {_WEIGHED}",
    ),
    _probe("first_word", pl.col("leading_words") >= 1, "1 where the first word is right"),
    _probe(
        "leading",
        share("leading_words", "words_reference"),
        "leading words that agree / words asked",
    ),
    _probe(
        "recall_rarity",
        _of_words("rarity_1"),
        f"the sum of {_WEIGHT} over shared words / words asked",
        f"{_PETAL}; {_WEIGHED}",
    ),
)

# What this model knows that the reference model does not.
REFERENCE_PROBE_ATTACKS = (
    Attack(
        name="probe_rarity_difference_v1",
        expr=_leading_rarity(PROBE) - _leading_rarity(REFERENCE_PROBE),
        formula="probe_leading_rarity_v1 less the same of the reference model",
        source=f"Carlini et al. 2021 (arXiv:2012.07805), section 5.2; {_PETAL}; {_WEIGHED}",
        undefined=f"{_TOO_SHORT}, or one of the two models gave no answer",
        reads=(PROBE, REFERENCE_PROBE),
        settings=("reference_model",),
    ),
)


def _log_hit_rate() -> pl.Expr:
    """Log of the smoothed share of hits at each point; rows come point by point."""
    is_last = (pl.col("view_index") != pl.col("view_index").shift(-1)).fill_null(value=True)
    hits = (pl.col("leading_words") >= 1).cum_sum().cast(pl.Float64).filter(is_last)
    answers = pl.int_range(1, pl.len() + 1).cast(pl.Float64).filter(is_last)
    first = hits - hits.shift(1, fill_value=0), answers - answers.shift(1, fill_value=0)
    return ((first[0] + 0.5) / (first[1] + 1)).log()


# What log-probabilities would be, estimated from drawn answers.
LOG_HIT_RATE_ATTACKS = (
    Attack(
        name="probe_logprob_v1",
        expr=mean(_log_hit_rate()),
        formula="mean over points of ln((answers whose first word is right + 1/2) / (answers + 1))",
        source=f"Krichevsky and Trofimov 1981 (smoothing); {_PETAL}",
        undefined=_TOO_SHORT,
        reads=(PROBE,),
        settings=("samples",),
    ),
)

# On both kinds of evidence.
COMBINED_ATTACKS = (
    Attack(
        name="probe_rarity_loss_v1",
        expr=_leading_rarity(PROBE) + average(TEXT),
        formula="probe_leading_rarity_v1 + loss_v1: per word, and per token, in nats",
        source=f"Church and Hanks 1990 (pointwise mutual information); {_PETAL}; {_WEIGHED}",
        undefined=f"{_TOO_SHORT}, or no token has a log-probability",
        reads=(PROBE,),
        logprobs=(TEXT,),
    ),
)

PROBE_LOGPROB_ATTACKS = tuple(
    of_texts(
        f"probe_{name}",
        mean(term),
        f"mean of {which} of the first token after each point",
        f"{source}, of the tokens after points",
        _TOO_SHORT,
        reads=(PROBE,),
    )
    for name, term, which, source in (
        ("loss", logprobs(PROBE), "logprob", "Yeom et al. 2018 (arXiv:1709.01604), adversary 2"),
        (
            "min_k_20",
            lowest(logprobs(PROBE), 20),
            "the lowest 20 % of logprob",
            "Shi et al. 2024 (arXiv:2310.16789), equation 1, k = 20",
        ),
    )
)


def _matched_rarity(n: int) -> Attack:
    term = pl.col(f"rarity_{n}") / ngrams("words_reference", n).clip(lower_bound=1)
    expr, undefined = _where_long(mean(term), n)
    return Attack(
        name=f"samia_matched_rarity{'' if n == 1 else f'_n{n}'}_v1",
        expr=expr,
        formula=f"mean over candidates of the sum of {_WEIGHT} over shared {n}-grams "
        f"/ {n}-grams of the reference",
        source=f"{_SAMIA}, N = {n}; {_WEIGHED}",
        undefined=undefined,
    )


MATCHED_RARITY_ATTACKS = (_matched_rarity(1), _matched_rarity(2))


# Words of a candidate in spans that the reference has, too; and the longest such spans.
#
# The released code matches detokenised text, so that parts of words match, and finds spans for one
# length only; here spans start and end between words, and each length is exact.


_HALLINAN = "Hallinan et al. 2025 (arXiv:2508.09603)"
_SUBSTRING = f"{_HALLINAN}, longest common substring"
_LENGTH = 3  # words of a span, as published
_LENGTHS = range(2, 13)
_CANDIDATE = pl.col("words_candidate")
_LONGER = pl.max_horizontal("words_candidate", "words_reference")
_LONGER_TEXT = "max(words_candidate, words_reference)"
_COVERED = pl.col(f"covered_{_LENGTH}")
_COVERAGE = f"{_HALLINAN}, coverage, L = {_LENGTH}"


def _aggregated(name: str, term: pl.Expr, formula: str, source: str) -> Iterator[Attack]:
    """Mean, maximum, median and minimum of a term over candidates."""
    for ending, aggregate in AGGREGATES.items():
        yield Attack(
            name=f"{name}{ending}_v1",
            expr=aggregate(term.cast(pl.Float64)),
            formula=f"{ending.removeprefix('_') or 'mean'} over candidates of {formula}",
            source=source,
            undefined="there is no candidate",
            whole_candidates=True,
        )


COVERAGE_ATTACKS: tuple[Attack, ...] = (
    *_aggregated(
        "ngram_coverage",
        share(_COVERED, _CANDIDATE),
        f"covered_{_LENGTH} / words_candidate",
        _COVERAGE,
    ),
    *_aggregated(
        "ngram_coverage_reference",
        share(_COVERED, _LONGER),
        f"covered_{_LENGTH} / {_LONGER_TEXT}",
        _COVERAGE,
    ),
    *_aggregated(
        "ngram_coverage_total",
        share(2 * _COVERED, _CANDIDATE + _LONGER),
        f"2 covered_{_LENGTH} / (words_candidate + {_LONGER_TEXT})",
        _COVERAGE,
    ),
    *_aggregated(
        "creativity",
        pl.sum_horizontal(
            (share(f"covered_{length}", _CANDIDATE) for length in _LENGTHS), ignore_nulls=False
        ),
        f"(covered_{_LENGTHS[0]} + ... + covered_{_LENGTHS[-1]}) / words_candidate",
        f"{_HALLINAN}, sum of coverages, L = {_LENGTHS[0]} to {_LENGTHS[-1]}",
    ),
)

VERBATIM_ATTACKS: tuple[Attack, ...] = (
    *_aggregated(
        "longest_block",
        pl.col("longest_block_words"),
        "longest_block_words",
        f"{_SUBSTRING}, in words",
    ),
    *_aggregated(
        "longest_block_chars",
        pl.col("longest_block_chars"),
        "longest_block_chars",
        f"{_SUBSTRING}, in characters",
    ),
    *_aggregated(
        "longest_block_share",
        share("longest_block_words", "words_reference"),
        "longest_block_words / words_reference",
        f"{_SUBSTRING}, by the reference's words",
    ),
    *_aggregated(
        "near_verbatim",
        share("near_verbatim_words", "words_reference"),
        "near_verbatim_words / words_reference",
        "Ahmed et al. 2026 (arXiv:2601.02671), near-verbatim recall, here of blocks of 8 words",
    ),
)


# Ranks of a text's tokens, and how certain the model was of them.


_MITCHELL = "Mitchell et al. 2023 (arXiv:2301.11305), baselines"
_PERCENT = 20
_CERTAIN = 2.0  # nats of entropy


def _surprising() -> pl.Expr:
    """Log-probabilities of the least likely tokens where the model was certain."""
    logprob, expected = tokens("logprob", "vocabulary_mean")
    unlikely = logprob.rank("ordinal") <= n_lowest(logprob, _PERCENT)
    return logprob.filter(unlikely & (-expected < _CERTAIN))


RANK_ATTACKS = (
    of_texts("rank", -mean(scored("rank")), "-mean of rank", f"{_MITCHELL} (Rank)"),
    of_texts(
        "log_rank", -mean(scored("rank").log()), "-mean of log(rank)", f"{_MITCHELL} (LogRank)"
    ),
    of_texts(
        "top_1_share",
        mean((scored("rank") == 1).cast(int)),
        "share of tokens with rank = 1",
        "Gehrmann et al. 2019 (arXiv:1906.04043), test 2",
    ),
    of_texts(
        "entropy",
        mean(scored("vocabulary_mean")),
        "mean of vocabulary_mean",
        f"{_MITCHELL} (Entropy)",
    ),
    of_texts(
        "surprising_20",
        mean(_surprising()),
        f"mean of logprob, where it is among the lowest {_PERCENT} % and "
        f"-vocabulary_mean < {_CERTAIN}",
        "Zhang and Wu 2024 (arXiv:2407.21248), here of the least likely tokens",
        "the model was certain of none of the least likely tokens",
    ),
)


# Probabilities of tokens beside how frequent the tokens are anyway.


_CAP = 0.01


def _dc_pdd() -> pl.Expr:
    """Mean of probability times log inverse frequency, capped, where a token comes first."""
    token_id, logprob, surprise = tokens("token_ids", "logprob", "log_inverse_frequency")
    capped = (logprob.exp() * surprise).clip(upper_bound=_CAP)
    scored_id = pl.when(capped.is_not_null()).then(token_id)
    return mean(capped.filter(scored_id.is_first_distinct()))


FREQUENCY_ATTACKS = (
    of_texts(
        "dc_pdd",
        _dc_pdd(),
        f"mean over distinct tokens of min({_CAP}, exp(logprob) * log_inverse_frequency)",
        f"Zhang et al. 2024 (arXiv:2409.14781), a = {_CAP}",
        "no token of the text has both a log-probability and a frequency",
        settings=("frequencies_from",),
    ),
)


# PETAL: log-probabilities guessed from how alike the model's word and the true word are.
#
# With log similarity, its floor and a line per text as in the authors' code.


_LEAST = 1e-16  # similarity, of the authors' code


def _log_similarity(view: tuple[str, str]) -> pl.Expr:
    """Log similarity of the first answer at each point; null in other rows."""
    first = among([view]) & (pl.col("sample_index") == 0)
    return pl.when(first).then(pl.col("similarity").clip(lower_bound=_LEAST).log())


def _petal() -> pl.Expr:
    """Fit a line on the surrogate, from similarity to log-probability, and apply it."""
    same = pl.all_horizontal(
        pl.col(name) == pl.col(name).shift(1) for name in ("model", "view", "view_index")
    )
    logprob = pl.when(same).then(pl.col("logprob").shift(1)).list.first().cast(pl.Float64)
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
        formula="mean over points of a + b ln(similarity of the answer and the true word); a and b "
        "fitted on the reference model's answers and log-probabilities of the same text",
        source=f"{_PETAL}, the surrogate is the reference model",
        undefined="the text is too short for a point, or one of the two models gave no answer",
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
_SETTINGS = ("paraphrases_column",)
_FEW = "the text lacks three paraphrases that differ from it and each other"
_RIGHT = pl.col("view_index") % len(LABELS)


def _over_labels(term: pl.Expr) -> pl.Expr:
    """Mean over labels of the mean of a term over the orders where the label is right."""
    means = [
        mean(pl.when(among([CHOICE]), place == _RIGHT).then(term)) for place in range(len(LABELS))
    ]
    return pl.sum_horizontal(means, ignore_nulls=False) / len(LABELS)


def _less_means(values: list[pl.Expr]) -> pl.Expr:
    """Take each label's mean off its values; a list."""
    return pl.concat_list(each - _over_labels(each) for each in values)


def _is_highest(values: pl.Expr) -> pl.Expr:
    """1 where the right label's value is the highest, or the first of several such; else 0."""
    return (values.list.arg_max() == _RIGHT).cast(pl.Float64)


_LOG_P = [
    pl.col("logprob").list.get(i, null_on_oob=True).cast(pl.Float64) for i in range(len(LABELS))
]
_ODDS = [each.exp() for each in _LOG_P]
_P = [each / pl.sum_horizontal(_ODDS, ignore_nulls=False) for each in _ODDS]

CHOICE_ATTACKS = (
    Attack(
        name="decop_v1",
        expr=_over_labels((pl.col("choice") == _RIGHT).cast(pl.Float64)),
        formula="mean over labels of the share of answers that name the label where it is right",
        source=f"{_DECOP}, from answers alone",
        undefined=f"{_FEW}, or where some label is right no answer names one label",
        reads=(CHOICE,),
        settings=_SETTINGS,
    ),
)

CHOICE_LOGPROB_ATTACKS = tuple(
    of_texts(
        f"decop_{name}",
        _over_labels(term),
        f"mean over labels of {what} where the label is right",
        f"{_DECOP}, {source}",
        f"{_FEW}, or where some label is right no order has probabilities",
        reads=(CHOICE,),
        settings=_SETTINGS,
    )
    for name, term, what, source in (
        (
            "calibrated",
            _is_highest(_less_means(_P)),
            "1 where, less its mean over the text's orders, the label's probability is the highest",
            "calibrated by the orders of this text",
        ),
        (
            "log_calibrated",  # whatever is added to a label's logit in all orders changes nothing
            _is_highest(_less_means(_LOG_P)),
            "1 where, less its mean over the text's orders, the label's log-probability is the "
            "highest",
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
)


# How likely the model is to continue the prefix with the reference, token for token.


_HAYES = "Hayes et al. 2025 (arXiv:2410.19482)"
_NOT_EVERY_TOKEN = "not every token of the reference has a log-probability"
_UNLIKELY = -30.0
"""Below this log p, log(1 - p) is -p to the last bit."""


def _whole(term: pl.Expr, value: pl.Expr) -> pl.Expr:
    """Let a value stand where every token of the reference has its term."""
    return pl.when(term.len() > 0, term.null_count() == 0).then(value)


def _sum(term: pl.Expr) -> pl.Expr:
    """Sum of a term, added one by one; null where a token lacks it."""
    return _whole(term, term.implode().list.sum())


def _log_p_kept() -> pl.Expr:
    """Log of p_z among the tokens that the run's decoding keeps."""
    logprob, support_mass = tokens("logprob", "support_mass", view=EXTRACTION)
    return _sum(logprob - support_mass).clip(upper_bound=0.0)  # rounding may exceed certainty


def _log_samples(log_p: pl.Expr, p: float) -> pl.Expr:
    """Log of the samples needed to have the reference among them with probability p; 0 or more."""
    hazard = pl.when(log_p < _UNLIKELY).then(log_p).otherwise((-(-log_p.exp()).log1p()).log())
    return (log(-log(1 - p)) - hazard).clip(lower_bound=0.0)


def _extraction_attacks(
    name: str, log_p: pl.Expr, formula: str, scheme: str, undefined: str
) -> Iterator[Attack]:
    yield of_texts(
        name, log_p, formula, f"{_HAYES}, log p_z {scheme}", undefined, reads=(EXTRACTION,)
    )
    for p in (0.5, 0.9, 0.99):
        yield of_texts(
            f"{name}_n_{p * 100:.0f}",
            -_log_samples(log_p, p),
            f"-log(max(1, log(1 - {p}) / log(1 - exp({formula}))))",
            f"{_HAYES}, minus the log of n of (n, {p})-discoverable extraction {scheme}",
            undefined,
            reads=(EXTRACTION,),
        )


_EXTRACTION_RANK = scored("rank", EXTRACTION)

EXTRACTION_ATTACKS: tuple[Attack, ...] = (
    *_extraction_attacks(
        "extraction",
        _sum(logprobs(EXTRACTION)),
        "sum of logprob",
        "from the whole vocabulary",
        _NOT_EVERY_TOKEN,
    ),
    *_extraction_attacks(
        "extraction_top_k",
        _log_p_kept(),
        "sum of (logprob - support_mass)",
        "under the run's decoding",
        f"{_NOT_EVERY_TOKEN}, or decoding leaves one of them out",
    ),
    of_texts(
        "extraction_greedy",
        _whole(_EXTRACTION_RANK, (_EXTRACTION_RANK == 1).all().cast(pl.Float64)),
        "1 where all tokens have rank = 1, else 0",
        f"{_HAYES}, discoverable extraction",
        _NOT_EVERY_TOKEN,
        reads=(EXTRACTION,),
    ),
)
