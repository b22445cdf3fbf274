"""Attacks that compare the target with another model, another text or shots before the text."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mia_batch.attacks.attack import Attack


# The model's loss on a text beside a reference model's.


_CARLINI = "Carlini et al. 2021 (arXiv:2012.07805), section 5.2"
_BYTES = (
    "in nats per byte, so that tokenizers may differ; an unscored token counts as the mean of "
    "the scored ones"
)
_UNSCORED = "no token of the text has a log-probability under one of the two models"
_READS = (TEXT, REFERENCE_TEXT)
_SETTINGS = ("reference_model",)


def _rate(view: tuple[str, str]) -> pl.Expr:
    """Nats per byte of the text; 0 or less."""
    return average(view) * logprobs(view).len() / first("n_bytes", view)


def _difference(name: str, other: tuple[str, str], *, source: str, setting: str) -> Attack:
    """Loss per token under another model less the target's, where both read the same tokens."""
    model = other[0].replace("_", "-")
    return of_texts(
        name,
        pl.when(cut_alike(TEXT, other)).then(average(TEXT) - average(other)),
        formula=f"loss({model} model) - loss",
        source=source,
        undefined=f"{_UNSCORED}, or the two models' tokenizers cut it differently",
        reads=(TEXT, other),
        settings=(setting,),
    )


REFERENCE_ATTACKS = (
    of_texts(
        "reference_difference",
        _rate(TEXT) - _rate(REFERENCE_TEXT),
        formula="(loss(reference model) * its tokens - loss * tokens) / n_bytes",
        source=f"{_CARLINI}; difference of losses {_BYTES}",
        undefined=_UNSCORED,
        reads=_READS,
        settings=_SETTINGS,
    ),
    _difference(
        "reference_token_difference",
        REFERENCE_TEXT,
        source=(
            "Shi et al. 2024 (arXiv:2310.16789), section 4.2 (Smaller Ref); difference of losses "
            "per token, as in the authors' code; LiRA-Base where the other is the base model"
        ),
        setting="reference_model",
    ),
    of_texts(
        "reference_ratio",
        -_rate(TEXT) / _rate(REFERENCE_TEXT),
        formula="-(loss * tokens) / (loss(reference model) * its tokens)",
        source=f"{_CARLINI}; minus the ratio of losses {_BYTES}",
        undefined=f"{_UNSCORED}, or the reference model's loss is 0",
        reads=_READS,
        settings=_SETTINGS,
    ),
)

_FU = "Fu et al. 2024 (arXiv:2311.06062)"

TUNED_REFERENCE_ATTACKS = (
    _difference(
        "self_prompt_difference",
        SELF_PROMPT_TEXT,
        source=(
            f"{_FU}, equations 4 and 7, table 6 (SPV-MIA without probabilistic variation); the "
            "other model is tuned on what the target says; difference of losses per token"
        ),
        setting="prompts_from",
    ),
    _difference(
        "candidate_difference",
        CANDIDATE_TEXT,
        source=(
            f"{_FU}, equation 4, appendix A.6.3 (LiRA-Candidate, after Mireshghallah et al. 2022); "
            "the other model is tuned on other texts of the same kind; difference of losses per "
            "token"
        ),
        setting="candidate_from",
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
        formula=(
            "sum of max(gain, 0) / sum of abs(gain), over tokens with rank > 1; gain = logprob - "
            "logprob(reference model)"
        ),
        source=(
            "Ilić et al. 2026 (arXiv:2601.12104), the Error Zone score P / N, here as its "
            "increasing function P / (P + N): 1 where no token lost, as where the model gets every "
            "token right, which the paper ranks highest and the authors' code scores 0; every "
            "token with numbers counts, while their code leaves out the first and scores 0 below "
            "two errors"
        ),
        undefined=f"{_NO_COMMON_TOKENS}, or the models agree on the tokens that "
        f"the target gets wrong ({_AGREE})",
        reads=_READS,
        settings=_SETTINGS,
    ),
    of_texts(
        "wbc",
        _windows(),
        formula=(
            "mean over w of the share of windows of w tokens with sum of logprob > sum of "
            f"logprob(reference model); w = {', '.join(map(str, _WINDOWS))}"
        ),
        source=(
            "Chen et al. 2026 (arXiv:2601.02751), algorithm 1 (WBC) with the authors' window "
            "lengths, which their equation 12 gives only nearly; as in their code, a longer window "
            "than the text is the whole text"
        ),
        undefined=f"{_NO_COMMON_TOKENS}, or the models agree on it ({_AGREE})",
        reads=_READS,
        settings=_SETTINGS,
    ),
)


# The model's loss on a text beside its loss on texts that differ in some words.


_MATTERN = "Mattern et al. 2023 (arXiv:2305.18462)"
_NO_NEIGHBOUR = "no token of the text, or of any neighbour, has a log-probability"


def _detect_gpt() -> pl.Expr:
    """Log-probability above the mean of the perturbed texts', in their standard deviations."""
    perturbed = averages(PERTURBATION)
    differ = perturbed.min() < perturbed.max()  # rounding gives equal ones a spread, too
    return pl.when(differ).then((average(TEXT) - mean(perturbed)) / perturbed.std())


NEIGHBOUR_ATTACKS = (
    of_texts(
        "neighbour_difference",
        average(TEXT) - mean(averages(NEIGHBOUR)),
        formula="mean of loss(neighbour) - loss",
        source=f"{_MATTERN}, the neighbourhood comparison; difference of losses, per token",
        undefined=_NO_NEIGHBOUR,
        reads=(TEXT, NEIGHBOUR),
        settings=("masked_model|neighbours_column",),
    ),
    of_texts(
        "neighbour_ratio",
        -average(TEXT) / mean(averages(NEIGHBOUR)),
        formula="-loss / (mean of loss(neighbour))",
        source=f"{_MATTERN}, the same as minus the ratio of losses, per token",
        undefined=f"{_NO_NEIGHBOUR}, or the mean loss of the neighbours is 0",
        reads=(TEXT, NEIGHBOUR),
        settings=("masked_model|neighbours_column",),
    ),
    of_texts(
        "detect_gpt",
        _detect_gpt(),
        formula="(mean of loss(perturbation) - loss) / (standard deviation of loss(perturbation))",
        source=(
            "Mitchell et al. 2023 (arXiv:2301.11305), algorithm 1, normalised; log-probabilities "
            "per token, as in the authors' code"
        ),
        undefined=(
            "no token of the text has a log-probability, or fewer than two perturbed texts have "
            "different ones"
        ),
        reads=(TEXT, PERTURBATION),
        settings=("masked_model",),
    ),
)


# The model's loss on a text after other texts whose membership is known.


CODEC = "codec_v1"

_GAMMA = 0.5
_UNDEFINED = "no token of the text, alone or after the shots, has a log-probability below 0"

PREFIX_SHOT_ATTACKS = (
    of_texts(
        "recall_prefix",
        average(NONMEMBER_SHOTS) / average(TEXT),
        formula="loss(nonmember_shots) / loss",
        source=(
            "Xie et al. 2024 (arXiv:2406.15968), the ReCaLL score: log-likelihood after "
            "non-members over that of the text alone, each per token"
        ),
        undefined=_UNDEFINED,
        reads=(TEXT, NONMEMBER_SHOTS),
        settings=("nonmember_shots",),
    ),
    of_texts(
        "con_recall_prefix",
        (average(NONMEMBER_SHOTS) - _GAMMA * average(MEMBER_SHOTS)) / average(TEXT),
        formula=f"(loss(nonmember_shots) - {_GAMMA} loss(member_shots)) / loss",
        source=(
            "Wang et al. 2024 (arXiv:2409.03363), the Con-ReCall score: ReCaLL less gamma times "
            f"the same after members; gamma = {_GAMMA}, where the authors try 0.1 to 1"
        ),
        undefined=_UNDEFINED,
        reads=(TEXT, NONMEMBER_SHOTS, MEMBER_SHOTS),
        settings=("nonmember_shots", "member_shots"),
    ),
    of_texts(
        CODEC.removesuffix("_v1"),
        (average(NONMEMBER_SHOTS) < average(TEXT)).cast(float),
        formula="1 where loss(nonmember_shots) > loss, else 0",
        source=(
            "Zawalski et al. 2025 (arXiv:2510.27055), CoDeC: whether a text becomes less likely "
            "after texts of its kind; of a set the share counts. Shots are the same for all texts, "
            "while the authors draw others of the data set itself for each"
        ),
        undefined="no token of the text, alone or after the shots, has a log-probability",
        reads=(TEXT, NONMEMBER_SHOTS),
        settings=("nonmember_shots",),
    ),
)


# A text under the target beside the same under shadow models, half of them tuned on it.
#
# Rows of the models ``shadow-0``, ``shadow-1``, ... are seen as those of one model ``shadow``,
# with the number in ``view_index``; ``trained`` says which of them were tuned on the text.


_SHADOW = "shadow"
_SHADOW_TEXT = (_SHADOW, "text")
_NEAR_1 = -(2.0**-24)  # float32 cannot tell a probability above exp of this from 1
_LIRA = "Carlini et al. 2022 (arXiv:2112.03570), algorithm 1"
_PHI = (
    "phi = log(p / (1 - p)) with p = exp(mean log-probability of the tokens), p at most 1 - 2^-24"
)
_MEANS = "means, as in the paper, where the authors' code has medians"
_ZARIFZADEH = "Zarifzadeh et al. 2024 (arXiv:2312.03262), RMIA"
_RATIO = (
    "the ratio p / p(x) alone, p = exp(mean log-probability of the tokens): the authors' score, "
    "the share of a population z whose ratio it exceeds gamma times, never falls as it rises"
)
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


def _attack(name: str, expr: pl.Expr, *, formula: str, source: str, needed: str) -> Attack:
    return of_texts(
        name,
        expr,
        formula=formula,
        source=source,
        undefined=f"{_NO_TARGET}, or {needed}",
        reads=(TEXT, _SHADOW_TEXT),
        settings=("shadows",),
    )


_SPREAD = "fewer than two shadow models {} differ on it"
_ONE = "no shadow model {} has numbers of it"
_EACH = _ONE.format("that was tuned on the text, or none that was not,")

SHADOW_ATTACKS = (
    _attack(
        "lira_online",
        _log_density(_TARGET, _IN) - _log_density(_TARGET, _OUT),
        formula="log N(phi; in) - log N(phi; out): normal distributions of the shadow models' phi",
        source=f"{_LIRA} (online, variances of each text); {_PHI}; {_MEANS}",
        needed=_SPREAD.format("that were tuned on the text, or that were not,"),
    ),
    _attack(
        "lira_online_fixed",
        (_TARGET - mean(_OUT)) ** 2 - (_TARGET - mean(_IN)) ** 2,
        formula="(phi - mean of phi(out))^2 - (phi - mean of phi(in))^2",
        source=(
            f"{_LIRA} (online, one variance); {_PHI}; {_MEANS}; the log-likelihood ratio times "
            "twice the variance that all texts share, in and out alike as in the authors' code, "
            "hence in the same order"
        ),
        needed=_EACH,
    ),
    _attack(
        "lira_offline",
        (_TARGET - mean(_OUT)) / _variance(_OUT).sqrt(),
        formula="(phi - mean of phi(out)) / standard deviation of phi(out)",
        source=(
            f"{_LIRA} (offline, variances of each text); {_PHI}; {_MEANS}; the z-score, of "
            "which 1 - Pr[Z > phi] is an increasing function"
        ),
        needed=_SPREAD.format("that were not tuned on the text"),
    ),
    _attack(
        "lira_offline_fixed",
        _TARGET - mean(_OUT),
        formula="phi - mean of phi(out)",
        source=(
            f"{_LIRA} (offline, one variance); {_PHI}; {_MEANS}; the z-score times the standard "
            "deviation that all texts share, hence in the same order"
        ),
        needed=_ONE.format("that was not tuned on the text"),
    ),
    _attack(
        "rmia",
        _ratio(pl.when(_N_IN > 0, _N_OUT > 0).then(_BOTH / (_N_IN + _N_OUT))),
        formula="p / p(x), p(x) = mean of p over the shadow models",
        source=f"{_ZARIFZADEH} online; {_RATIO}",
        needed=f"{_EACH}, or all give it probability 0",
    ),
    _attack(
        "rmia_offline",
        _ratio(_P_OUT),
        formula="p / mean of p(out)",
        source=(
            f"{_ZARIFZADEH} offline: p(in) is taken for a p(out) + 1 - a, with a = 1: the authors' "
            "0.3 is for classifiers; p of a text is so small that 1 - a would be all of p(x); "
            f"{_RATIO}"
        ),
        needed=_ONE.format("that was not tuned on the text"),
    ),
)


# How likely a text is beside texts around it, and the same under a reference model (SPV-MIA).


_PROBABILITY = (
    "p = exp(mean log-probability of the tokens), as in the authors' code: the joint probability "
    "of equation 1 is 0 in floating point for all but short texts"
)
_VIEWS = {
    "semantic": ("paraphrase", "equations 5 and 10, algorithm 2", ("masked_model",)),
    "embedding": ("noise", "equations 5 and 10, algorithm 1", ()),
    "neighbour": ("neighbour", "equations 5 and 11", ("masked_model|neighbours_column",)),
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


def _spv_attack(
    name: str, view: str, *, source: str, settings: tuple[str, ...], calibrated: bool
) -> Attack:
    models = ("target", "self_prompt") if calibrated else ("target",)
    score = -_variation("target", view)
    if calibrated:
        score += _variation("self_prompt", view)
    inner = f"p(text) - mean of p({view})"
    return of_texts(
        name,
        score,
        formula=f"{inner}, less the same of the self-prompt model" if calibrated else inner,
        source=f"{_FU}, {source}; {_PROBABILITY}",
        undefined=(
            "no token of the text, or of "
            + ("both texts of any pair" if view in _PAIRED else f"any {_CALLED[view]}")
            + ", has a log-probability"
            + (" under one of the two models" if calibrated else "")
        ),
        reads=tuple((model, each) for model in models for each in ("text", view)),
        settings=(*(("prompts_from",) if calibrated else ()), *settings),
    )


SPV_ATTACKS = (
    *(
        _spv_attack(
            f"spv_{domain}",
            view,
            source=f"{paper}, negated so that members score high",
            settings=settings,
            calibrated=True,
        )
        for domain, (view, paper, settings) in _VIEWS.items()
    ),
    _spv_attack(
        "spv_released",
        "perturbation",
        source=(
            "as the authors' code has equations 5 and 11: unpaired texts with spans of two words "
            "filled anew, negated; its 0.3 n / (2 + 2) spans are 15 percent of the words, as in "
            "DetectGPT, whose perturbed texts these are"
        ),
        settings=("masked_model",),
        calibrated=True,
    ),
)

SPV_UNCALIBRATED_ATTACKS = tuple(
    _spv_attack(
        f"spv_{domain}_uncalibrated",
        view,
        source=f"{paper.replace('5 and ', '').replace('equations', 'equation')}, table 6 (without "
        "difficulty calibration), negated",
        settings=settings,
        calibrated=False,
    )
    for domain, (view, paper, settings) in _VIEWS.items()
)
