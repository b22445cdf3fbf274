"""Attacks on the target model's log-probabilities: loss, Min-K% and shapes of the series."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.attack import (
    LOWERCASE,
    REPEATED,
    TEXT,
    UNSCORED,
    among,
    average,
    first,
    logprobs,
    lowest,
    mean,
    of_texts,
    scored,
    tokens,
    total,
)
from mia_batch.kernels import approximate_entropy, lempel_ziv_complexity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mia_batch.attacks.attack import Attack


# The model's loss on a text, alone or beside that of the lowercased text.


_CARLINI = "Carlini et al. 2021 (arXiv:2012.07805)"
_SAMIA = "Kaneko et al. 2024 (arXiv:2404.11262v1)"
_BOTH = "no token of the text or of its lowercased form has a log-probability"

LOSS_ATTACKS = (
    of_texts(
        "loss",
        average(TEXT),
        formula="-loss",
        source="Yeom et al. 2018 (arXiv:1709.01604), adversary 2; minus the loss, per token",
    ),
    of_texts(
        "perplexity",
        -(-average(TEXT)).exp(),
        formula="-exp(loss)",
        source=f"{_CARLINI}, section 4.2; minus the perplexity; orders texts as the loss does",
        undefined=f"{UNSCORED}, or its perplexity is too large for a number",
    ),
    of_texts(
        "loss_zlib",
        average(TEXT) / first("zlib_size"),
        formula="-loss / zlib_size",
        source=f"{_CARLINI}, section 5.2; log-perplexity over bytes of zlib, as all code has it",
    ),
    of_texts(
        "lowercase_difference",
        average(TEXT) - average(LOWERCASE),
        formula="loss(lowercase) - loss",
        source=f"{_SAMIA}, equation 9; difference of losses",
        undefined=_BOTH,
        reads=(TEXT, LOWERCASE),
    ),
    of_texts(
        "lowercase_ratio",
        -average(TEXT) / average(LOWERCASE),
        formula="-loss / loss(lowercase)",
        source=f"{_CARLINI}, section 5.2; minus the ratio of losses",
        undefined=f"{_BOTH}, or the loss of the lowercased form is 0",
        reads=(TEXT, LOWERCASE),
    ),
)


# The least likely tokens of a text: Min-K% and Min-K%++.


_PERCENTS = (5, 10, 20, 30, 40, 50, 60)


def _standardised() -> pl.Expr:
    """Log-probability less its mean over the vocabulary, by its standard deviation there."""
    logprob, expected, variance = tokens("logprob", "vocabulary_mean", "vocabulary_variance")
    return (logprob - expected) / pl.when(variance > 0).then(variance.sqrt())


MIN_K_ATTACKS = (
    *(
        of_texts(
            f"min_k_{k}",
            mean(lowest(logprobs(), k)),
            formula=f"mean of the lowest {k} % of logprob",
            source=(
                f"Shi et al. 2024 (arXiv:2310.16789), equation 1, k = {k}; at least one token, "
                "where the authors' code gives NaN"
            ),
        )
        for k in _PERCENTS
    ),
    *(
        of_texts(
            f"min_k_plus_plus_{k}",
            mean(lowest(_standardised(), k)),
            formula=(
                f"mean of the lowest {k} % of "
                "(logprob - vocabulary_mean) / sqrt(vocabulary_variance)"
            ),
            source=(
                f"Zhang et al. 2025 (arXiv:2404.02936), the Min-K%++ score, k = {k}; at least "
                "one token; a token that the model holds for the only one possible is left out"
            ),
            undefined=(
                "no token of the text has a log-probability with variance over the vocabulary"
            ),
        )
        for k in _PERCENTS
    ),
)


# The losses of a text's tokens as a series: how many are low, whether they fall, how complex.


_CHANG = "Chang et al. 2024 (arXiv:2409.13745), CAMIA's signals"
_LIMITS = (1, 2, 3)  # nats, the authors' thresholds
_SERIES_PERCENTS = (40, 50, 60)
_BINS = (3, 4, 5)
_M, _R = 8, 0.8
_AT_MOST = 200  # log-probabilities that the authors compare with each other
_NOT_FINITE = "one is no finite number"
_SIGN = "no sign is right everywhere, and the authors' code takes it from the labels"

SERIES_COLUMNS = (*(f"complexity_{bins}" for bins in _BINS), "approximate_entropy")
"""Numbers of each row's ``logprob`` that attacks read as columns beside those of the table."""


def with_series(rows: pl.LazyFrame, attacks: Iterable[Attack]) -> pl.LazyFrame:
    """Rows of evidence with those of `SERIES_COLUMNS` that attacks read, where they read them.

    An attack calls no Python function, and these kernels are called by one.
    """
    reading = [each for each in attacks if set(each.columns).intersection(SERIES_COLUMNS)]
    used = {column for attack in reading for column in attack.columns}
    pairs = {pair for attack in reading for pair in attack.reads_of("logprobs")}
    if not pairs:
        return rows
    series = pl.when(among(pairs)).then("logprob").list.drop_nulls().list.head(_AT_MOST)
    made = [lempel_ziv_complexity(series, bins=bins) for bins in _BINS]
    made.append(approximate_entropy(series, m=_M, r=_R))
    columns = zip(SERIES_COLUMNS, made, strict=True)
    return rows.with_columns(**{name: expr for name, expr in columns if name in used})


def _share(low: pl.Expr) -> pl.Expr:
    return mean(low.cast(int))


def _losses() -> pl.Expr:
    return -logprobs().drop_nulls()


def _before() -> pl.Expr:
    """Mean of all losses before each one; null for the first."""
    losses = _losses()
    return (losses.cum_sum() / losses.cum_count()).shift()


def _slope() -> pl.Expr:
    """Slope of the least-squares line of the losses over 1, 2, 3, ..., in nats a token."""
    losses = _losses()
    n = losses.count()
    middle = losses.cum_count().cast(float) - (n + 1) / 2
    return pl.when(n > 1).then(total(middle * losses) / total(middle * middle))


def _from_end(percent: int) -> pl.Expr:
    """Share of the tokens that stand, from the end, before that share of low losses is exceeded."""
    low = _losses() < 1
    short_of = low.reverse().cum_sum() * 100 <= percent * low.sum()
    return pl.when(low.any()).then(_share(short_of))


def _diversity() -> pl.Expr:
    """Distinct tokens over tokens, of those with a log-probability."""
    ids = scored("token_ids").drop_nulls()
    return pl.when(ids.count() > 0).then(ids.n_unique() / ids.count())


SERIES_ATTACKS = (
    *(
        of_texts(
            f"losses_below_{limit}",
            _share(_losses() <= limit),
            formula=f"share of tokens with -logprob <= {limit}",
            source=f"{_CHANG}: counts below a threshold",
        )
        for limit in _LIMITS
    ),
    of_texts(
        "losses_below_mean",
        _share(_losses() <= mean(_losses())),
        formula="share of tokens with -logprob <= its mean over the text",
        source=f"{_CHANG}: counts below the mean",
    ),
    of_texts(
        "losses_below_previous",
        _share(_losses() <= _before()),
        formula="share of tokens with -logprob <= its mean over the tokens before",
        source=f"{_CHANG}: counts below the mean of what came before; the first token, which has "
        "nothing before it, does not count",
        undefined="no two tokens of the text have a log-probability",
    ),
    of_texts(
        "loss_slope",
        -_slope(),
        formula="minus the least-squares slope of -logprob over the position, in nats a token",
        source=f"{_CHANG}: the slope, negated, for losses of members fall faster; over all tokens, "
        "where the authors also take the first 600, 800 and 1,000",
        undefined=f"{UNSCORED}, or only one has",
    ),
    of_texts(
        "loss_by_diversity",
        average(TEXT) / _diversity(),
        formula="-loss / (distinct token_ids / tokens)",
        source=f"{_CHANG}: the loss calibrated by the diversity of tokens, of all that have a "
        "log-probability",
        undefined=f"{UNSCORED}, or they are not known by number",
    ),
)

SHAPE_ATTACKS = (
    of_texts(
        "repeated_difference",
        average(TEXT) - average(REPEATED),
        formula="loss(repeated) - loss",
        source=f"{_CHANG}: the fall of the loss where the text stands behind itself; negated, "
        "for a member's has less to fall. The authors repeat it five times, a space between",
        undefined="no token of the text, alone or behind itself, has a log-probability",
        reads=(TEXT, REPEATED),
    ),
    *(
        of_texts(
            f"low_losses_from_end_{percent}",
            -_from_end(percent),
            formula=(
                f"minus the share of the tokens, from the end, that hold at most {percent} % of "
                "those with -logprob < 1"
            ),
            source=f"{_CHANG}: find_t of the authors' code, over the number of tokens; "
            f"negated as the slope is, for losses of members fall faster; {_SIGN}",
            undefined="no token of the text has a log-probability above -1",
        )
        for percent in _SERIES_PERCENTS
    ),
    *(
        of_texts(
            f"loss_complexity_{bins}",
            -first(f"complexity_{bins}"),
            formula=(
                f"minus the Lempel-Ziv complexity of the first {_AT_MOST} logprob in {bins} bins"
            ),
            source=f"{_CHANG}: Lempel-Ziv complexity, of values binned twice as in the authors' "
            f"code; negated, for few words make up what is learnt by heart; {_SIGN}",
            undefined=f"{UNSCORED}, or {_NOT_FINITE}",
        )
        for bins in _BINS
    ),
    of_texts(
        "loss_entropy",
        first("approximate_entropy"),
        formula=(
            f"approximate entropy of the first {_AT_MOST} logprob, m = {_M}, r = {_R} of their "
            "standard deviation"
        ),
        source=f"{_CHANG}: approximate entropy, with the paper's m and r; the authors' code has 0 "
        "for shorter texts; not negated, for it was higher for members until hardly a loss was "
        f"left; {_SIGN}",
        undefined=f"fewer than {_M + 2} tokens have a log-probability, or {_NOT_FINITE}",
    ),
)
