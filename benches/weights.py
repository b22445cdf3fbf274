"""Weighted nulls where texts alone tell targets from non-members, by simulation.

Targets differ from nulls by a covariate that scores follow, half as much as they follow
chance (t with 4 degrees of freedom). A blind classifier sees the covariate among
others, cross-fitted.

    python -m benches.weights [--runs N]
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from benches.results import append_results, versions
from scipy.special import ndtri
from scipy.stats import rankdata

from mia_batch.inference.comparison import ComparisonSets, collection_test
from mia_batch.inference.conformal import p_values, q_values, weighted_q_values
from mia_batch.inference.findings import DecisionRule
from mia_batch.inference.verdicts import weigh
from mia_batch.stats.intervals import deal_folds

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mia_batch.inference.findings import PlanLevel

SEED = 20_260_101
Q = 0.1
N_TARGETS, N_NULLS = 60, 300
N_GROUPS, N_NULL_GROUPS = 30, 80
EFFECT = 6.0

Figure = dict[str, Any]


def plan_of(level: PlanLevel) -> DecisionRule:
    return DecisionRule(primary="a_v1", level=level, null_set="simulated", q=Q)


def sets_of(cluster: NDArray[np.int64], label: NDArray[np.bool_]) -> ComparisonSets:
    none = np.array([], np.int64)
    return ComparisonSets(
        target_id=pl.Series([f"t{number}" for number in range(label.size)]),
        n_words=pl.Series(np.full(label.size, 100)),
        cluster=cluster,
        clusters=pl.DataFrame(),
        targets=np.flatnonzero(label),
        nulls=np.flatnonzero(~label),
        calibration_members=none,
        calibration_nonmembers=none,
        published=none,
        controls=none,
    )


def blind_scores(
    seen: NDArray[np.float64],
    label: NDArray[np.bool_],
    cluster: NDArray[np.int64],
    rng: np.random.Generator,
) -> pl.DataFrame:
    """Score texts by a linear classifier of the other folds, as the blind baseline does."""
    folds = deal_folds(label, cluster, n_folds=5, generator=rng)
    shares = np.empty(label.size)
    for fold in range(5):
        test = folds.fold_of_text == fold
        centred = label[~test] - label[~test].mean()
        slope = np.linalg.lstsq(
            seen[~test] - seen[~test].mean(axis=0), centred, rcond=None
        )[0]
        shares[test] = (rankdata(seen[test] @ slope) - 0.5) / test.sum()
    return pl.DataFrame(
        {"target_id": [f"t{n}" for n in range(label.size)], "b": shares}
    )


def texts(
    rng: np.random.Generator,
    runs: int,
    auc: float,
    *,
    n_seen: int = 5,
    hidden: bool = False,
) -> Figure:
    """Audit single texts, without members and with one in five.

    ``hidden``: the classifier sees a covariate that scores do not follow.
    """
    shift, label = 2**0.5 * ndtri(auc), np.arange(N_TARGETS + N_NULLS) < N_TARGETS
    sets, plan = sets_of(np.arange(label.size), label), plan_of("target")
    member = np.arange(N_TARGETS) < N_TARGETS / 5
    made: list[dict[str, float]] = []
    for run in range(runs):
        seen = rng.normal(size=(label.size, n_seen + hidden))
        seen[label, 0] += shift
        seen[label, -1] += shift * hidden
        score = seen[:, -1 * hidden] + rng.standard_t(4, label.size)
        with_members = score + EFFECT * np.append(member, np.zeros(N_NULLS))
        blind = blind_scores(seen[:, :n_seen], label, np.arange(label.size), rng)
        odds = weigh(sets, blind, plan, groups=False)
        true = np.exp(shift * seen[:, 0])
        used = odds.reason is None
        row: dict[str, float] = {
            "used": used,
            "n_effective": odds.n_effective,
            "auc": odds.auc,
        }
        every = {"equal": None, "known": true, "weighted": odds.by_row}
        for name, weight in every.items():
            counts = used or name != "weighted"
            row |= _rates(
                name, *_listed(score, label, weight, run), member & False, used=counts
            )
            found = _rates(
                name, *_listed(with_members, label, weight, run), member, used=counts
            )
            row[f"{name}_found"] = found[f"{name}_found"]
            row[f"{name}_false_with_members"] = found[f"{name}_false"]
        made.append(row)
    return _means(made)


def _listed(
    score: NDArray[np.float64],
    label: NDArray[np.bool_],
    weight: NDArray[np.float64] | None,
    run: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    targets, nulls = score[label], score[~label]
    if weight is None:
        p = p_values(targets, nulls)
        return p, q_values(p, "bh")
    own, of_nulls = weight[label], weight[~label]
    p = p_values(targets, nulls, weights=of_nulls, score_weights=own)
    return p, weighted_q_values(targets, p, own, of_nulls.sum(), Q, ["simulated"], run)


def _rates(
    name: str,
    p: NDArray[np.float64],
    q: NDArray[np.float64],
    member: NDArray[np.bool_],
    *,
    used: bool,
) -> dict[str, float]:
    """Rates of one audit; of one that is withheld no p-value, and an empty list."""
    listed = (q <= Q) & used
    false = float((listed & ~member).sum() / max(1, listed.sum()))
    level = float((p[~member] <= 0.05).mean()) if used else np.nan
    found = float(listed[member].mean()) if member.any() else np.nan
    return {f"{name}_p": level, f"{name}_false": false, f"{name}_found": found}


def groups(rng: np.random.Generator, runs: int, auc: float) -> Figure:
    """Audit whole groups of 5 to 60 texts, of which 5 are compared; single ones, and together.

    Groups share three tenths of the variance of the covariate, by which they differ,
    and of chance.
    """
    n, shift = N_GROUPS + N_NULL_GROUPS, 2**0.5 * ndtri(auc)
    of_group = np.arange(n) < N_GROUPS
    made: list[dict[str, float]] = []
    for run in range(runs):
        sizes = np.clip(60 / rng.permutation(np.arange(1, n + 1)) ** 0.7, 5, 60).astype(
            int
        )
        cluster = np.repeat(np.arange(n), sizes)
        centre = rng.normal(size=n) + shift * of_group
        covariate = 0.3**0.5 * centre[cluster] + 0.7**0.5 * rng.normal(
            size=cluster.size
        )
        own = 0.3**0.5 * rng.standard_t(4, n)
        score = covariate + own[cluster] + 0.7**0.5 * rng.standard_t(4, cluster.size)
        starts = np.cumsum(sizes) - sizes
        score = score[starts[:, None] + np.arange(5)].mean(axis=1)
        label = of_group[cluster]
        seen = np.column_stack([covariate, rng.normal(size=(cluster.size, 4))])
        blind = blind_scores(seen, label, cluster, rng)
        odds = weigh(sets_of(cluster, label), blind, plan_of("group"), groups=True)
        used = odds.reason is None
        row: dict[str, float] = {
            "used": used,
            "n_effective": odds.n_effective,
            "auc": odds.auc,
        }
        weight = odds.by_row[starts]
        for name, weights in {"equal": None, "weighted": weight}.items():
            counts = used or name == "equal"
            found = _listed(score, of_group, weights, run)
            row |= _rates(name, *found, np.zeros(N_GROUPS, bool), used=counts)
            test = collection_test(score[of_group], score[~of_group], run, weights)
            row[f"{name}_together"] = test.p_value <= 0.05 if counts else np.nan
        made.append(row)
    return _means(made)


def _means(made: list[dict[str, float]]) -> Figure:
    columns = {name: np.array([row[name] for row in made], float) for name in made[0]}
    found: Figure = {
        "n_effective": round(float(np.median(columns.pop("n_effective"))), 1)
    }
    for name, values in columns.items():
        if not np.isnan(values).all():
            found[name] = round(float(np.nanmean(values)), 4)
    return found


CASES: dict[str, Callable[[np.random.Generator, int], Figure]] = {
    "AUC 0.7": partial(texts, auc=0.7),
    "AUC 0.8": partial(texts, auc=0.8),
    "AUC 0.9": partial(texts, auc=0.9),
    "AUC 0.8 in 60 features": partial(texts, auc=0.8, n_seen=60),
    "AUC 0.8, hidden": partial(texts, auc=0.8, hidden=True),
    "groups, AUC 0.8": partial(groups, auc=0.8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    made = []
    for name, simulate in CASES.items():
        rng = np.random.default_rng([SEED, *name.encode()])
        made.append({"case": name} | simulate(rng, runs))
        print(made[-1], flush=True)
    found = versions("numpy", "scipy", "scikit-learn")
    append_results(
        "weights", {"seed": SEED, "runs": runs, "versions": found, "figures": made}
    )


if __name__ == "__main__":
    main()
