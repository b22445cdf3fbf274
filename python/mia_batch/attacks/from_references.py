"""Attacks that compare the target with another model, another text or shots before the text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add

import polars as pl

from mia_batch.attacks.attack import (
    CANDIDATE_TEXT,
    MEMBER_SHOTS,
    NEIGHBOUR,
    NONMEMBER_SHOTS,
    PERTURBATION,
    REFERENCE_TEXT,
    SELF_PROMPT_TEXT,
    TEXT,
    Attack,
    among,
    average,
    averages,
    cut_alike,
    first,
    logprobs,
    mean,
    of_texts,
    total,
)

# The model's loss on a text beside a reference model's.
#
# In nats per byte, so that tokenizers may differ; an unscored token counts as the mean of the
# scored ones.


_CARLINI = "Carlini et al. 2021 (arXiv:2012.07805), section 5.2"
_UNSCORED = "no token of the text has a log-probability under one of the two models"
_READS = (TEXT, REFERENCE_TEXT)
_SETTINGS = ("reference_model",)


def _rate(view: tuple[str, str]) -> pl.Expr:
    """Nats per byte of the text; 0 or less."""
    return average(view) * logprobs(view).len() / first("n_bytes", view)


def _difference(name: str, other: tuple[str, str], source: str, setting: str) -> Attack:
    """Loss per token under another model less the target's, where both read the same tokens."""
    return of_texts(
        name,
        pl.when(cut_alike(TEXT, other)).then(average(TEXT) - average(other)),
        f"loss({other[0].replace('_', '-')} model) - loss",
        source,
        f"{_UNSCORED}, or the two models' tokenizers cut it differently",
        reads=(TEXT, other),
        settings=(setting,),
    )


REFERENCE_ATTACKS = (
    of_texts(
        "reference_difference",
        _rate(TEXT) - _rate(REFERENCE_TEXT),
        "(loss(reference model) * its tokens - loss * tokens) / n_bytes",
        f"{_CARLINI}; difference of losses per byte",
        _UNSCORED,
        reads=_READS,
        settings=_SETTINGS,
    ),
    _difference(
        "reference_token_difference",
        REFERENCE_TEXT,
        "Shi et al. 2024 (arXiv:2310.16789), section 4.2 (Smaller Ref); LiRA-Base where the other "
        "is the base model",
        "reference_model",
    ),
    of_texts(
        "reference_ratio",
        -_rate(TEXT) / _rate(REFERENCE_TEXT),
        "-(loss * tokens) / (loss(reference model) * its tokens)",
        f"{_CARLINI}; ratio of losses per byte",
        f"{_UNSCORED}, or the reference model's loss is 0",
        reads=_READS,
        settings=_SETTINGS,
    ),
)

_FU = "Fu et al. 2024 (arXiv:2311.06062)"

TUNED_REFERENCE_ATTACKS = (
    _difference(
        "self_prompt_difference",
        SELF_PROMPT_TEXT,
        f"{_FU}, equations 4 and 7, table 6 (SPV-MIA without probabilistic variation)",
        "prompts_from",
    ),
    _difference(
        "candidate_difference",
        CANDIDATE_TEXT,
        f"{_FU}, equation 4, appendix A.6.3 (LiRA-Candidate, after Mireshghallah et al. 2022)",
        "candidate_from",
    ),
)


# Token by token against the base model: where a tuned model has become surer of a text.


_WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)
_ROUNDING = 1e-5  # nats that one model's numbers of a token may differ from call to call
_NO_COMMON_TOKENS = (
    "no token of the text has numbers under both models, or their tokenizers cut it differently"
)
_AGREE = f"to {_ROUNDING:.5f} nats on average, which is rounding"
_ALIKE = cut_alike(*_READS)
_RANKED = _ALIKE & pl.col("rank").filter(among([TEXT])).is_not_null().any()


def _tokens(column: str, view: tuple[str, str], where: pl.Expr) -> pl.Expr:
    """Numbers of the tokens of one text; none of texts that are not compared."""
    return pl.col(column).filter(among([view]) & where).explode().cast(pl.Float64)


def _gain(where: pl.Expr) -> pl.Expr:
    """Log-probability of each token less the base model's; null where either has none."""
    return _tokens("logprob", TEXT, where) - _tokens("logprob", REFERENCE_TEXT, where)


def _differ(gain: pl.Expr) -> pl.Expr:
    """Whether the models differ by more than rounding, of which there would be gains, too."""
    return total(gain.abs()) > _ROUNDING * gain.count()


def _error_zone() -> pl.Expr:
    """Gains over gains and losses, where the target's most likely token is another."""
    rank, gain = _tokens("rank", TEXT, _RANKED), _gain(_RANKED)
    wrong = gain.filter(rank > 1)
    share = total(wrong.clip(lower_bound=0)) / total(wrong.abs())
    known = gain.filter(rank.is_not_null()).count()
    right = (known > 0) & (wrong.count() == 0)
    return pl.when(right).then(1.0).otherwise(pl.when(_differ(wrong)).then(share))


def _windows() -> pl.Expr:
    """Share of windows of one length in which the target is surer, averaged over lengths."""
    gain = _gain(_ALIKE).drop_nulls()
    sums, n = gain.cum_sum(), gain.count()

    def share(length: int) -> pl.Expr:
        inner = sums - sums.shift(length, fill_value=0.0)
        votes = (inner.slice(length - 1) > 0).sum()
        return (
            pl.when(n >= length)
            .then(votes / (n - length + 1).cast(pl.Float64))
            .otherwise((sums.last() > 0).cast(pl.Float64))
        )

    return pl.when(_differ(gain)).then(reduce(add, map(share, _WINDOWS)) / len(_WINDOWS))


BASE_MODEL_ATTACKS = (
    of_texts(
        "ez_mia",
        _error_zone(),
        "sum of max(gain, 0) / sum of abs(gain), over tokens with rank > 1; gain = logprob - "
        "logprob(reference model)",
        "Ilić et al. 2026 (arXiv:2601.12104), the Error Zone score P / N, here P / (P + N)",
        f"{_NO_COMMON_TOKENS}, or the models agree on the tokens that the target gets wrong "
        f"({_AGREE})",
        reads=_READS,
        settings=_SETTINGS,
    ),
    of_texts(
        "wbc",
        _windows(),
        "mean over w of the share of windows of w tokens with sum of logprob > sum of "
        f"logprob(reference model); w = {', '.join(map(str, _WINDOWS))}",
        "Chen et al. 2026 (arXiv:2601.02751), algorithm 1, with the window lengths of their code",
        f"{_NO_COMMON_TOKENS}, or the models agree on it ({_AGREE})",
        reads=_READS,
        settings=_SETTINGS,
    ),
)


# The model's loss on a text beside its loss on texts that differ in some words.


_MATTERN = "Mattern et al. 2023 (arXiv:2305.18462)"
_NO_NEIGHBOUR = "no token of the text, or of any neighbour, has a log-probability"


_NEIGHBOURS = ("masked_model|neighbours_column",)
_PERTURBED = averages(PERTURBATION)
_DIFFER = _PERTURBED.min() < _PERTURBED.max()  # rounding gives equal ones a spread, too

NEIGHBOUR_ATTACKS = (
    of_texts(
        "neighbour_difference",
        average(TEXT) - mean(averages(NEIGHBOUR)),
        "mean of loss(neighbour) - loss",
        f"{_MATTERN}, difference of losses per token",
        _NO_NEIGHBOUR,
        reads=(TEXT, NEIGHBOUR),
        settings=_NEIGHBOURS,
    ),
    of_texts(
        "neighbour_ratio",
        -average(TEXT) / mean(averages(NEIGHBOUR)),
        "-loss / (mean of loss(neighbour))",
        f"{_MATTERN}, the same as a ratio",
        f"{_NO_NEIGHBOUR}, or the mean loss of the neighbours is 0",
        reads=(TEXT, NEIGHBOUR),
        settings=_NEIGHBOURS,
    ),
    of_texts(
        "detect_gpt",
        pl.when(_DIFFER).then((average(TEXT) - mean(_PERTURBED)) / _PERTURBED.std()),
        "(mean of loss(perturbation) - loss) / (standard deviation of loss(perturbation))",
        "Mitchell et al. 2023 (arXiv:2301.11305), algorithm 1, normalised, per token",
        "no token of the text has a log-probability, or fewer than two perturbed texts have "
        "different ones",
        reads=(TEXT, PERTURBATION),
        settings=("masked_model",),
    ),
)


# The model's loss on a text after other texts whose membership is known.


CODEC = "codec_v1"

_GAMMA = 0.5  # the authors try 0.1 to 1
_UNDEFINED = "no token of the text, alone or after the shots, has a log-probability"

PREFIX_SHOT_ATTACKS = (
    of_texts(
        "recall_prefix",
        average(NONMEMBER_SHOTS) / average(TEXT),
        "loss(nonmember_shots) / loss",
        "Xie et al. 2024 (arXiv:2406.15968), the ReCaLL score, per token",
        f"{_UNDEFINED} below 0",
        reads=(TEXT, NONMEMBER_SHOTS),
        settings=("nonmember_shots",),
    ),
    of_texts(
        "con_recall_prefix",
        (average(NONMEMBER_SHOTS) - _GAMMA * average(MEMBER_SHOTS)) / average(TEXT),
        f"(loss(nonmember_shots) - {_GAMMA} loss(member_shots)) / loss",
        f"Wang et al. 2024 (arXiv:2409.03363), the Con-ReCall score, gamma = {_GAMMA}",
        f"{_UNDEFINED} below 0",
        reads=(TEXT, NONMEMBER_SHOTS, MEMBER_SHOTS),
        settings=("nonmember_shots", "member_shots"),
    ),
    of_texts(
        CODEC.removesuffix("_v1"),
        (average(NONMEMBER_SHOTS) < average(TEXT)).cast(float),
        "1 where loss(nonmember_shots) > loss, else 0",
        "Zawalski et al. 2025 (arXiv:2510.27055), CoDeC, with the same shots for all texts",
        _UNDEFINED,
        reads=(TEXT, NONMEMBER_SHOTS),
        settings=("nonmember_shots",),
    ),
)


# A text under the target beside the same under shadow models, half of them tuned on it.
#
# Rows of the models ``shadow-0``, ``shadow-1``, ... are seen as those of one model ``shadow``,
# with the number in ``view_index``; ``trained`` says which of them were tuned on the text.
#
# LiRA's phi is log(p / (1 - p)) with p = exp(mean log-probability of the tokens). Of the shadow
# models' phi means are taken, as in the paper, where the authors' code has medians. Scores with one
# variance for all texts are those of the paper times a constant, hence in the same order; so is
# the z-score offline, of which 1 - Pr[Z > phi] is an increasing function. RMIA is the ratio
# p / p(x) alone: the share of a population that it exceeds never falls as it rises.


_SHADOW = "shadow"
_SHADOW_TEXT = (_SHADOW, "text")
_NEAR_1 = -(2.0**-24)  # float32 cannot tell a probability above exp of this from 1
_LIRA = "Carlini et al. 2022 (arXiv:2112.03570), algorithm 1"
_RMIA = "Zarifzadeh et al. 2024 (arXiv:2312.03262), RMIA"
_NO_TARGET = "no token of the text has a log-probability under the target"


def with_shadows(rows: pl.LazyFrame, attacks: Iterable[Attack]) -> pl.LazyFrame:
    """Rows of evidence as attacks see them: with one model ``shadow``, where one reads it."""
    if not any(model == _SHADOW for each in attacks for model, _ in each.reads_of("logprobs")):
        return rows
    number = pl.col("model").str.extract(rf"^{_SHADOW}-(\d+)$").cast(pl.UInt32)
    return rows.with_columns(
        model=pl.when(number.is_null()).then("model").otherwise(pl.lit(_SHADOW)),
        view_index=pl.coalesce(number, "view_index"),
    )


def _phi(mean_logprob: pl.Expr) -> pl.Expr:
    """Log-odds of a probability from its logarithm, finite."""
    near = mean_logprob.clip(upper_bound=_NEAR_1)
    return near - (-near.exp()).log1p()


def _variance(term: pl.Expr) -> pl.Expr:
    """Mean square distance from the mean; null where all are equal."""
    differ = term.drop_nulls().n_unique() > 1  # rounding gives equal ones a spread, too
    return pl.when(differ).then(total((term - mean(term)) ** 2) / term.count())


def _log_density(term: pl.Expr, of: pl.Expr) -> pl.Expr:
    """Log of the density of a normal distribution that is fitted, without its constant."""
    variance = _variance(of)
    return -((term - mean(of)) ** 2) / (2 * variance) - variance.log() / 2


_TARGET, _P = _phi(average(TEXT)), average(TEXT).exp()
_TUNED = averages(_SHADOW_TEXT, pl.col("trained"))
_OTHERS = averages(_SHADOW_TEXT, ~pl.col("trained"))
_IN, _OUT = _phi(_TUNED), _phi(_OTHERS)
_P_OUT = mean(_OTHERS.exp())
_BOTH = total(_TUNED.exp()) + total(_OTHERS.exp())
_N_IN, _N_OUT = _TUNED.count(), _OTHERS.count()


def _ratio(below: pl.Expr) -> pl.Expr:
    return pl.when(below > 0).then(_P / below)


_SPREAD = "fewer than two shadow models {} differ on it"
_ONE = "no shadow model {} has numbers of it"
_OUTSIDE = "that was not tuned on the text"
_EACH = _ONE.format("that was tuned on the text, or none that was not,")

SHADOW_ATTACKS = tuple(
    of_texts(
        name,
        expr,
        formula,
        source,
        f"{_NO_TARGET}, or {needed}",
        reads=(TEXT, _SHADOW_TEXT),
        settings=("shadows",),
    )
    for name, expr, formula, source, needed in (
        (
            "lira_online",
            _log_density(_TARGET, _IN) - _log_density(_TARGET, _OUT),
            "log N(phi; in) - log N(phi; out): normal distributions of the shadow models' phi",
            f"{_LIRA} (online, variances of each text)",
            _SPREAD.format("that were tuned on the text, or that were not,"),
        ),
        (
            "lira_online_fixed",
            (_TARGET - mean(_OUT)) ** 2 - (_TARGET - mean(_IN)) ** 2,
            "(phi - mean of phi(out))^2 - (phi - mean of phi(in))^2",
            f"{_LIRA} (online, one variance)",
            _EACH,
        ),
        (
            "lira_offline",
            (_TARGET - mean(_OUT)) / _variance(_OUT).sqrt(),
            "(phi - mean of phi(out)) / standard deviation of phi(out)",
            f"{_LIRA} (offline, variances of each text)",
            _SPREAD.format("that were not tuned on the text"),
        ),
        (
            "lira_offline_fixed",
            _TARGET - mean(_OUT),
            "phi - mean of phi(out)",
            f"{_LIRA} (offline, one variance)",
            _ONE.format(_OUTSIDE),
        ),
        (
            "rmia",
            _ratio(pl.when(_N_IN > 0, _N_OUT > 0).then(_BOTH / (_N_IN + _N_OUT))),
            "p / p(x), p(x) = mean of p over the shadow models",
            f"{_RMIA} online",
            f"{_EACH}, or all give it probability 0",
        ),
        (
            "rmia_offline",
            _ratio(_P_OUT),
            "p / mean of p(out)",
            f"{_RMIA} offline, a = 1",
            _ONE.format(_OUTSIDE),
        ),
    )
)


# How likely a text is beside texts around it, and the same under a reference model (SPV-MIA).
#
# p = exp(mean log-probability of the tokens), as in the authors' code: the joint probability of
# equation 1 is 0 in floating point for all but short texts. Negated, so that members score high.


_VIEWS = {
    "semantic": ("paraphrase", "5 and 10, algorithm 2", ("masked_model",)),
    "embedding": ("noise", "5 and 10, algorithm 1", ()),
    "neighbour": ("neighbour", "5 and 11", ("masked_model|neighbours_column",)),
}
_PAIRED = ("paraphrase", "noise")
_CALLED = {"neighbour": "neighbour", "perturbation": "perturbed text"}


def _mean_of_pairs(view: tuple[str, str]) -> pl.Expr:
    """Mean probability over the whole pairs there are: texts 2n and 2n + 1 of a view."""
    index = pl.col("view_index").filter(among([view]))
    p, index = averages(view).exp().sort_by(index), index.sort()
    whole = (index % 2 == 0) & (index.shift(-1) == index + 1)
    return mean(pl.when(whole).then((p + p.shift(-1)) / 2))


def _variation(model: str, view: str) -> pl.Expr:
    """Mean probability of the texts around a text less its own; lowest at a peak."""
    around = (model, view)
    p = _mean_of_pairs(around) if view in _PAIRED else mean(averages(around).exp())
    return p - average((model, "text")).exp()


def _spv(name: str, view: str, source: str, settings: tuple[str, ...], *models: str) -> Attack:
    """Make an attack on one model, or on two, the second of which calibrates the first."""
    score = -_variation(models[0], view)
    for other in models[1:]:
        score += _variation(other, view)
    inner, two = f"p(text) - mean of p({view})", len(models) > 1
    of = "both texts of any pair" if view in _PAIRED else f"any {_CALLED[view]}"
    return of_texts(
        name,
        score,
        f"{inner}, less the same of the self-prompt model" if two else inner,
        f"{_FU}, {source}",
        f"no token of the text, or of {of}, has a log-probability"
        + " under one of the two models" * two,
        reads=tuple((model, each) for model in models for each in ("text", view)),
        settings=(*(("prompts_from",) if two else ()), *settings),
    )


SPV_ATTACKS = (
    *(
        _spv(f"spv_{domain}", view, f"equations {paper}", settings, "target", "self_prompt")
        for domain, (view, paper, settings) in _VIEWS.items()
    ),
    _spv(
        "spv_released",
        "perturbation",
        "equations 5 and 11 as in the authors' code: unpaired texts perturbed as in DetectGPT",
        ("masked_model",),
        "target",
        "self_prompt",
    ),
)

SPV_UNCALIBRATED_ATTACKS = tuple(
    _spv(
        f"spv_{domain}_uncalibrated",
        view,
        f"equation {paper.removeprefix('5 and ')}, table 6 (without difficulty calibration)",
        settings,
        "target",
    )
    for domain, (view, paper, settings) in _VIEWS.items()
)
