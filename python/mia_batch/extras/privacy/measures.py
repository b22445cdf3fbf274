"""Measures of what a tuned model gives away, and of what it is good for.

First lower bounds of a training's privacy loss, from what an attack tells of its texts.
A training that keeps to (epsilon, delta) makes it hard to tell who was learnt; an
attack that can tells that epsilon is larger. Members must have been drawn by coins.
Where up to k texts share one, (epsilon, delta) of a text is (k epsilon, delta (e^(k
epsilon) - 1) / (e^epsilon - 1)) of a coin (Dwork and Roth 2014, "The algorithmic
foundations of differential privacy", theorem 2.2 and lemma 2.2 of Vadhan 2017, "The
complexity of differential privacy"); bounds are those of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import exp, expm1, inf
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.optimize import brentq
from scipy.special import gammaln
from scipy.stats import beta, binom, kstest, skewnorm, spearmanr

from mia_batch.extras.privacy.plan import Plan, Task, Variant
from mia_batch.extras.privacy.scorer import Opened
from mia_batch.extras.tune.jobs import Made
from mia_batch.stats import Flags, Floats
from mia_batch.stats.intervals import cluster_means, ratio_of_sums

_MOST = 50.0  # no epsilon is looked for above
_SHARES = np.linspace(0.1, 1, 10)  # of texts about which a guess is made


class Bound(NamedTuple):
    """A lower bound of epsilon; ``ceiling`` would be the bound if each guess were right."""

    # A small value below a small ceiling is no sign of privacy.

    value: float
    ceiling: float


def clopper_pearson_bound(
    member: Flags,
    score: Floats,
    *,
    delta: float,
    seed: int,
    texts: int = 1,
    confidence: float = 0.95,
) -> Bound:
    """Bound from a threshold: epsilon >= log((TPR - delta) / FPR), and the same of non-members.

    Nasr et al. 2021 (arXiv:2101.04535), section 4. At most so many ``texts`` share a
    coin, and so a value of ``member``. Texts of one training are taken for independent,
    which `one_run_bound` does without.
    """
    # Chosen on one half of the texts and counted on the other: the best of many
    # thresholds on the same texts would show too much.
    first = _half(member.size, seed)
    thresholds = np.unique(score[first])
    rules = score[first] >= thresholds[:, None]
    low, high = np.moveaxis(_rates(member[first], rules, confidence), -1, 0)
    best = thresholds[(np.maximum(low - delta, 0) / high).max(axis=0).argmax()]
    rest = member[~first]
    found = _rates(rest, np.array([score[~first] >= best, rest]), confidence)
    value, ceiling = (
        max(_by_rates(*limits, delta=delta, texts=texts) for limits in rule)
        for rule in found.swapaxes(0, 1).tolist()
    )
    return Bound(value=value, ceiling=ceiling)


def _rates(member: Flags, said: Flags, confidence: float) -> Floats:
    """Limits of rules that say who is a member, a row each: of the rates of both classes."""
    share = (1 - confidence) / 4  # two rates and two ways to tell, one side of each
    found = []
    for is_in, is_said in ((member, said), (~member, ~said)):
        n_in, n_out = is_in.sum(), (~is_in).sum()
        right, wrong = is_said[:, is_in].sum(1), is_said[:, ~is_in].sum(1)
        # Clopper and Pearson (1934); a parameter of 0 gives NaN, where the limit is 0
        # or 1.
        low = np.nan_to_num(beta.ppf(share, right, n_in - right + 1), nan=0.0)
        high = np.nan_to_num(beta.ppf(1 - share, wrong + 1, n_out - wrong), nan=1.0)
        found.append(np.stack([low, high], axis=-1))
    return np.stack(found)


def _by_rates(low: float, high: float, *, delta: float, texts: int) -> float:
    """Largest epsilon that these rates contradict."""

    def excess(epsilon: float) -> float:
        spent, slack = _of_a_coin(epsilon, delta, texts)
        return slack + exp(spent) * high - low

    return _root(excess, texts)


def one_run_bound(
    member: Flags,
    score: Floats,
    *,
    delta: float,
    seed: int,
    texts: int = 1,
    confidence: float = 0.95,
) -> Bound:
    """Bound from one training: how many of the guesses that an attack makes are right.

    Steinke et al. 2023 (arXiv:2305.08846), theorem 5.2: of r guesses under (epsilon,
    delta), the right ones are no more, in distribution, than r coins of e^epsilon / (1
    + e^epsilon), but for a term in delta. It holds although all texts were learnt by
    one model.
    """
    first = _half(member.size, seed)

    def bound(places: Flags, share: float, *, is_ideal: bool = False) -> float:
        is_in, by = member[places], score[places]
        order = np.argsort(by, kind="stable")
        n_each = max(1, int(share * is_in.size / 2))
        right = int(is_in[order[-n_each:]].sum() + (~is_in[order[:n_each]]).sum())
        n_guesses = 2 * n_each
        n_right = n_guesses if is_ideal else right

        def excess(epsilon: float) -> float:
            spent, slack = _of_a_coin(epsilon, delta, texts)
            p = _p_of_guesses(n_right, n_guesses, is_in.size, spent, slack)
            return p - (1 - confidence)

        return _root(excess, texts)

    best = max(_SHARES, key=lambda share: bound(first, share))
    return Bound(value=bound(~first, best), ceiling=bound(~first, 1.0, is_ideal=True))


def _of_a_coin(epsilon: float, delta: float, texts: int) -> tuple[float, float]:
    """Turn (epsilon, delta) of a text into those of texts that share a coin."""
    times = expm1(texts * epsilon) / expm1(epsilon) if epsilon else texts
    return texts * epsilon, delta * times


def _root(excess: Callable[[float], float], texts: int) -> float:
    if excess(0.0) >= 0:
        return 0.0
    if excess(_MOST / texts) < 0:
        return inf
    return float(brentq(excess, 0.0, _MOST / texts, xtol=1e-6))


def _p_of_guesses(
    n_right: int, n_guesses: int, n_texts: int, epsilon: float, delta: float
) -> float:
    """Probability of at least so many right guesses, at most."""
    coin = 1 / (1 + exp(-epsilon))
    tail = float(binom.sf(n_right - 1, n_guesses, coin))
    if delta == 0:
        return min(1.0, tail)
    steps = np.arange(1, n_right + 1)
    below = binom.pmf(n_right - steps, n_guesses, coin).cumsum()
    slope = float((below / steps).max(initial=0.0))
    return min(1.0, tail + 2 * n_texts * delta * slope)


def _half(n: int, seed: int) -> Flags:
    return np.random.default_rng(seed).random(n) < 0.5


_KEPT = (
    10_000  # losses of canaries that were not learnt, to which a distribution is fitted
)
_FEWEST = 30  # of them
_REFUSED = 0.01  # p of a fit that is not believed


def exposures(learnt: Floats, others: Iterable[Floats], size: int) -> pl.DataFrame:
    """Rank each canary that was learnt among those that were not: a row for each.

    ``rank``: 1 + those of lower loss, equal ones half (Li et al. 2024, definitions 2
    and 3). ``exposure``: log2(n + 1) - log2(rank) in bits, n the number of others
    (definition 4). ``extrapolated``: the exposure among all ``size`` by a skew normal
    distribution fitted to the losses of some (Carlini et al. 2019, arXiv:1802.08232,
    section 4.3), where that fits.
    """
    # Other learnt ones do not take part: a model that remembers all would rank them
    # among each other. Losses come in pieces, in random order if they are not all that
    # the format has.
    below, equal = np.zeros(learnt.size), np.zeros(learnt.size)
    n_others, kept = 0, np.empty(0)
    for some in others:
        counted = np.sort(some[np.isfinite(some)])
        low, high = (
            counted.searchsorted(learnt, side=side) for side in ("left", "right")
        )
        below += low
        equal += high - low
        n_others += counted.size
        kept = np.concatenate([kept, some[np.isfinite(some)][: _KEPT - kept.size]])
    rank = 1 + below + equal / 2
    exposure = np.log2(n_others + 1) - np.log2(rank)
    is_part = n_others + learnt.size < size
    beyond = (
        _extrapolated(learnt, kept, size) if is_part else np.full(learnt.size, np.nan)
    )
    columns = {
        "loss": learnt,
        "rank": rank,
        "exposure": exposure,
        "exposed": below + equal == 0,
    }
    found = pl.DataFrame(columns | {"extrapolated": beyond})
    return found.with_columns(pl.all().exclude("exposed").fill_nan(None)).with_columns(
        pl.when(pl.col("loss").is_not_null()).then(
            pl.col("rank", "exposure", "exposed")
        )
    )


def _extrapolated(learnt: Floats, others: Floats, size: int) -> Floats:
    """Exposure among all canaries of a format, if the losses of some follow a skew normal."""
    if others.size < _FEWEST or np.ptp(others) == 0:
        return np.full(learnt.size, np.nan)
    fitted = skewnorm(*skewnorm.fit(others))
    if kstest(others, fitted.cdf).pvalue < _REFUSED:
        return np.full(learnt.size, np.nan)
    beyond: Floats = -fitted.logcdf(learnt) / np.log(2)
    return np.clip(beyond, 0, np.log2(size))


def unlearnt_exposure(n_others: int) -> float:
    """Mean exposure, in bits, of ranks 1 to n + 1 with equal probability: about 1 / ln 2."""
    return float(
        np.log2(n_others + 1) - gammaln(n_others + 2) / np.log(2) / (n_others + 1)
    )


def utility(
    opened: Opened, texts: pl.DataFrame, task: Task, labels: Sequence[str]
) -> pl.DataFrame:
    """Measure a model on the auxiliary texts: ``accuracy``, or ``loss`` in nats a token.

    Intervals of 95 % take groups as the units; null where they are too few.
    """
    asked, targets = texts["text"].to_list(), texts["target"].to_list()
    if task == "classification":
        losses = [
            opened.sums(asked, [label] * len(asked)).to_numpy() for label in labels
        ]
        chosen = np.array(labels)[np.stack(losses, axis=1).argmin(axis=1)]
        each = (chosen == np.array(targets)).astype(np.float64)
    else:
        each = opened.losses(asked, targets).to_numpy()
    there = texts.select("group", value=pl.Series(each)).drop_nans().drop_nulls("value")
    n, value = there.height, there["value"].to_numpy()
    cluster = there["group"].rank("dense").to_numpy().astype(np.intp) - 1
    row: dict[str, Any] = {"measure": "loss", "n": n}
    if task == "classification":
        found = ratio_of_sums(np.stack([value, np.ones(n)]), cluster)
        row |= {"measure": "accuracy", "value": found.value}
        row |= found.interval._asdict() if found.interval else {}
    elif n:
        means = cluster_means(value[:, None], np.zeros(n, np.intp), cluster)
        row["value"], half = means.value[0, 0], means.half_widths()[0, 0]
        if np.isfinite(half):
            row |= {"low": max(0.0, row["value"] - half), "high": row["value"] + half}
    numbers = dict.fromkeys(("value", "low", "high"), pl.Float64)
    return pl.DataFrame([row], {"measure": pl.String, **numbers, "n": pl.Int64})


_SHOWN_TOO = {"lira_auc": "lira_online_fixed_v1", "spv_auc": "spv_embedding_v1"}
"""Attacks that are shown next to the first one."""
_INVERSION = {
    "inversion_precision": ("tokens", "precision", "inverter"),
    "inversion_recall": ("tokens", "recall", "inverter"),
    "inversion_f1": ("tokens", "f1", "inverter"),
    "inversion_attribute": ("attribute", "exact", "inverter"),
    "inversion_attribute_usual": ("attribute", "exact", "unconditional"),
    "nearest_f1": ("tokens", "f1", "nearest"),
}
"""Unit, metric and method of each figure of the inversion that is shown."""


def summary_of(
    variant: Variant,
    plan: Plan,
    target: Made,
    scores: pl.DataFrame,
    metrics: pl.DataFrame,
    utility: pl.DataFrame,
    found: Mapping[str, pl.DataFrame],
    attacks: Sequence[str],
    audited: pl.DataFrame,
) -> pl.DataFrame:
    """Sum a variant up, in the columns of ``summary.parquet`` (docs/privacy.md).

    ``audited`` are all texts that were audited, whether they are among the scores or
    not.
    """
    exposures, said = found.get("exposures"), target.privacy
    row: dict[str, Any] = {"variant": variant.name, "tuning": variant.tuning}
    row |= {
        name: said and said[name] for name in ("epsilon", "delta", "noise_multiplier")
    }
    row["epsilon_reason"] = None
    if said is not None and exposures is not None and exposures["loss"].has_nulls():
        row["epsilon"] = None
        row["epsilon_reason"] = (
            "a canary has no loss, so that nobody knows whether it was learnt"
        )
    row |= _bounds(scores, attacks[0], plan, audited["group"])
    bounds = [row["epsilon_bound"], row["epsilon_bound_by_rates"]]
    claim = row["epsilon"]
    row["is_contradicted"] = (
        None if claim is None else any(each > claim for each in bounds if each)
    )
    used = utility.row(0, named=True)
    row |= {"utility_measure": used["measure"], **_with_limits("utility", used)}
    own, row["attack"] = (
        metrics.filter(pl.col("versus").is_null(), slice="all"),
        attacks[0],
    )
    for name, attack in {"auc": attacks[0], **_SHOWN_TOO}.items():
        areas = own.filter(attack=attack, metric="roc_auc").iter_rows(named=True)
        row |= _with_limits(name, next(areas, {}))
    rates = own.filter(attack=attacks[0], metric="tpr_at_fpr")
    for budget, name in {0.001: "tpr_at_0.1%", 0.01: "tpr_at_1%"}.items():
        row[name] = next(iter(rates.filter(fpr=budget)["value"]), None)
    row |= _extraction(exposures) | _inversion(found.get("inversion"))
    return pl.DataFrame([row], infer_schema_length=None)


def _bounds(
    scores: pl.DataFrame, attack: str, plan: Plan, group_of_texts: pl.Series
) -> dict[str, Any]:
    """Bound the epsilon of a text by one of each group, since those of a group share a coin.

    Texts that are absent from the scores were learnt with the others of their group,
    and count.
    """
    one_each = scores.drop_nulls(attack).unique(
        "group", keep="first", maintain_order=True
    )
    member, score = one_each["member"].to_numpy(), one_each[attack].to_numpy()
    sizes = (
        group_of_texts.value_counts()["count"],
        scores["group"].value_counts()["count"],
    )
    texts = max(int(counts.to_numpy().max(initial=1)) for counts in sizes)
    names = (
        "epsilon_bound",
        "epsilon_ceiling",
        "epsilon_bound_by_rates",
        "epsilon_rates_ceiling",
    )
    if not 0 < member.sum() < member.size:
        return dict.fromkeys(names)
    how: dict[str, Any] = {
        "delta": plan.recipe.delta,
        "seed": plan.seed,
        "texts": texts,
    }
    bounds = (
        one_run_bound(member, score, **how),
        clopper_pearson_bound(member, score, **how),
    )
    return dict(zip(names, (number for each in bounds for number in each), strict=True))


def _extraction(exposures: pl.DataFrame | None) -> dict[str, Any]:
    names = ["exposure_rate", "mean_exposure", "unlearnt_exposure"]
    names += ["exposure_trend", "exposure_trend_p"]
    if exposures is None or (there := exposures.drop_nulls("exposure")).is_empty():
        return dict.fromkeys(names)
    trend = spearmanr(there["repetitions"], there["exposure"])
    means: list[Any] = [
        there[name].mean() for name in ("exposed", "exposure", "unlearnt_exposure")
    ]
    values = zip(names, [*means, trend.statistic, trend.pvalue], strict=True)
    return {name: None if np.isnan(value) else float(value) for name, value in values}


def _inversion(figures: pl.DataFrame | None) -> dict[str, Any]:
    rows = (
        ()
        if figures is None
        else figures.filter(pl.col("versus").is_null()).rows(named=True)
    )
    of = {(row["unit"], row["metric"], row["method"]): row for row in rows}
    named = (_with_limits(name, of.get(key, {})) for name, key in _INVERSION.items())
    return dict(chain.from_iterable(each.items() for each in named))


def _with_limits(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {f"{name}{end}": row.get(column) for end, column in ends.items()}
