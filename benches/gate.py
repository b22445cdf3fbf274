"""False lists where targets and non-members differ, before and after the gate.

Nothing was trained on. A text's score follows what the two sets differ in, as scores of a language
model follow the years in which texts were written. The gate withholds every answer where
classifiers that never see the model tell the sets apart; where that is undecided, answers stand
behind a warning.

    python -m benches.gate [--data-sets N]
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from benches.blind import classifiers
from benches.results import append_results, versions

from mia_batch.diagnostics.blind.baseline import verdict_of
from mia_batch.diagnostics.blind.crossvalidation import cross_validate
from mia_batch.inference.conformal import p_values, q_values, shared_weights
from mia_batch.inference.findings import finding_rows, gate_findings
from mia_batch.stats.folds import deal_folds

if TYPE_CHECKING:
    import polars as pl

_CASES: list[dict[str, Any]] = [
    {"n_per_class": n, "per_cluster": size, "effect": effect}
    for n, size in ((100, 1), (200, 4))
    for effect in (0.0, 0.3, 0.6, 1.0, 3.0)
]
_N_PERMUTATIONS = 99
_Q = 0.05


def simulate(
    *, n_per_class: int, per_cluster: int, effect: float, n_data_sets: int, seed: int
) -> dict[str, Any]:
    """Say what the gate decides, and how many data sets have a false list before and after it."""
    generator = np.random.default_rng(seed)
    gates: Counter[str] = Counter()
    false: Counter[str] = Counter()
    for _ in range(n_data_sets):
        label = np.repeat([True, False], n_per_class)
        cluster = np.arange(label.size) // per_cluster
        found = cross_validate(
            classifiers(label, cluster, effect, generator),
            label,
            deal_folds(label, cluster, n_folds=5, generator=generator),
            n_permutations=_N_PERMUTATIONS,
            generator=generator,
        )
        gate = _gate(found)
        gates[gate] += 1
        of_cluster = generator.standard_normal(cluster.max() + 1)[cluster]
        score = effect * label + (of_cluster + generator.standard_normal(label.size)) * 0.5**0.5
        weights = shared_weights(cluster[~label]) if per_cluster > 1 else None
        p = p_values(score[label], score[~label], weights=weights)
        reported = bool((q_values(p, "by" if per_cluster > 1 else "bh") <= _Q).any())
        false["before"] += reported
        false["after"] += reported and gate != "withheld"
        false["after, without a warning"] += reported and gate == "open"
    return {
        "gates": {gate: n / n_data_sets for gate, n in sorted(gates.items())},
        "false_lists": {when: n / n_data_sets for when, n in sorted(false.items())},
    }


def _gate(found: dict[str, Any]) -> str:
    strongest = max(found, key=lambda name: found[name].auc)
    auc = found[strongest].auc
    highest = np.max([outcome.permuted for outcome in found.values()], axis=0)
    p = float((1 + (highest >= auc).sum()) / (1 + highest.size))
    upper = max(outcome.interval(confidence=0.9).high for outcome in found.values())
    row = {"subject": "targets", "statistic": "roc_auc", "value": auc, "high": upper, "p_value": p}
    name = {"subject": "targets", "statistic": "strongest", "verdict": strongest}
    rows = [row | {"verdict": verdict_of(auc, p, upper)}, name]
    gate: pl.Series = gate_findings(finding_rows("blind_baseline", rows), exploratory=False)[
        "verdict"
    ]
    return str(gate[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-sets", type=int, default=1000, help="simulated for each case")
    n_data_sets = parser.parse_args().data_sets
    rows = []
    for place, case in enumerate(_CASES):
        found = simulate(**case, n_data_sets=n_data_sets, seed=place)
        rows.append(case | found)
        print(case, found, flush=True)
    figures = {"data_sets": n_data_sets, "permutations": _N_PERMUTATIONS, "q": _Q, "cases": rows}
    append_results("gate", figures | versions("scikit-learn", "numpy"))


if __name__ == "__main__":
    main()
