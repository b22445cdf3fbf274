"""One row for each way to tune: what it is good for, and what it gives away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from mia_batch.privacy.empirical import clopper_pearson_bound, one_run_bound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mia_batch.finetuning.making import Made
    from mia_batch.privacy.plan import Plan, Variant

__all__ = ["summary_of"]

_RATES = {0.001: "tpr_at_0.1%", 0.01: "tpr_at_1%"}


def summary_of(
    variant: Variant,
    plan: Plan,
    target: Made,
    scores: pl.DataFrame,
    metrics: pl.DataFrame,
    utility: pl.DataFrame,
    found: Mapping[str, pl.DataFrame],
    attacks: Sequence[str],
) -> pl.DataFrame:
    """Sum a variant up.

    Columns: ``variant``, ``tuning``; ``epsilon`` (the accountant's, null without privacy, or where
    ``epsilon_reason`` says why none is believed), ``epsilon_bound`` and ``epsilon_ceiling`` (from
    one run), ``epsilon_bound_by_rates`` and its ceiling, ``is_contradicted`` (whether a bound is
    above the accountant's epsilon); ``utility_measure``, ``utility`` with limits; of the first
    attack ``auc`` with limits, ``tpr_at_0.1%``, ``tpr_at_1%``; ``exposure_rate``,
    ``mean_exposure``, ``unlearnt_exposure`` (its mean without any memory), ``exposure_trend``
    (Spearman's correlation with repetitions) and its p; ``inversion_precision``,
    ``inversion_recall``, ``inversion_f1`` of the tokens that come back from embeddings, with limits
    of the last, and ``nearest_f1``, that of the nearest auxiliary text.
    """
    exposures = found.get("exposures")
    row: dict[str, Any] = {"variant": variant.name, "tuning": variant.tuning}
    row |= _privacy(target, exposures) | _bounds(scores, attacks[0], plan)
    bounds = [row["epsilon_bound"], row["epsilon_bound_by_rates"]]
    claim = row["epsilon"]
    row["is_contradicted"] = None if claim is None else any(each > claim for each in bounds if each)
    used = utility.row(0, named=True)
    row |= {"utility_measure": used["measure"], "utility": used["value"]}
    row |= {"utility_low": used["low"], "utility_high": used["high"]}
    row |= _membership(metrics, attacks[0]) | _extraction(exposures)
    row |= _inversion(found.get("inversion"))
    return pl.DataFrame([row], infer_schema_length=None)


def _privacy(target: Made, exposures: pl.DataFrame | None) -> dict[str, Any]:
    """Say the accountant's epsilon, if it can be believed."""
    said = target.privacy
    if said is None:
        return dict.fromkeys(("epsilon", "delta", "noise_multiplier", "epsilon_reason"))
    row: dict[str, Any] = {name: said[name] for name in ("epsilon", "delta", "noise_multiplier")}
    if exposures is None or not exposures["loss"].has_nulls():
        return row | {"epsilon_reason": None}
    reason = "a canary has no loss, so that nobody knows whether it was learnt"
    return row | {"epsilon": None, "epsilon_reason": reason}


def _bounds(scores: pl.DataFrame, attack: str, plan: Plan) -> dict[str, Any]:
    """Bound the epsilon of a text by one of each group, since those of a group share a coin."""
    one_each = scores.drop_nulls(attack).unique("group", keep="first", maintain_order=True)
    member, score = one_each["member"].to_numpy(), one_each[attack].to_numpy()
    texts = int(scores["group"].value_counts()["count"].to_numpy().max(initial=1))
    names = ("epsilon_bound", "epsilon_ceiling", "epsilon_bound_by_rates", "epsilon_rates_ceiling")
    if not 0 < member.sum() < member.size:
        return dict.fromkeys(names)
    found = [
        bound(member, score, delta=plan.recipe.delta, seed=plan.seed, texts=texts)
        for bound in (one_run_bound, clopper_pearson_bound)
    ]
    values = [number for each in found for number in (each.value, each.ceiling)]
    return dict(zip(names, values, strict=True))


def _membership(metrics: pl.DataFrame, attack: str) -> dict[str, Any]:
    own = metrics.filter(pl.col("versus").is_null(), attack=attack, slice="all")
    row: dict[str, Any] = {"attack": attack}
    area = own.filter(metric="roc_auc").to_dicts()
    found = area[0] if area else {}
    row |= {"auc": found.get("value"), "auc_low": found.get("low"), "auc_high": found.get("high")}
    for budget, name in _RATES.items():
        rate = own.filter(pl.col("fpr") == budget, metric="tpr_at_fpr")["value"]
        row[name] = rate[0] if rate.len() else None
    return row


def _extraction(exposures: pl.DataFrame | None) -> dict[str, Any]:
    """Sum exposures up; null where there are none."""
    names = ("exposure_rate", "mean_exposure", "unlearnt_exposure", "exposure_trend")
    if exposures is None or (there := exposures.drop_nulls("exposure")).is_empty():
        return dict.fromkeys((*names, "exposure_trend_p"))
    trend = spearmanr(there["repetitions"], there["exposure"])
    values = (
        there["exposed"].mean(),
        there["exposure"].mean(),
        there["unlearnt_exposure"].mean(),
        trend.statistic,
    )
    row: dict[str, Any] = dict(zip(names, values, strict=True)) | {"exposure_trend_p": trend.pvalue}
    return {name: None if np.isnan(value) else float(value) for name, value in row.items()}


def _inversion(figures: pl.DataFrame | None) -> dict[str, Any]:
    """Take what comes back from embeddings; null where it was not asked."""
    f1, low, high = _figure(figures, "inverter", "f1")
    return {
        "inversion_precision": _figure(figures, "inverter", "precision")[0],
        "inversion_recall": _figure(figures, "inverter", "recall")[0],
        "inversion_f1": f1,
        "inversion_f1_low": low,
        "inversion_f1_high": high,
        "nearest_f1": _figure(figures, "nearest", "f1")[0],
    }


def _figure(figures: pl.DataFrame | None, method: str, metric: str) -> tuple[Any, Any, Any]:
    if figures is None:
        return None, None, None
    own = figures.filter(pl.col("versus").is_null(), method=method, unit="tokens", metric=metric)
    return own.select("value", "low", "high").row(0)
