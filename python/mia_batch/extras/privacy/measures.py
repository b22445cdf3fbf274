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
from math import exp, expm1, inf
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.optimize import brentq
from scipy.special import gammaln
from scipy.stats import beta, binom, kstest, skewnorm, spearmanr

from mia_batch.extras.privacy.plan import PrivacySettings, Task, Variant
from mia_batch.extras.privacy.scorer import TextScorer
from mia_batch.stats import Flags, Floats
from mia_batch.stats.intervals import cluster_means, ratio_of_sums

_HIGHEST = 50.0  # no epsilon is looked for above
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
    texts_per_coin: int = 1,
    confidence: float = 0.95,
) -> Bound:
    """Bound from a threshold: epsilon >= log((TPR - delta) / FPR), and the same of non-members.

    Nasr et al. 2021 (arXiv:2101.04535), section 4. At most so many texts share a coin,
    and so a value of ``member``. Texts of one training are taken for independent, which
    `one_run_bound` does without.
    """
    # Chosen on one half of the texts and counted on the other: the best of many
    # thresholds on the same texts would show too much.
    is_first = _random_half(member.size, seed)
    thresholds = np.unique(score[is_first])
    guesses = score[is_first] >= thresholds[:, None]
    limits = _rate_limits(member[is_first], guesses, confidence)
    low, high = np.moveaxis(limits, -1, 0)
    gains = (np.maximum(low - delta, 0) / high).max(axis=0)
    best = thresholds[gains.argmax()]
    truth = member[~is_first]
    rules = np.array([score[~is_first] >= best, truth])
    limits = _rate_limits(truth, rules, confidence)

    def bound(of_classes: list[list[float]]) -> float:
        return max(
            _refuted_epsilon(low, high, delta=delta, texts_per_coin=texts_per_coin)
            for low, high in of_classes
        )

    of_threshold, of_truth = limits.swapaxes(0, 1).tolist()
    return Bound(value=bound(of_threshold), ceiling=bound(of_truth))


def _rate_limits(member: Flags, guesses: Flags, confidence: float) -> Floats:
    """Compute limits of the rates of both classes, for rules that guess members, a row each."""
    share = (1 - confidence) / 4  # two rates and two ways to tell, one side of each
    limits = []
    for is_in, is_guessed in ((member, guesses), (~member, ~guesses)):
        n_in = is_in.sum()
        n_out = (~is_in).sum()
        n_right = is_guessed[:, is_in].sum(1)
        n_wrong = is_guessed[:, ~is_in].sum(1)
        # Clopper and Pearson (1934); a parameter of 0 gives NaN, where the limit is 0
        # or 1.
        low = beta.ppf(share, n_right, n_in - n_right + 1)
        high = beta.ppf(1 - share, n_wrong + 1, n_out - n_wrong)
        ends = [np.nan_to_num(low, nan=0.0), np.nan_to_num(high, nan=1.0)]
        limits.append(np.stack(ends, axis=-1))
    return np.stack(limits)


def _refuted_epsilon(
    low: float, high: float, *, delta: float, texts_per_coin: int
) -> float:
    """Return the largest epsilon that these rates contradict."""

    def excess(epsilon: float) -> float:
        coin_epsilon, coin_delta = _privacy_of_coin(epsilon, delta, texts_per_coin)
        return coin_delta + exp(coin_epsilon) * high - low

    return _find_root(excess, texts_per_coin)


def one_run_bound(
    member: Flags,
    score: Floats,
    *,
    delta: float,
    seed: int,
    texts_per_coin: int = 1,
    confidence: float = 0.95,
) -> Bound:
    """Bound from one training: how many of the guesses that an attack makes are right.

    Steinke et al. 2023 (arXiv:2305.08846), theorem 5.2: of r guesses under (epsilon,
    delta), the right ones are no more, in distribution, than r coins of e^epsilon / (1
    + e^epsilon), but for a term in delta. It holds although all texts were learnt by
    one model.
    """
    is_first = _random_half(member.size, seed)

    def bound(is_used: Flags, share: float, *, is_ideal: bool = False) -> float:
        is_member = member[is_used]
        n_texts = is_member.size
        order = np.argsort(score[is_used], kind="stable")
        n_per_class = max(1, int(share * n_texts / 2))
        n_guesses = 2 * n_per_class
        if is_ideal:
            n_right = n_guesses
        else:
            lowest = order[:n_per_class]
            highest = order[-n_per_class:]
            n_right = int(is_member[highest].sum() + (~is_member[lowest]).sum())

        def excess(epsilon: float) -> float:
            privacy = _privacy_of_coin(epsilon, delta, texts_per_coin)
            p = _p_of_guesses(n_right, n_guesses, n_texts, *privacy)
            return p - (1 - confidence)

        return _find_root(excess, texts_per_coin)

    best = max(_SHARES, key=lambda share: bound(is_first, share))
    return Bound(
        value=bound(~is_first, best), ceiling=bound(~is_first, 1.0, is_ideal=True)
    )


def _privacy_of_coin(
    epsilon: float, delta: float, texts_per_coin: int
) -> tuple[float, float]:
    """Turn (epsilon, delta) of a text into those of texts that share a coin."""
    factor = (
        expm1(texts_per_coin * epsilon) / expm1(epsilon) if epsilon else texts_per_coin
    )
    return texts_per_coin * epsilon, delta * factor


def _find_root(excess: Callable[[float], float], texts_per_coin: int) -> float:
    highest = _HIGHEST / texts_per_coin
    if excess(0.0) >= 0:
        return 0.0
    if excess(highest) < 0:
        return inf
    return float(brentq(excess, 0.0, highest, xtol=1e-6))


def _p_of_guesses(
    n_right: int, n_guesses: int, n_texts: int, epsilon: float, delta: float
) -> float:
    """Bound the probability of at least so many right guesses from above."""
    coin = 1 / (1 + exp(-epsilon))
    tail = float(binom.sf(n_right - 1, n_guesses, coin))
    if delta == 0:
        return min(1.0, tail)
    steps = np.arange(1, n_right + 1)
    below = binom.pmf(n_right - steps, n_guesses, coin).cumsum()
    slope = float((below / steps).max(initial=0.0))
    return min(1.0, tail + 2 * n_texts * delta * slope)


def _random_half(n: int, seed: int) -> Flags:
    return np.random.default_rng(seed).random(n) < 0.5


# Losses of canaries that were not learnt, to which a distribution is fitted
_SAMPLE_SIZE = 10_000
_FEWEST = 30  # of them
_REFUSED = 0.01  # p of a fit that is not believed


def exposures(
    learnt: Floats, other_losses: Iterable[Floats], size: int
) -> pl.DataFrame:
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
    below = np.zeros(learnt.size)
    equal = np.zeros(learnt.size)
    n_others = 0
    sample = np.empty(0)
    for piece in other_losses:
        losses = piece[np.isfinite(piece)]
        ordered = np.sort(losses)
        n_below = ordered.searchsorted(learnt, side="left")
        n_up_to = ordered.searchsorted(learnt, side="right")
        below += n_below
        equal += n_up_to - n_below
        n_others += losses.size
        sample = np.concatenate([sample, losses[: _SAMPLE_SIZE - sample.size]])
    rank = 1 + below + equal / 2
    extrapolated = np.full(learnt.size, np.nan)
    if n_others + learnt.size < size:
        extrapolated = _extrapolate(learnt, sample, size)
    table = pl.DataFrame(
        {
            "loss": learnt,
            "rank": rank,
            "exposure": np.log2(n_others + 1) - np.log2(rank),
            "exposed": below + equal == 0,
            "extrapolated": extrapolated,
        }
    )
    table = table.with_columns(pl.all().exclude("exposed").fill_nan(None))
    ranked = pl.col("rank", "exposure", "exposed")
    return table.with_columns(pl.when(pl.col("loss").is_not_null()).then(ranked))


def _extrapolate(learnt: Floats, sample: Floats, size: int) -> Floats:
    """Exposure among all canaries of a format, if the losses of some follow a skew normal."""
    unknown = np.full(learnt.size, np.nan)
    if sample.size < _FEWEST or np.ptp(sample) == 0:
        return unknown
    fitted = skewnorm(*skewnorm.fit(sample))
    if kstest(sample, fitted.cdf).pvalue < _REFUSED:
        return unknown
    bits: Floats = -fitted.logcdf(learnt) / np.log(2)
    return np.clip(bits, 0, np.log2(size))


def unlearnt_exposure(n_others: int) -> float:
    """Mean exposure, in bits, of ranks 1 to n + 1 with equal probability: about 1 / ln 2."""
    return float(
        np.log2(n_others + 1) - gammaln(n_others + 2) / np.log(2) / (n_others + 1)
    )


def utility(
    scorer: TextScorer, texts: pl.DataFrame, task: Task, labels: Sequence[str]
) -> pl.DataFrame:
    """Measure a model on the auxiliary texts: ``accuracy``, or ``loss`` in nats a token.

    Intervals of 95 % take groups as the units; null where they are too few.
    """
    prompts = texts["text"].to_list()
    targets = texts["target"].to_list()
    if task == "classification":
        losses = [
            scorer.sums(prompts, [label] * len(prompts)).to_numpy() for label in labels
        ]
        guesses = np.array(labels)[np.stack(losses, axis=1).argmin(axis=1)]
        values = (guesses == np.array(targets)).astype(np.float64)
    else:
        values = scorer.losses(prompts, targets).to_numpy()
    measured = texts.select("group", value=pl.Series(values))
    measured = measured.drop_nans().drop_nulls("value")
    n = measured.height
    values = measured["value"].to_numpy()
    cluster = measured["group"].rank("dense").to_numpy().astype(np.intp) - 1
    row: dict[str, Any] = {"measure": "loss", "n": n}
    if task == "classification":
        ratio = ratio_of_sums(np.stack([values, np.ones(n)]), cluster)
        row |= {"measure": "accuracy", "value": ratio.value}
        row |= ratio.interval._asdict() if ratio.interval else {}
    elif n:
        means = cluster_means(values[:, None], np.zeros(n, np.intp), cluster)
        mean = means.value[0, 0]
        half_width = means.half_widths()[0, 0]
        row["value"] = mean
        if np.isfinite(half_width):
            row["low"] = max(0.0, mean - half_width)
            row["high"] = mean + half_width
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


def build_summary(
    variant: Variant,
    settings: PrivacySettings,
    privacy: Mapping[str, Any] | None,
    tables: Mapping[str, pl.DataFrame],
    attacks: Sequence[str],
    audited: pl.DataFrame,
) -> pl.DataFrame:
    """Sum a variant up, in the columns of ``summary.parquet`` (docs/privacy.md).

    ``privacy`` is that of the target's training, ``audited`` are all texts that were
    audited, whether they are among the scores or not.
    """
    exposure_table = tables.get("exposures")
    row: dict[str, Any] = {"variant": variant.name, "tuning": variant.tuning}
    for name in ("epsilon", "delta", "noise_multiplier"):
        row[name] = privacy and privacy[name]
    row["epsilon_reason"] = None
    is_uncertain = exposure_table is not None and exposure_table["loss"].has_nulls()
    if privacy is not None and is_uncertain:
        row["epsilon"] = None
        row["epsilon_reason"] = (
            "a canary has no loss, so that nobody knows whether it was learnt"
        )
    primary = attacks[0]
    row |= _bounds(tables["scores"], primary, settings, audited["group"])
    bounds = [row["epsilon_bound"], row["epsilon_bound_by_rates"]]
    claim = row["epsilon"]
    row["is_contradicted"] = (
        None if claim is None else any(bound > claim for bound in bounds if bound)
    )
    measure = tables["utility"].row(0, named=True)
    row["utility_measure"] = measure["measure"]
    row |= _with_limits("utility", measure)
    row["attack"] = primary
    metrics = tables["metrics"].filter(pl.col("versus").is_null(), slice="all")
    for name, attack in {"auc": primary, **_SHOWN_TOO}.items():
        areas = metrics.filter(attack=attack, metric="roc_auc").iter_rows(named=True)
        row |= _with_limits(name, next(areas, {}))
    rates = metrics.filter(attack=primary, metric="tpr_at_fpr")
    for budget, name in {0.001: "tpr_at_0.1%", 0.01: "tpr_at_1%"}.items():
        row[name] = next(iter(rates.filter(fpr=budget)["value"]), None)
    row |= _summarize_exposures(exposure_table)
    row |= _summarize_inversion(tables.get("inversion"))
    return pl.DataFrame([row], infer_schema_length=None)


def _bounds(
    scores: pl.DataFrame,
    attack: str,
    settings: PrivacySettings,
    group_of_texts: pl.Series,
) -> dict[str, Any]:
    """Bound the epsilon of a text by one of each group, since those of a group share a coin.

    Texts that are absent from the scores were learnt with the others of their group,
    and count.
    """
    one_per_group = scores.drop_nulls(attack).unique(
        "group", keep="first", maintain_order=True
    )
    member = one_per_group["member"].to_numpy()
    score = one_per_group[attack].to_numpy()
    names = (
        "epsilon_bound",
        "epsilon_ceiling",
        "epsilon_bound_by_rates",
        "epsilon_rates_ceiling",
    )
    if not 0 < member.sum() < member.size:
        return dict.fromkeys(names)
    options: dict[str, Any] = {
        "delta": settings.recipe.delta,
        "seed": settings.seed,
        "texts_per_coin": max(
            _largest_group(group_of_texts), _largest_group(scores["group"])
        ),
    }
    numbers = (
        *one_run_bound(member, score, **options),
        *clopper_pearson_bound(member, score, **options),
    )
    return dict(zip(names, numbers, strict=True))


def _largest_group(group: pl.Series) -> int:
    return int(group.value_counts()["count"].to_numpy().max(initial=1))


def _summarize_exposures(table: pl.DataFrame | None) -> dict[str, Any]:
    names = (
        "exposure_rate",
        "mean_exposure",
        "unlearnt_exposure",
        "exposure_trend",
        "exposure_trend_p",
    )
    if table is None:
        return dict.fromkeys(names)
    ranked = table.drop_nulls("exposure")
    if ranked.is_empty():
        return dict.fromkeys(names)
    trend = spearmanr(ranked["repetitions"], ranked["exposure"])
    values: list[Any] = [
        ranked["exposed"].mean(),
        ranked["exposure"].mean(),
        ranked["unlearnt_exposure"].mean(),
        trend.statistic,
        trend.pvalue,
    ]
    return {
        name: None if np.isnan(value) else float(value)
        for name, value in zip(names, values, strict=True)
    }


def _summarize_inversion(figures: pl.DataFrame | None) -> dict[str, Any]:
    rows: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    if figures is not None:
        for row in figures.filter(pl.col("versus").is_null()).iter_rows(named=True):
            rows[row["unit"], row["metric"], row["method"]] = row
    summary: dict[str, Any] = {}
    for name, key in _INVERSION.items():
        summary |= _with_limits(name, rows.get(key, {}))
    return summary


def _with_limits(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of a row and its limits, as columns of the summary."""
    return {
        name: row.get("value"),
        f"{name}_low": row.get("low"),
        f"{name}_high": row.get("high"),
    }
