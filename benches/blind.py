"""Coverage of the blind baseline's limits, by simulation.

Texts are stood for by numbers whose mean differs between the classes, and by counts of
words. What the AUC of each classifier is expected to be is its mean over the data sets.

    python -m benches.blind [--data-sets N]
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from benches.results import append_results, versions
from scipy.sparse import csr_array

from mia_batch.diagnostics.blind import (
    cross_validate,
    direction,
    judge,
    naive_bayes,
    ridge,
)
from mia_batch.stats.intervals import deal_folds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.diagnostics.blind import Outcome

__all__ = ["data_sets", "simulate"]

_GRID = [
    (n_per_class, per_cluster, effect)
    for n_per_class, effects in (
        (60, (0.0, 0.5, 1.5)),
        (128, (0.0, 0.4)),
        (256, (0.0, 0.3)),
    )
    for per_cluster in (1, 4)
    for effect in effects
]
_N_WORDS = 100
_N_PERMUTATIONS = 199


def data_sets(
    *,
    n_per_class: int,
    per_cluster: int,
    effect: float,
    n: int,
    n_permutations: int,
    seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, Outcome], np.random.Generator]]:
    """Yield labels, clusters and cross-validated outcomes, with the generator that drew them."""
    generator = np.random.default_rng(seed)
    for _ in range(n):
        label = np.repeat([True, False], n_per_class)
        cluster = np.arange(label.size) // per_cluster
        found = cross_validate(
            _classifiers(label, cluster, effect, generator),
            label,
            deal_folds(label, cluster, n_folds=5, generator=generator),
            n_permutations=n_permutations,
            generator=generator,
        )
        yield label, cluster, found, generator


def simulate(*, n_data_sets: int, **case: Any) -> dict[str, Any]:
    """Say how often limits hold, and how often p <= 0.05, in simulated data sets."""
    areas, lows, highs, uppers, p_values = [], [], [], [], []
    for _, _, found, _ in data_sets(n=n_data_sets, **case):
        intervals = [outcome.interval() for outcome in found.values()]
        areas.append([outcome.auc for outcome in found.values()])
        lows.append([interval.low for interval in intervals])
        highs.append([interval.high for interval in intervals])
        judged = judge(found)
        uppers.append(judged.upper)
        p_values.append(judged.p_value)
    expected = np.mean(areas, axis=0)
    held = (np.array(lows) <= expected) & (expected <= np.array(highs))
    return {
        "expected": expected.tolist(),
        "coverage": held.mean(axis=0).tolist(),
        "mean_width": float(np.mean(np.subtract(highs, lows))),
        "upper_coverage": float(np.mean(np.array(uppers) >= expected.max())),
        "mean_upper": float(np.mean(np.array(uppers, float))),
        "upper_within_0.60": float(np.mean(np.array(uppers) <= 0.6)),
        "p_within_0.05": float(np.mean(np.array(p_values) <= 0.05)),
    }


def _classifiers(
    label: np.ndarray,
    cluster: np.ndarray,
    effect: float,
    generator: np.random.Generator,
) -> dict[str, Any]:
    """Make one of each kind; texts of a cluster share half the variance of their numbers."""
    of_cluster = generator.standard_normal((cluster.max() + 1, _N_WORDS))[cluster]
    numbers = (of_cluster + generator.standard_normal(of_cluster.shape)) * 0.5**0.5
    numbers[:, 0] += effect * label
    numbers[:, 1:6] += 0.7 * effect * label[:, None]
    counts = generator.poisson(np.exp(0.5 * numbers - 1.5)).astype(float)
    return {
        "naive_bayes": partial(naive_bayes, csr_array(counts)),
        "all": partial(ridge, numbers @ numbers.T, 0.3),
        "some": partial(ridge, numbers[:, :12] @ numbers[:, :12].T, 1.0),
        "one": partial(direction, np.round(numbers[:, 0], 1)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data-sets", type=int, default=100, help="simulated for each case"
    )
    n_data_sets = parser.parse_args().data_sets
    print(
        "per class  per cluster  effect  AUC up to  covered  upper covered  p <= 0.05"
    )
    rows = []
    for place, (n_per_class, per_cluster, effect) in enumerate(_GRID):
        setting: dict[str, Any] = {
            "n_per_class": n_per_class,
            "per_cluster": per_cluster,
            "effect": effect,
        }
        found = simulate(
            **setting,
            n_data_sets=n_data_sets,
            n_permutations=_N_PERMUTATIONS,
            seed=place,
        )
        rows.append(setting | found)
        print(
            f"{n_per_class:>9}  {per_cluster:>11}  {effect:>6} "
            f" {max(found['expected']):>9.3f}  {np.mean(found['coverage']):>7.3f} "
            f" {found['upper_coverage']:>13.3f}  {found['p_within_0.05']:>9.3f}",
            flush=True,
        )
    figures = {"data_sets": n_data_sets, "permutations": _N_PERMUTATIONS, "cases": rows}
    append_results("blind", figures | versions("scikit-learn", "numpy"))


if __name__ == "__main__":
    main()
