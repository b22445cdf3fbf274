"""Attacks on the target model's log-probabilities: loss, Min-K% and shapes of the series."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from mia_batch.attacks.attack import (
    LOWERCASE,
    REPEATED,
    TEXT,
    UNSCORED,
    Attack,
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

# The model's loss on a text, alone or beside that of the lowercased text.


_CARLINI = "Carlini et al. 2021 (arXiv:2012.07805)"
_BOTH = "no token of the text or of its lowercased form has a log-probability"

LOSS_ATTACKS = (
    of_texts("loss", average(TEXT), "-loss", "Yeom et al. 2018 (arXiv:1709.01604), adversary 2"),
    of_texts(
        "perplexity",
        -(-average(TEXT)).exp(),
        "-exp(loss)",
        f"{_CARLINI}, section 4.2",
        f"{UNSCORED}, or its perplexity is too large for a number",
    ),
    of_texts(
        "loss_zlib",
        average(TEXT) / first("zlib_size"),
        "-loss / zlib_size",
        f"{_CARLINI}, section 5.2",
    ),
    of_texts(
        "lowercase_difference",
        average(TEXT) - average(LOWERCASE),
        "loss(lowercase) - loss",
        "Kaneko et al. 2024 (arXiv:2404.11262v1), equation 9",
        _BOTH,
        reads=(TEXT, LOWERCASE),
    ),
    of_texts(
        "lowercase_ratio",
        -average(TEXT) / average(LOWERCASE),
        "-loss / loss(lowercase)",
        f"{_CARLINI}, section 5.2",
        f"{_BOTH}, or the loss of the lowercased form is 0",
        reads=(TEXT, LOWERCASE),
    ),
)


# The least likely tokens of a text: Min-K% and Min-K%++, of at least one token. One that the model
# holds for the only one possible has no place in Min-K%++.


_PERCENTS = (5, 10, 20, 30, 40, 50, 60)


def _standardised() -> pl.Expr:
    """Log-probability less its mean over the vocabulary, by its standard deviation there."""
    logprob, expected, variance = tokens("logprob", "vocabulary_mean", "vocabulary_variance")
    return (logprob - expected) / pl.when(variance > 0).then(variance.sqrt())


MIN_K_ATTACKS = tuple(
    of_texts(
        f"{name}_{k}",
        mean(lowest(term, k)),
        f"mean of the lowest {k} % of {of}",
        f"{source}, k = {k}",
        undefined,
    )
    for name, term, of, source, undefined in (
        (
            "min_k",
            logprobs(),
            "logprob",
            "Shi et al. 2024 (arXiv:2310.16789), equation 1",
            UNSCORED,
        ),
        (
            "min_k_plus_plus",
            _standardised(),
            "(logprob - vocabulary_mean) / sqrt(vocabulary_variance)",
            "Zhang et al. 2025 (arXiv:2404.02936), the Min-K%++ score",
            "no token of the text has a log-probability with variance over the vocabulary",
        ),
    )
    for k in _PERCENTS
)


# The losses of a text's tokens as a series: how many are low, whether they fall, how complex.
#
# Negated, for losses of members fall faster and few words make up what is learnt by heart; but no
# sign of the shapes is right everywhere, and the authors' code takes it from the labels. That of
# the entropy was higher for members until hardly a loss was left, so it is not negated.


_CHANG = "Chang et al. 2024 (arXiv:2409.13745), CAMIA's signals"
_BINS = (3, 4, 5)
_M, _R = 8, 0.8
_AT_MOST = 200  # log-probabilities that the authors compare with each other
_NOT_FINITE = "one is no finite number"

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


_losses = -logprobs().drop_nulls()
_MEAN_BEFORE = (_losses.cum_sum() / _losses.cum_count()).shift()  # null for the first


def _slope() -> pl.Expr:
    """Slope of the least-squares line of the losses over 1, 2, 3, ..., in nats a token."""
    n = _losses.count()
    middle = _losses.cum_count().cast(float) - (n + 1) / 2
    return pl.when(n > 1).then(total(middle * _losses) / total(middle * middle))


def _from_end(percent: int) -> pl.Expr:
    """Share of the tokens that stand, from the end, before that share of low losses is exceeded."""
    low = _losses < 1
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
            _share(_losses <= limit),
            f"share of tokens with -logprob <= {limit}",
            f"{_CHANG}: counts below a threshold",
        )
        for limit in (1, 2, 3)  # nats, the authors' thresholds
    ),
    of_texts(
        "losses_below_mean",
        _share(_losses <= mean(_losses)),
        "share of tokens with -logprob <= its mean over the text",
        f"{_CHANG}: counts below the mean",
    ),
    of_texts(
        "losses_below_previous",
        _share(_losses <= _MEAN_BEFORE),
        "share of tokens with -logprob <= its mean over the tokens before",
        f"{_CHANG}: counts below the mean of what came before",
        "no two tokens of the text have a log-probability",
    ),
    of_texts(
        "loss_slope",
        -_slope(),
        "minus the least-squares slope of -logprob over the position, in nats a token",
        f"{_CHANG}: the slope, over all tokens",
        f"{UNSCORED}, or only one has",
    ),
    of_texts(
        "loss_by_diversity",
        average(TEXT) / _diversity(),
        "-loss / (distinct token_ids / tokens)",
        f"{_CHANG}: the loss calibrated by the diversity of tokens",
        f"{UNSCORED}, or they are not known by number",
    ),
)

SHAPE_ATTACKS = (
    of_texts(
        "repeated_difference",
        average(TEXT) - average(REPEATED),
        "loss(repeated) - loss",
        f"{_CHANG}: the fall of the loss where the text stands behind itself",
        "no token of the text, alone or behind itself, has a log-probability",
        reads=(TEXT, REPEATED),
    ),
    *(
        of_texts(
            f"low_losses_from_end_{percent}",
            -_from_end(percent),
            f"minus the share of the tokens, from the end, that hold at most {percent} % of "
            "those with -logprob < 1",
            f"{_CHANG}: find_t of the authors' code, over the number of tokens",
            "no token of the text has a log-probability above -1",
        )
        for percent in (40, 50, 60)
    ),
    *(
        of_texts(
            f"loss_complexity_{bins}",
            -first(f"complexity_{bins}"),
            f"minus the Lempel-Ziv complexity of the first {_AT_MOST} logprob in {bins} bins",
            f"{_CHANG}: Lempel-Ziv complexity",
            f"{UNSCORED}, or {_NOT_FINITE}",
        )
        for bins in _BINS
    ),
    of_texts(
        "loss_entropy",
        first("approximate_entropy"),
        f"approximate entropy of the first {_AT_MOST} logprob, m = {_M}, r = {_R} of their "
        "standard deviation",
        f"{_CHANG}: approximate entropy",
        f"fewer than {_M + 2} tokens have a log-probability, or {_NOT_FINITE}",
    ),
)
