"""Attacks on log-probabilities: of a text, alone or against other models, texts and shots.

In formulas columns are of the text's tokens, ``loss`` is minus the mean of ``logprob``
over tokens, and ``loss(view)`` the same of another text. A refused text has null
instead of lists, and a token that nothing precedes has null instead of a number;
neither takes part in anything.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import chain
from math import log
from operator import add, sub
from typing import Any

import polars as pl

from mia_batch.attacks.attack import (
    ANSWERS,
    CODEC,
    LOWERCASE,
    REFERENCE_TEXT,
    TEXT,
    Attack,
    Formula,
    ModelView,
    build_attacks,
    matches_view,
    matches_views,
    mean,
    total,
)
from mia_batch.kernels import approximate_entropy, lempel_ziv_complexity
from mia_batch.views import SHADOW, SHADOW_NUMBER

_REPEATED = ("target", "repeated")
_NEIGHBOUR = ("target", "neighbour")
_PERTURBATION = ("target", "perturbation")
_EXTRACTION = ("target", "extraction")
_NONMEMBERS = ("target", "nonmember_shots")
_MEMBERS = ("target", "member_shots")
_SWAPPED = ("target", "swapped")
_SHADOW_TEXT = (SHADOW, "text")
_UNSCORED = "no token of the text has a log-probability"


def build_text_attacks(
    formulas: Mapping[str, Formula],
    undefined: str = _UNSCORED,
    **shared: Any,
) -> tuple[Attack, ...]:
    return build_attacks(formulas, undefined, evidence="logprobs", **shared)


def build_text_attack(name: str, *formula: Any, **shared: Any) -> tuple[Attack, ...]:
    return build_text_attacks({name: formula}, **shared)


def _first(column: str, view: ModelView = TEXT) -> pl.Expr:
    return pl.col(column).filter(matches_view(view)).first()


def _tokens(*columns: str, view: ModelView = TEXT) -> tuple[pl.Expr, ...]:
    """Return numbers of a text's tokens, aligned and in order; null where a text has no number."""
    has_numbers = matches_view(view) & pl.all_horizontal(
        pl.col(name).is_not_null() for name in columns
    )
    return tuple(
        pl.col(name).filter(has_numbers).explode().cast(pl.Float64) for name in columns
    )


def _scored(column: str, view: ModelView = TEXT) -> pl.Expr:
    """Return numbers of those tokens of a text that have a log-probability, else null."""
    logprob, number = _tokens("logprob", column, view=view)
    return pl.when(logprob.is_not_null()).then(number)


def logprobs(view: ModelView = TEXT) -> pl.Expr:
    """Return log-probabilities of a text's tokens, in nats; null where a token has none."""
    return _tokens("logprob", view=view)[0]


def mean_logprob(view: ModelView) -> pl.Expr:
    """Return the mean log-probability of a text's tokens, in nats; 0 or less."""
    return mean(logprobs(view))


def _mean_logprobs(view: ModelView, *conditions: pl.Expr) -> pl.Expr:
    """Return `mean_logprob` of each of several texts; null where one has no tokens."""
    lists = pl.col("logprob").filter(matches_view(view), *conditions)
    n = lists.list.len() - lists.list.count_matches(None)
    return pl.when(n > 0).then(lists.cast(pl.List(pl.Float64)).list.sum() / n)


def _have_same_tokens(*views: ModelView) -> pl.Expr:
    """Return whether texts, one of each model, have numbers and are the same tokens."""
    has_numbers = matches_views(views) & pl.col("logprob").is_not_null()
    token_ids = pl.col("token_ids").filter(has_numbers).drop_nulls()
    return (token_ids.len() == len(views)) & (token_ids.n_unique() == 1)


def _count_lowest(term: pl.Expr, percent: int) -> pl.Expr:
    """Count the numbers that make up a share of a term: rounded down, at least one."""
    return (term.count() * percent // 100).clip(lower_bound=1)


def lowest(term: pl.Expr, percent: int) -> pl.Expr:
    """Return the lowest numbers of a term, ascending, nulls left out."""
    return term.drop_nulls().sort().head(_count_lowest(term, percent))


_TEXT_LOGPROB = mean_logprob(TEXT)
_CARLINI = "Carlini et al. 2021 (arXiv:2012.07805)"


# The model's loss on a text, alone or against that of the lowercased text.

_BOTH_FORMS = "no token of the text or of its lowercased form has a log-probability"

_LOSS_ATTACKS = (
    *build_text_attacks(
        {
            "loss": (
                _TEXT_LOGPROB,
                "-loss",
                "Yeom et al. 2018 (arXiv:1709.01604), adversary 2",
            ),
            "perplexity": (
                -(-_TEXT_LOGPROB).exp(),
                "-exp(loss)",
                f"{_CARLINI}, section 4.2",
                f"{_UNSCORED}, or its perplexity is too large for a number",
            ),
            "loss_zlib": (
                _TEXT_LOGPROB / _first("zlib_size"),
                "-loss / zlib_size",
                f"{_CARLINI}, section 5.2",
            ),
        }
    ),
    *build_text_attacks(
        {
            "lowercase_difference": (
                _TEXT_LOGPROB - mean_logprob(LOWERCASE),
                "loss(lowercase) - loss",
                "Kaneko et al. 2024 (arXiv:2404.11262v1), equation 9",
            ),
            "lowercase_ratio": (
                -_TEXT_LOGPROB / mean_logprob(LOWERCASE),
                "-loss / loss(lowercase)",
                f"{_CARLINI}, section 5.2",
                f"{_BOTH_FORMS}, or the loss of the lowercased form is 0",
            ),
        },
        _BOTH_FORMS,
        reads=(TEXT, LOWERCASE),
    ),
)


# The least likely tokens of a text: Min-K% and Min-K%++, of at least one token. One
# that the model holds for the only one possible has no place in Min-K%++.

_NO_VARIANCE = (
    "no token of the text has a log-probability with variance over the vocabulary"
)


def _standardised() -> pl.Expr:
    """Return log-probabilities less their means over the vocabulary, in deviations there."""
    logprob, expected, variance = _tokens(
        "logprob", "vocabulary_mean", "vocabulary_variance"
    )
    return (logprob - expected) / pl.when(variance > 0).then(variance.sqrt())


_Z = "(logprob - vocabulary_mean) / sqrt(vocabulary_variance)"
_SHI = "Shi et al. 2024 (arXiv:2310.16789)"
_ZHANG = "Zhang et al. 2025 (arXiv:2404.02936)"
_PERCENTS = (5, 10, 20, 30, 40, 50, 60)
_MIN_K: dict[str, Formula] = {
    f"min_k_{k}": (
        mean(lowest(logprobs(), k)),
        f"mean of the lowest {k} % of logprob",
        f"{_SHI}, equation 1, k = {k}",
    )
    for k in _PERCENTS
}
_MIN_K_PLUS_PLUS: dict[str, Formula] = {
    f"min_k_plus_plus_{k}": (
        mean(lowest(_standardised(), k)),
        f"mean of the lowest {k} % of {_Z}",
        f"{_ZHANG}, the Min-K%++ score, k = {k}",
    )
    for k in _PERCENTS
}
_MIN_K_ATTACKS = (
    *build_text_attacks(_MIN_K),
    *build_text_attacks(_MIN_K_PLUS_PLUS, _NO_VARIANCE),
)


# The same with early tokens weighed more (PDR), and how far a text's token is from the
# likeliest one (Gap-K%). Windows of Gap-K% slide over the tokens that have a score; the
# authors raise a variance below 1e-8 to that on one of their two benchmarks, here it is
# no score.

_LIU = (
    "Liu et al. 2026 (arXiv:2601.06827), PDR, linear decay from 1 to 1 / tokens, our"
    " reading"
)
_KWAK = "Kwak and Kim 2026 (arXiv:2601.19936), Gap-K%, k = 20"


def _early(term: pl.Expr, percent: int, *columns: str) -> pl.Expr:
    """Return the mean of a term's lowest numbers, each weighed by its token's place."""
    logprob = _tokens("logprob", *columns)[0]
    n = logprob.count()
    weight = (n + 1 - logprob.cum_count().cast(pl.Int64)) / n
    is_lowest = term.rank("ordinal") <= _count_lowest(term, percent)
    return mean((term * weight).filter(is_lowest))


def _gap(length: int) -> pl.Expr:
    """Return means of so many gaps to the likeliest token, in standard deviations."""
    logprob, top, variance = _tokens("logprob", "top_logprob", "vocabulary_variance")
    gap = ((logprob - top) / pl.when(variance > 0).then(variance.sqrt())).drop_nulls()
    means = reduce(add, (gap.shift(place) for place in range(length))) / length
    return pl.when(gap.count() >= length).then(means).otherwise(gap)


_EARLY_ATTACKS = build_text_attacks(
    {
        "pdr_loss": (
            _early(logprobs(), 100),
            "mean of w * logprob, w = 1 - (place - 1) / tokens",
            _LIU,
        ),
        "pdr_min_k_20": (
            _early(logprobs(), 20),
            (
                "mean of w * logprob over the lowest 20 % of logprob, w = 1 - (place -"
                " 1) / tokens"
            ),
            f"{_LIU}; over Min-K%",
        ),
        "pdr_min_k_plus_plus_20": (
            _early(_standardised(), 20, "vocabulary_mean", "vocabulary_variance"),
            (
                f"mean of w * z over the lowest 20 % of z = {_Z}, w = 1 - (place - 1) /"
                " tokens"
            ),
            f"{_LIU}; over Min-K%++",
            _NO_VARIANCE,
        ),
    }
)
_GAP_ATTACKS = build_text_attacks(
    {
        name: (
            mean(lowest(_gap(window), 20)),
            (
                f"mean of the lowest 20 % of means of {window} tokens in a row of"
                " (logprob - top_logprob) / sqrt(vocabulary_variance)"
            ),
            f"{_KWAK}, window of {window}{origin}",
        )
        for name, window, origin in (
            ("gap_k_20", 3, " as in the authors' scripts for Pythia and Mamba"),
            ("gap_k_20_window_6", 6, " as in the authors' scripts for LLaMA"),
        )
    },
    f"{_NO_VARIANCE}, or runs of earlier versions did not record the likeliest token's",
)


# A reference model's loss on the text: in nats per byte, so that tokenizers may differ;
# an unscored token counts as the mean of the scored ones.

_REFERENCE_LOSS = f"{_CARLINI}, section 5.2"
_ONE_UNSCORED = "no token of the text has a log-probability under one of the two models"
_BOTH_MODELS = (TEXT, REFERENCE_TEXT)
_REFERENCE = ("reference_model",)


def _rate(view: ModelView) -> pl.Expr:
    """Return the nats per byte of the text; 0 or less."""
    return mean_logprob(view) * logprobs(view).len() / _first("n_bytes", view)


def _difference(name: str, model: str, source: str, setting: str) -> tuple[Attack, ...]:
    """Build the attack by another model's loss less the target's, on the same tokens."""
    view = (model, "text")
    difference = _TEXT_LOGPROB - mean_logprob(view)
    return build_text_attack(
        name,
        pl.when(_have_same_tokens(TEXT, view)).then(difference),
        f"loss({model.replace('_', '-')} model) - loss",
        source,
        f"{_ONE_UNSCORED}, or the two models' tokenizers cut it differently",
        reads=(TEXT, view),
        settings=(setting,),
    )


_RATE_ATTACKS = build_text_attacks(
    {
        "reference_difference": (
            _rate(TEXT) - _rate(REFERENCE_TEXT),
            "(loss(reference model) * its tokens - loss * tokens) / n_bytes",
            f"{_REFERENCE_LOSS}; difference of losses per byte",
        ),
        "reference_ratio": (
            -_rate(TEXT) / _rate(REFERENCE_TEXT),
            "-(loss * tokens) / (loss(reference model) * its tokens)",
            f"{_REFERENCE_LOSS}; ratio of losses per byte",
            f"{_ONE_UNSCORED}, or the reference model's loss is 0",
        ),
    },
    _ONE_UNSCORED,
    reads=_BOTH_MODELS,
    settings=_REFERENCE,
)
_TOKEN_DIFFERENCE = _difference(
    "reference_token_difference",
    "reference",
    f"{_SHI}, section 4.2 (Smaller Ref); LiRA-Base where the other is the base model",
    "reference_model",
)
_FU = "Fu et al. 2024 (arXiv:2311.06062)"
_TUNED_ATTACKS = (
    *_difference(
        "self_prompt_difference",
        "self_prompt",
        f"{_FU}, equations 4 and 7, table 6 (SPV-MIA without probabilistic variation)",
        "prompts_from",
    ),
    *_difference(
        "candidate_difference",
        "candidate",
        f"{_FU}, equation 4, appendix A.6.3 (LiRA-Candidate, after Mireshghallah et al."
        " 2022)",
        "candidate_from",
    ),
)


# Token by token against the base model: where a tuned model has become surer of a text.

_NEAR_1 = -(2.0**-24)  # float32 cannot tell a probability above exp of this from 1
_WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
# Nats that one model's numbers of a token may differ from call to call
_ROUNDING = 1e-5
_APART = (
    "no token of the text has numbers under both models, or their tokenizers cut it"
    " differently"
)
_AGREE = f"to {_ROUNDING:.5f} nats on average, which is rounding"
_HAVE_SAME_TOKENS = _have_same_tokens(*_BOTH_MODELS)
_RANKED = (
    _HAVE_SAME_TOKENS & pl.col("rank").filter(matches_views([TEXT])).is_not_null().any()
)


def _compared(column: str, view: ModelView, condition: pl.Expr) -> pl.Expr:
    """Return numbers of the tokens of one text; none of texts that are not compared."""
    is_compared = matches_views([view]) & condition
    return pl.col(column).filter(is_compared).explode().cast(pl.Float64)


def _gain(condition: pl.Expr) -> pl.Expr:
    """Return log-probabilities less the base model's; null where either has none."""
    base = _compared("logprob", REFERENCE_TEXT, condition)
    return _compared("logprob", TEXT, condition) - base


def _differ(gain: pl.Expr) -> pl.Expr:
    """Return whether the models differ by more than rounding, which gives gains, too."""
    return total(gain.abs()) > _ROUNDING * gain.count()


def _error_zone() -> pl.Expr:
    """Return gains over gains and losses, where the target's likeliest token is another."""
    rank = _compared("rank", TEXT, _RANKED)
    gain = _gain(_RANKED)
    error_gain = gain.filter(rank > 1)
    share = total(error_gain.clip(lower_bound=0)) / total(error_gain.abs())
    n_ranked = gain.filter(rank.is_not_null()).count()
    has_no_error = (n_ranked > 0) & (error_gain.count() == 0)
    share_of_errors = pl.when(_differ(error_gain)).then(share)
    return pl.when(has_no_error).then(1.0).otherwise(share_of_errors)


def _windows() -> pl.Expr:
    """Return the share of windows in which the target is surer, averaged over lengths."""
    gain = _gain(_HAVE_SAME_TOKENS).drop_nulls()
    n = gain.count()
    sums = gain.cum_sum()
    shares = []
    for length in _WINDOWS:
        window_sums = sums - sums.shift(length, fill_value=0.0)
        n_surer = (window_sums.slice(length - 1) > 0).sum()
        n_windows = (n - length + 1).cast(pl.Float64)
        is_surer = (sums.last() > 0).cast(pl.Float64)
        share = pl.when(n >= length).then(n_surer / n_windows).otherwise(is_surer)
        shares.append(share)
    return pl.when(_differ(gain)).then(reduce(add, shares) / len(_WINDOWS))


def _information() -> pl.Expr:
    """Return the mean gain, and how far the models are apart on whether a token comes."""
    gain = _gain(_HAVE_SAME_TOKENS)
    base = _compared("logprob", REFERENCE_TEXT, _HAVE_SAME_TOKENS)
    target = _compared("logprob", TEXT, _HAVE_SAME_TOKENS).clip(upper_bound=_NEAR_1)
    base = base.clip(upper_bound=_NEAR_1)
    p = base.exp()
    log_not_base = (-base.exp()).log1p()
    log_not_target = (-target.exp()).log1p()

    return mean(gain + p * (base - target) + (1 - p) * (log_not_base - log_not_target))


_BASE_MODEL_ATTACKS = build_text_attacks(
    {
        "ez_mia": (
            _error_zone(),
            (
                "sum of max(gain, 0) / sum of abs(gain), over tokens with rank > 1;"
                " gain = logprob - logprob(reference model)"
            ),
            (
                "Ilić et al. 2026 (arXiv:2601.12104), the Error Zone score P / N, here"
                " P / (P + N)"
            ),
            (
                f"{_APART}, or the models agree on the tokens that the target gets"
                f" wrong ({_AGREE})"
            ),
        ),
        "wbc": (
            _windows(),
            (
                "mean over w of the share of windows of w tokens with sum of logprob >"
                f" sum of logprob(reference model); w = {', '.join(map(str, _WINDOWS))}"
            ),
            (
                "Chen et al. 2026 (arXiv:2601.02751), algorithm 1, with the window"
                " lengths of their code"
            ),
            f"{_APART}, or the models agree on it ({_AGREE})",
        ),
        "informia": (
            _information(),
            (
                "mean of gain + q * log(q / p) + (1 - q) * log((1 - q) / (1 - p)); gain"
                " = logprob - logprob(reference model), p = exp(logprob), q ="
                " exp(logprob(reference model))"
            ),
            (
                "Tao and Shokri 2025 (arXiv:2510.05582), token-level InfoRMIA, where"
                " the divergence of the models is over the vocabulary; here over the"
                " token and all others, a lower bound"
            ),
            _APART,
        ),
    },
    reads=_BOTH_MODELS,
    settings=_REFERENCE,
)


# How likely a text is among texts around it, and the same under a reference model
# (SPV-MIA).
#
# p = exp(mean log-probability of the tokens), as in the authors' code: the joint
# probability of equation 1 is 0 in floating point for all but short texts. Negated, so
# that members score high.

_NEIGHBOURS = ("masked_model|neighbours_column",)
_RELEASED = "5 and 11 as in the authors' code: unpaired texts perturbed as in DetectGPT"
_SPV_VIEWS = {
    "semantic": ("paraphrase", "5 and 10, algorithm 2", ("masked_model",)),
    "embedding": ("noise", "5 and 10, algorithm 1", ()),
    "neighbour": ("neighbour", "5 and 11", _NEIGHBOURS),
    "released": ("perturbation", _RELEASED, ("masked_model",)),
}
_SINGLE_TEXTS = {"neighbour": "any neighbour", "perturbation": "any perturbed text"}
"""Texts around a text; those of other views are asked about in pairs."""


def _mean_of_pairs(view: ModelView) -> pl.Expr:
    """Return the mean probability over whole pairs: texts 2n and 2n + 1 of a view."""
    index = pl.col("view_index").filter(matches_views([view]))
    p = _mean_logprobs(view).exp().sort_by(index)
    index = index.sort()
    is_whole = (index % 2 == 0) & (index.shift(-1) == index + 1)
    return mean(pl.when(is_whole).then((p + p.shift(-1)) / 2))


def _variation(model: str, view: str) -> pl.Expr:
    """Return the mean probability of texts around a text less its own; lowest at a peak."""
    if view in _SINGLE_TEXTS:
        p = mean(_mean_logprobs((model, view)).exp())
    else:
        p = _mean_of_pairs((model, view))
    return p - mean_logprob((model, "text")).exp()


def _build_spv(name: str) -> tuple[Attack, ...]:
    """Build the attack on the target less the same of the self-prompt model."""
    view, equations, settings = _SPV_VIEWS[name]
    texts = _SINGLE_TEXTS.get(view, "both texts of any pair")
    return build_text_attack(
        f"spv_{name}",
        -_variation("target", view) + _variation("self_prompt", view),
        f"p(text) - mean of p({view}), less the same of the self-prompt model",
        f"{_FU}, equations {equations}",
        f"no token of the text, or of {texts}, has a log-probability under one of the"
        " two models",
        reads=(
            TEXT,
            ("target", view),
            ("self_prompt", "text"),
            ("self_prompt", view),
        ),
        settings=("prompts_from", *settings),
    )


def _build_uncalibrated_spv(name: str) -> tuple[Attack, ...]:
    """Build the attack on the target alone."""
    view, equations, settings = _SPV_VIEWS[name]
    texts = _SINGLE_TEXTS.get(view, "both texts of any pair")
    return build_text_attack(
        f"spv_{name}_uncalibrated",
        -_variation("target", view),
        f"p(text) - mean of p({view})",
        f"{_FU}, equation {equations.removeprefix('5 and ')}, table 6 (without"
        " difficulty calibration)",
        f"no token of the text, or of {texts}, has a log-probability",
        reads=(TEXT, ("target", view)),
        settings=settings,
    )


_SPV_ATTACKS = tuple(chain.from_iterable(map(_build_spv, _SPV_VIEWS)))
_UNCALIBRATED_SPV_ATTACKS = (
    *_build_uncalibrated_spv("semantic"),
    *_build_uncalibrated_spv("embedding"),
    *_build_uncalibrated_spv("neighbour"),
)


# A text under the target and under shadow models, half of them tuned on it.
#
# Rows of the models ``shadow-0``, ``shadow-1``, ... are seen as those of one model
# ``shadow``, with the number in ``view_index``; ``trained`` says which of them were
# tuned on the text.
#
# LiRA's phi is log(p / (1 - p)) with p = exp(mean log-probability of the tokens). Of
# the shadow models' phi means are taken, as in the paper, where the authors' code has
# medians. Scores with one variance for all texts are those of the paper times a
# constant, hence in the same order; so is the z-score offline, of which 1 - Pr[Z > phi]
# is an increasing function. RMIA is the ratio p / p(x) alone: the share of a population
# that it exceeds never falls as it rises. InfoRMIA of whole texts is the logarithm of
# that plus a constant of the model, hence in the same order.

_LIRA = "Carlini et al. 2022 (arXiv:2112.03570), algorithm 1"
_RMIA = "Zarifzadeh et al. 2024 (arXiv:2312.03262), RMIA"
_NO_SHADOW = f"{_UNSCORED} under the target, or no shadow model"
_NO_OUTSIDE = f"{_NO_SHADOW} that was not tuned on the text has numbers of it"
_NO_EACH = (
    f"{_NO_SHADOW} that was tuned on the text, or none that was not, has numbers of it"
)
_NO_SPREAD = f"{_UNSCORED} under the target, or fewer than two shadow models that were"


def with_shadows(rows: pl.LazyFrame, attacks: Iterable[Attack]) -> pl.LazyFrame:
    """Return rows of evidence with one model ``shadow``, where an attack reads it."""
    models: set[str] = set()
    for attack in attacks:
        models.update(model for model, _ in attack.list_reads("logprobs"))
    if SHADOW not in models:
        return rows
    number = pl.col("model").str.extract(SHADOW_NUMBER).cast(pl.UInt32)
    return rows.with_columns(
        model=pl.when(number.is_null()).then("model").otherwise(pl.lit(SHADOW)),
        view_index=pl.coalesce(number, "view_index"),
    )


def _phi(mean_logprob: pl.Expr) -> pl.Expr:
    """Return the log-odds of a probability from its logarithm, finite."""
    log_p = mean_logprob.clip(upper_bound=_NEAR_1)
    return log_p - (-log_p.exp()).log1p()


def _variance(term: pl.Expr) -> pl.Expr:
    """Return the mean square distance from the mean; null where all are equal."""
    differ = term.drop_nulls().n_unique() > 1  # rounding gives equal ones a spread, too
    return pl.when(differ).then(total((term - mean(term)) ** 2) / term.count())


def _log_density(term: pl.Expr, sample: pl.Expr) -> pl.Expr:
    """Return the log of a normal density fitted to a sample, without its constant."""
    variance = _variance(sample)
    return -((term - mean(sample)) ** 2) / (2 * variance) - variance.log() / 2


def _divide_by(p_text: pl.Expr) -> pl.Expr:
    """Return the text's probability over that under other models."""
    return pl.when(p_text > 0).then(_TEXT_LOGPROB.exp() / p_text)


def _build_shadow_attacks() -> tuple[Attack, ...]:
    tuned = _mean_logprobs(_SHADOW_TEXT, pl.col("trained"))
    untuned = _mean_logprobs(_SHADOW_TEXT, ~pl.col("trained"))
    phi = _phi(_TEXT_LOGPROB)
    inside = _phi(tuned)
    outside = _phi(untuned)
    n_tuned = tuned.count()
    n_untuned = untuned.count()
    p_text = (total(tuned.exp()) + total(untuned.exp())) / (n_tuned + n_untuned)
    return build_text_attacks(
        {
            "lira_online": (
                _log_density(phi, inside) - _log_density(phi, outside),
                (
                    "log N(phi; in) - log N(phi; out): normal distributions of the"
                    " shadow models' phi"
                ),
                f"{_LIRA} (online, variances of each text)",
                f"{_NO_SPREAD} tuned on the text, or that were not, differ on it",
            ),
            "lira_online_fixed": (
                (phi - mean(outside)) ** 2 - (phi - mean(inside)) ** 2,
                "(phi - mean of phi(out))^2 - (phi - mean of phi(in))^2",
                f"{_LIRA} (online, one variance)",
                _NO_EACH,
            ),
            "lira_offline": (
                (phi - mean(outside)) / _variance(outside).sqrt(),
                "(phi - mean of phi(out)) / standard deviation of phi(out)",
                f"{_LIRA} (offline, variances of each text)",
                f"{_NO_SPREAD} not tuned on the text differ on it",
            ),
            "lira_offline_fixed": (
                phi - mean(outside),
                "phi - mean of phi(out)",
                f"{_LIRA} (offline, one variance)",
                _NO_OUTSIDE,
            ),
            "rmia": (
                _divide_by(pl.when(n_tuned > 0, n_untuned > 0).then(p_text)),
                "p / p(x), p(x) = mean of p over the shadow models",
                f"{_RMIA} online",
                f"{_NO_EACH}, or all give it probability 0",
            ),
            "rmia_offline": (
                _divide_by(mean(untuned.exp())),
                "p / mean of p(out)",
                f"{_RMIA} offline, a = 1",
                _NO_OUTSIDE,
            ),
        },
        reads=(TEXT, _SHADOW_TEXT),
        settings=("shadows",),
    )


# The model's loss on a text after other texts whose membership is known.

_GAMMA = 0.5  # the authors try 0.1 to 1
_AFTER_SHOTS = "no token of the text, alone or after the shots, has a log-probability"

_AFTER_ONE = {"reads": (TEXT, _NONMEMBERS), "settings": ("nonmember_shots",)}

_SHOT_ATTACKS = (
    *build_text_attack(
        "recall_prefix",
        mean_logprob(_NONMEMBERS) / _TEXT_LOGPROB,
        "loss(nonmember_shots) / loss",
        "Xie et al. 2024 (arXiv:2406.15968), the ReCaLL score, per token",
        f"{_AFTER_SHOTS} below 0",
        **_AFTER_ONE,
    ),
    *build_text_attack(
        "con_recall_prefix",
        (mean_logprob(_NONMEMBERS) - _GAMMA * mean_logprob(_MEMBERS)) / _TEXT_LOGPROB,
        f"(loss(nonmember_shots) - {_GAMMA} loss(member_shots)) / loss",
        f"Wang et al. 2024 (arXiv:2409.03363), the Con-ReCall score, gamma = {_GAMMA}",
        f"{_AFTER_SHOTS} below 0",
        reads=(TEXT, _NONMEMBERS, _MEMBERS),
        settings=("nonmember_shots", "member_shots"),
    ),
    *build_text_attack(
        CODEC.removesuffix("_v1"),
        (mean_logprob(_NONMEMBERS) < _TEXT_LOGPROB).cast(float),
        "1 where loss(nonmember_shots) > loss, else 0",
        "Zawalski et al. 2025 (arXiv:2510.27055), CoDeC, with the same shots for all"
        " texts",
        _AFTER_SHOTS,
        **_AFTER_ONE,
    ),
)


# The model's loss on a text against its loss on texts that differ in some words.

_NO_NEIGHBOUR = "no token of the text, or of any neighbour, has a log-probability"
_MATTERN = "Mattern et al. 2023 (arXiv:2305.18462)"
_PERTURBED = _mean_logprobs(_PERTURBATION)
_SPREAD = _PERTURBED.min() < _PERTURBED.max()  # rounding gives equal ones a spread, too

_NEIGHBOUR_ATTACKS = (
    *build_text_attacks(
        {
            "neighbour_difference": (
                _TEXT_LOGPROB - mean(_mean_logprobs(_NEIGHBOUR)),
                "mean of loss(neighbour) - loss",
                f"{_MATTERN}, difference of losses per token",
            ),
            "neighbour_ratio": (
                -_TEXT_LOGPROB / mean(_mean_logprobs(_NEIGHBOUR)),
                "-loss / (mean of loss(neighbour))",
                f"{_MATTERN}, the same as a ratio",
                f"{_NO_NEIGHBOUR}, or the mean loss of the neighbours is 0",
            ),
        },
        _NO_NEIGHBOUR,
        reads=(TEXT, _NEIGHBOUR),
        settings=_NEIGHBOURS,
    ),
    *build_text_attack(
        "detect_gpt",
        pl.when(_SPREAD).then((_TEXT_LOGPROB - mean(_PERTURBED)) / _PERTURBED.std()),
        "(mean of loss(perturbation) - loss) / (standard deviation of"
        " loss(perturbation))",
        "Mitchell et al. 2023 (arXiv:2301.11305), algorithm 1, normalised, per token",
        f"{_UNSCORED}, or fewer than two perturbed texts have different ones",
        reads=(TEXT, _PERTURBATION),
        settings=("masked_model",),
    ),
)


# How far a text's likeliest and least likely tokens are apart, against texts with
# swapped words.

_FAR, _NEAR = 5, 30  # percent


def _distance(view: ModelView) -> pl.Expr:
    """Return the mean of each text's likeliest tokens less that of the least likely ones."""
    lists = pl.col("logprob").filter(matches_view(view)).list.drop_nulls().list.sort()
    ascending = lists.cast(pl.List(pl.Float64))
    n = lists.list.len()
    n_far = (n * _FAR // 100).clip(lower_bound=1)
    n_near = (n * _NEAR // 100).clip(lower_bound=1)
    far = ascending.list.tail(n_far).list.sum() / n_far
    near = ascending.list.head(n_near).list.sum() / n_near
    return pl.when(n > 0).then(far - near)


_SWAPPED_ATTACKS = build_text_attack(
    "pac",
    mean(_distance(_SWAPPED)) - _distance(TEXT).first(),
    f"mean of d(swapped) - d; d = mean of the highest {_FAR} % of logprob - mean of the"
    f" lowest {_NEAR} %",
    "Ye et al. 2024 (arXiv:2405.11930), PAC with the shares, swaps and sign of the"
    " authors' code",
    "no token of the text, or of any text with swapped words, has a log-probability",
    reads=(TEXT, _SWAPPED),
)


# Probabilities of tokens against how frequent the tokens are anyway.

_CAP = 0.01


def _dc_pdd() -> pl.Expr:
    """Return the mean over distinct tokens of probability times log inverse frequency."""
    token_id, logprob, surprise = _tokens(
        "token_ids", "logprob", "log_inverse_frequency"
    )
    capped = (logprob.exp() * surprise).clip(upper_bound=_CAP)
    scored_id = pl.when(capped.is_not_null()).then(token_id)
    return mean(capped.filter(scored_id.is_first_distinct()))


def _deviation(term: pl.Expr) -> pl.Expr:
    """Return the standard deviation, with 1 / n."""
    return mean((term - mean(term)) ** 2).sqrt()


def _aeca() -> pl.Expr:
    """Return how far probability times log inverse frequency jumps, less losses' spread."""
    logprob, surprise = _tokens("logprob", "log_inverse_frequency")
    potential = (logprob.exp() * surprise).drop_nulls()
    jumps = potential - potential.shift(-1, fill_value=0.0)
    return _deviation(jumps) - _deviation(logprob.drop_nulls())


_FREQUENCY_ATTACKS = build_text_attacks(
    {
        "aeca": (
            _aeca(),
            (
                "sd(v - v of the next token, 0 behind the last) - sd(logprob), v ="
                " exp(logprob) * log_inverse_frequency"
            ),
            (
                "AECA with lambda = 1 as in the code of Fast-MIA, after Rethinking"
                " Pretraining Data Detection for LLMs: From Local to Global, ICML 2026"
            ),
        ),
        "dc_pdd": (
            _dc_pdd(),
            (
                f"mean over distinct tokens of min({_CAP}, exp(logprob) *"
                " log_inverse_frequency)"
            ),
            f"Zhang et al. 2024 (arXiv:2409.14781), a = {_CAP}",
        ),
    },
    "no token of the text has both a log-probability and a frequency",
    settings=("frequencies_from",),
)


# How likely the model is to continue the prefix with the reference, token for token.

_HAYES = "Hayes et al. 2025 (arXiv:2410.19482)"
_NOT_EVERY_TOKEN = "not every token of the reference has a log-probability"
_SPAN = 50
_UNLIKELY = -30.0  # below this log p, log(1 - p) is -p to the last bit
_EXTRACTION_RANK = _scored("rank", _EXTRACTION)


def _whole(term: pl.Expr, value: pl.Expr) -> pl.Expr:
    """Return a value where every token of the reference has its term, else null."""
    return pl.when(term.len() > 0, term.null_count() == 0).then(value)


def _sum(term: pl.Expr) -> pl.Expr:
    """Return the sum of a term, added one by one; null where a token has none."""
    return _whole(term, term.implode().list.sum())


def _log_samples(log_p: pl.Expr, p: float) -> pl.Expr:
    """Return the log of the samples that hold the reference with probability p; 0 or more."""
    exact_hazard = (-(-log_p.exp()).log1p()).log()
    hazard = pl.when(log_p < _UNLIKELY).then(log_p).otherwise(exact_hazard)
    return (log(-log(1 - p)) - hazard).clip(lower_bound=0.0)


def _longest(is_hit: pl.Expr) -> pl.Expr:
    """Count the most tokens in a row that are hits; null where no token has a rank."""
    has_ranks = is_hit.count() > 0
    is_hit = is_hit.fill_null(value=False)
    n_hits = is_hit.cum_sum().cast(pl.Int64)
    n_hits_at_miss = pl.when(is_hit).then(0).otherwise(n_hits).cum_max()
    return pl.when(has_ranks).then((n_hits - n_hits_at_miss).max())


def _build_extraction_attacks(
    name: str, log_p: pl.Expr, formula: str, scheme: str, undefined: str
) -> tuple[Attack, ...]:
    formulas: dict[str, Formula] = {}
    formulas[name] = (log_p, formula, f"{_HAYES}, log p_z {scheme}")
    for p in (0.5, 0.9, 0.99):
        formulas[f"{name}_n_{p * 100:.0f}"] = (
            -_log_samples(log_p, p),
            f"-log(max(1, log(1 - {p}) / log(1 - exp({formula}))))",
            (
                f"{_HAYES}, minus the log of n of (n, {p})-discoverable extraction"
                f" {scheme}"
            ),
        )
    return build_text_attacks(formulas, undefined, reads=(_EXTRACTION,))


_EXTRACTION_SUPPORT = sub(*_tokens("logprob", "support_mass", view=_EXTRACTION))


_EXTRACTION_ATTACKS = (  # sums are clipped at 0, since rounding may exceed certainty
    *_build_extraction_attacks(
        "extraction",
        _sum(logprobs(_EXTRACTION)),
        "sum of logprob",
        "from the whole vocabulary",
        _NOT_EVERY_TOKEN,
    ),
    *_build_extraction_attacks(
        "extraction_top_k",
        _sum(_EXTRACTION_SUPPORT).clip(upper_bound=0.0),
        "sum of (logprob - support_mass)",
        "under the run's decoding",
        f"{_NOT_EVERY_TOKEN}, or decoding leaves one of them out",
    ),
    *build_text_attack(
        "extraction_greedy",
        _whole(_EXTRACTION_RANK, (_EXTRACTION_RANK == 1).all().cast(pl.Float64)),
        "1 where all tokens have rank = 1, else 0",
        f"{_HAYES}, discoverable extraction",
        _NOT_EVERY_TOKEN,
        reads=(_EXTRACTION,),
    ),
    *build_text_attacks(
        {
            "extraction_run": (
                _longest(_scored("rank") == 1),
                "most tokens in a row with rank = 1",
                (
                    "Carlini et al. 2023 (arXiv:2202.07646), definition 3.1, the"
                    " longest string that is extractable with all of the text before it"
                ),
            ),
            f"extraction_best_{_SPAN}": (
                logprobs().rolling_sum(_SPAN).max().clip(upper_bound=0.0),
                f"largest sum of logprob of {_SPAN} tokens in a row",
                (
                    f"{_HAYES}, log p_z from the whole vocabulary, after all of the"
                    " text before; over a whole text as in Cooper et al. 2025"
                    " (arXiv:2505.12546)"
                ),
                f"no {_SPAN} tokens in a row have log-probabilities",
            ),
        }
    ),
)


# Ranks of a text's tokens, and how certain the model was of them.

_MITCHELL = "Mitchell et al. 2023 (arXiv:2301.11305), baselines"
_PERCENT = 20
_CERTAIN = 2.0  # nats of entropy


def _surprising() -> pl.Expr:
    """Return log-probabilities of the least likely tokens where the model was certain."""
    logprob, expected = _tokens("logprob", "vocabulary_mean")
    is_unlikely = logprob.rank("ordinal") <= _count_lowest(logprob, _PERCENT)
    return logprob.filter(is_unlikely & (-expected < _CERTAIN))


_RANK_ATTACKS = build_text_attacks(
    {
        "rank": (-mean(_scored("rank")), "-mean of rank", f"{_MITCHELL} (Rank)"),
        "log_rank": (
            -mean(_scored("rank").log()),
            "-mean of log(rank)",
            f"{_MITCHELL} (LogRank)",
        ),
        "top_1_share": (
            mean((_scored("rank") == 1).cast(int)),
            "share of tokens with rank = 1",
            "Gehrmann et al. 2019 (arXiv:1906.04043), test 2",
        ),
        "entropy": (
            mean(_scored("vocabulary_mean")),
            "mean of vocabulary_mean",
            f"{_MITCHELL} (Entropy)",
        ),
        "surprising_20": (
            mean(_surprising()),
            (
                f"mean of logprob, where it is among the lowest {_PERCENT} % and "
                f"-vocabulary_mean < {_CERTAIN}"
            ),
            "Zhang and Wu 2024 (arXiv:2407.21248), here of the least likely tokens",
            "the model was certain of none of the least likely tokens",
        ),
    }
)


# The losses of a text's tokens as a series: how many are low, whether they fall, how
# complex.
#
# Negated, for losses of members fall faster and few words make up what is learnt by
# heart; but no sign of the shapes is right everywhere, and the authors' code takes it
# from the labels. That of the entropy was higher for members until hardly a loss was
# left, so it is not negated.

_CHANG = "Chang et al. 2024 (arXiv:2409.13745), CAMIA's signals"
_BINS = (3, 4, 5)
_M, _R = 8, 0.8  # of approximate entropy, as the authors take them
_AT_MOST = 200  # log-probabilities that the authors compare with each other
_NOT_FINITE = "one is no finite number"
_losses = -logprobs().drop_nulls()
_IS_LOW = _losses < 1
_MEAN_BEFORE = (_losses.cum_sum() / _losses.cum_count()).shift()  # null for the first

SERIES_COLUMNS = (*(f"complexity_{bins}" for bins in _BINS), "approximate_entropy")
"""Numbers of each row's ``logprob`` that attacks read as further columns of the table."""


def with_series(rows: pl.LazyFrame, attacks: Iterable[Attack]) -> pl.LazyFrame:
    """Return rows of evidence with those of `SERIES_COLUMNS` that attacks read."""
    # An attack calls no Python function, and these kernels are called by one.
    columns: set[str] = set()
    pairs: set[ModelView] = set()
    for attack in attacks:
        if set(attack.columns).intersection(SERIES_COLUMNS):
            columns.update(attack.columns)
            pairs.update(attack.list_reads("logprobs"))
    if not pairs:
        return rows
    logprob = pl.when(matches_views(pairs)).then("logprob")
    series = logprob.list.drop_nulls().list.head(_AT_MOST)
    numbers = [lempel_ziv_complexity(series, bins=bins) for bins in _BINS]
    numbers.append(approximate_entropy(series, m=_M, r=_R))
    named_numbers = zip(SERIES_COLUMNS, numbers, strict=True)
    return rows.with_columns(
        **{name: number for name, number in named_numbers if name in columns}
    )


def _share(is_counted: pl.Expr) -> pl.Expr:
    return mean(is_counted.cast(int))


def _slope() -> pl.Expr:
    """Return the slope of the least-squares line of the losses, in nats a token."""
    n = _losses.count()
    place = _losses.cum_count().cast(float) - (n + 1) / 2  # from the middle
    return pl.when(n > 1).then(total(place * _losses) / total(place * place))


def _from_end(percent: int) -> pl.Expr:
    """Return the share of tokens, from the end, with at most a share of the low losses."""
    n_low = _IS_LOW.reverse().cum_sum()
    return pl.when(_IS_LOW.any()).then(_share(n_low * 100 <= percent * _IS_LOW.sum()))


def _diversity() -> pl.Expr:
    """Return distinct tokens over tokens, of those with a log-probability."""
    ids = _scored("token_ids").drop_nulls()
    return pl.when(ids.count() > 0).then(ids.n_unique() / ids.count())


_SERIES_ATTACKS = build_text_attacks(
    {
        f"losses_below_{limit}": (
            _share(_losses <= limit),
            f"share of tokens with -logprob <= {limit}",
            f"{_CHANG}: counts below a threshold",
        )
        for limit in (1, 2, 3)  # nats, the authors' thresholds
    }
    | {
        "losses_below_mean": (
            _share(_losses <= mean(_losses)),
            "share of tokens with -logprob <= its mean over the text",
            f"{_CHANG}: counts below the mean",
        ),
        "losses_below_previous": (
            _share(_losses <= _MEAN_BEFORE),
            "share of tokens with -logprob <= its mean over the tokens before",
            f"{_CHANG}: counts below the mean of what came before",
            "no two tokens of the text have a log-probability",
        ),
        "loss_slope": (
            -_slope(),
            (
                "minus the least-squares slope of -logprob over the position, in nats a"
                " token"
            ),
            f"{_CHANG}: the slope, over all tokens",
            f"{_UNSCORED}, or only one has",
        ),
        "loss_by_diversity": (
            _TEXT_LOGPROB / _diversity(),
            "-loss / (distinct token_ids / tokens)",
            f"{_CHANG}: the loss calibrated by the diversity of tokens",
            f"{_UNSCORED}, or they are not known by number",
        ),
    }
)

SHAPE_ATTACKS = (
    *build_text_attack(
        "repeated_difference",
        _TEXT_LOGPROB - mean_logprob(_REPEATED),
        "loss(repeated) - loss",
        f"{_CHANG}: the fall of the loss where the text stands behind itself",
        "no token of the text, alone or behind itself, has a log-probability",
        reads=(TEXT, _REPEATED),
    ),
    *build_text_attacks(
        {
            f"low_losses_from_end_{percent}": (
                -_from_end(percent),
                (
                    "minus the share of the tokens, from the end, that hold at most"
                    f" {percent} % of those with -logprob < 1"
                ),
                f"{_CHANG}: find_t of the authors' code, over the number of tokens",
            )
            for percent in (40, 50, 60)
        },
        f"{_UNSCORED} above -1",
    ),
    *build_text_attacks(
        {
            f"loss_complexity_{bins}": (
                -_first(f"complexity_{bins}"),
                (
                    f"minus the Lempel-Ziv complexity of the first {_AT_MOST} logprob"
                    f" in {bins} bins"
                ),
                f"{_CHANG}: Lempel-Ziv complexity",
                f"{_UNSCORED}, or {_NOT_FINITE}",
            )
            for bins in _BINS
        }
        | {
            "loss_entropy": (
                _first("approximate_entropy"),
                (
                    f"approximate entropy of the first {_AT_MOST} logprob, m = {_M}, r"
                    f" = {_R} of their standard deviation"
                ),
                f"{_CHANG}: approximate entropy",
                f"fewer than {_M + 2} tokens have a log-probability, or {_NOT_FINITE}",
            )
        }
    ),
)

# The model's own answers to what came before the text: is the second like the first?


def _entropies(answer: int) -> pl.Expr:
    """Return the entropy over the vocabulary at each token of an answer, in nats."""
    is_read = matches_view(ANSWERS) & (pl.col("view_index") == answer)
    return -pl.col("vocabulary_mean").filter(is_read).explode().cast(pl.Float64)


def _likeness() -> pl.Expr:
    """Return the cosine of two answers' entropies, times the shorter length over the longer.

    Place by place, as if zeros followed the shorter answer.
    """
    first, second = _entropies(0), _entropies(1)
    lengths = first.len(), second.len()
    shorter, longer = pl.min_horizontal(*lengths), pl.max_horizontal(*lengths)
    size = (total(first * first) * total(second * second)).sqrt()
    product = total(first.head(shorter) * second.head(shorter))
    is_whole = first.null_count() + second.null_count() == 0
    return pl.when(is_whole & (size > 0)).then(product / size * shorter / longer)


_ANSWER_ATTACKS = build_text_attacks(
    {
        "self_critique": (
            _likeness(),
            (
                "cosine(first, second) * shorter length / longer length;"
                " -vocabulary_mean of each token of the model's two answers, zeros"
                " behind the shorter"
            ),
            (
                "Tao et al. 2025 (arXiv:2510.09259), Self-Critique; entropies are over"
                " the whole vocabulary, where the authors' code takes the 50 likeliest"
                " tokens. Ours: the mark of an answer's end has no entropy, and an answer"
                " without an end no score"
            ),
            "the entropies of an answer are 0 at every token",
        ),
        "answer_entropy": (
            -mean(_entropies(0)),
            "mean of vocabulary_mean over the tokens of the model's first answer",
            (
                "after Tao et al. 2025 (arXiv:2510.09259), without the second answer:"
                " how sure the model is of its first. Ours"
            ),
        ),
    },
    reads=(ANSWERS,),
)

FAMILIES = {
    "Loss": _LOSS_ATTACKS,
    "Min-K% and Min-K%++": _MIN_K_ATTACKS,
    "Gap-K%": _GAP_ATTACKS,
    "Early tokens weighed more": _EARLY_ATTACKS,
    "Reference models": (_RATE_ATTACKS[0], *_TOKEN_DIFFERENCE, _RATE_ATTACKS[1]),
    "Base models, token by token": _BASE_MODEL_ATTACKS,
    "Tuned reference models": _TUNED_ATTACKS,
    "SPV-MIA": _SPV_ATTACKS,
    "SPV-MIA without a reference model": _UNCALIBRATED_SPV_ATTACKS,
    "Shadow models: LiRA and RMIA": _build_shadow_attacks(),
    "Shots before the text": _SHOT_ATTACKS,
    "Neighbours": _NEIGHBOUR_ATTACKS,
    "Swapped words": _SWAPPED_ATTACKS,
    "Token frequencies": _FREQUENCY_ATTACKS,
    "Extraction": _EXTRACTION_ATTACKS,
    "Ranks and entropy": _RANK_ATTACKS,
    "Series of losses": _SERIES_ATTACKS,
    "Shapes of series of losses": SHAPE_ATTACKS,
    "The model's own answers": _ANSWER_ATTACKS,
}
