"""A text under the target beside the same under shadow models, half of them tuned on it.

Rows of the models ``shadow-0``, ``shadow-1``, ... are seen as those of one model ``shadow``, with
the number in ``view_index``; ``trained`` says which of them were tuned on the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks.terms import mean, total
from mia_batch.attacks.tokens import TEXT, average, averages, of_texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mia_batch.attacks.attack import Attack

__all__ = ["SHADOW_ATTACKS", "with_shadows"]

_SHADOW = "shadow"
_SHADOW_TEXT = (_SHADOW, "text")
_NEAR_1 = -(2.0**-24)  # float32 cannot tell a probability above exp of this from 1
_CARLINI = "Carlini et al. 2022 (arXiv:2112.03570), algorithm 1"
_PHI = (
    "phi = log(p / (1 - p)) with p = exp(mean log-probability of the tokens), p at most 1 - 2^-24"
)
_MEANS = "means, as in the paper, where the authors' code has medians"
_ZARIFZADEH = "Zarifzadeh et al. 2024 (arXiv:2312.03262), RMIA"
_RATIO = (
    "the ratio p / p(x) alone, p = exp(mean log-probability of the tokens): the authors' score, "
    "the share of a population z whose ratio it exceeds gamma times, never falls as it rises"
)
_UNSCORED = "no token of the text has a log-probability under the target"


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
        undefined=f"{_UNSCORED}, or {needed}",
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
        source=f"{_CARLINI} (online, variances of each text); {_PHI}; {_MEANS}",
        needed=_SPREAD.format("that were tuned on the text, or that were not,"),
    ),
    _attack(
        "lira_online_fixed",
        (_TARGET - mean(_OUT)) ** 2 - (_TARGET - mean(_IN)) ** 2,
        formula="(phi - mean of phi(out))^2 - (phi - mean of phi(in))^2",
        source=(
            f"{_CARLINI} (online, one variance); {_PHI}; {_MEANS}; the log-likelihood ratio times "
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
            f"{_CARLINI} (offline, variances of each text); {_PHI}; {_MEANS}; the z-score, of "
            "which 1 - Pr[Z > phi] is an increasing function"
        ),
        needed=_SPREAD.format("that were not tuned on the text"),
    ),
    _attack(
        "lira_offline_fixed",
        _TARGET - mean(_OUT),
        formula="phi - mean of phi(out)",
        source=(
            f"{_CARLINI} (offline, one variance); {_PHI}; {_MEANS}; the z-score times the standard "
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
"""``lira_{online,offline}{,_fixed}_v1``, ``rmia_v1``, ``rmia_offline_v1``."""
