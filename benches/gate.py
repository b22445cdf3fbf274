"""False lists where targets and non-members differ, before and after the gate.

Nothing was trained on. A text's score follows what the two sets differ in, as scores of
a language model follow the years in which texts were written. The gate withholds every
answer where classifiers that never see the model tell the sets apart; where that is
undecided, answers stand behind a warning.

    python -m benches.gate [--data-sets N]
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl
from benches.blind import data_sets
from benches.results import append_results, versions

from mia_batch.diagnostics.blind import judge
from mia_batch.inference.conformal import p_values, q_values, shared_weights
from mia_batch.inference.findings import gate_findings, gate_verdict
from mia_batch.schemas import Findings

if TYPE_CHECKING:
    from mia_batch.diagnostics.blind import Judgement

_CASES: list[dict[str, Any]] = [
    {"n_per_class": n, "per_cluster": size, "effect": effect}
    for n, size in ((100, 1), (200, 4))
    for effect in (0.0, 0.6, 3.0)
]
_N_PERMUTATIONS = 39
_Q = 0.05


def simulate(
    *, effect: float, per_cluster: int, n_data_sets: int, **case: int
) -> dict[str, Any]:
    """Say what the gate decides, and how many data sets have a false list before and after it."""
    gates: Counter[str] = Counter()
    false: Counter[str] = Counter()
    made = data_sets(
        effect=effect,
        per_cluster=per_cluster,
        n=n_data_sets,
        n_permutations=_N_PERMUTATIONS,
        **case,
    )
    for label, cluster, found, generator in made:
        gate = _gate(judge(found))
        gates[gate] += 1
        of_cluster = generator.standard_normal(cluster.max() + 1)[cluster]
        score = (
            effect * label
            + (of_cluster + generator.standard_normal(label.size)) * 0.5**0.5
        )
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


def _gate(judged: Judgement) -> str:
    of = {"check": "blind_baseline", "subject": "targets"}
    row = {"statistic": "roc_auc", "value": judged.auc, "high": judged.upper}
    row |= {"p_value": judged.p_value, "verdict": judged.verdict}
    rows = [of | row, of | {"statistic": "strongest", "verdict": judged.strongest}]
    found = pl.DataFrame(rows, Findings.create_empty().schema)
    return str(gate_verdict(gate_findings(found, exploratory=False)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data-sets", type=int, default=1000, help="simulated for each case"
    )
    n_data_sets = parser.parse_args().data_sets
    rows = []
    for place, case in enumerate(_CASES):
        found = simulate(**case, n_data_sets=n_data_sets, seed=place)
        rows.append(case | found)
        print(case, found, flush=True)
    figures = {
        "data_sets": n_data_sets,
        "permutations": _N_PERMUTATIONS,
        "q": _Q,
        "cases": rows,
    }
    append_results("gate", figures | versions("scikit-learn", "numpy"))


if __name__ == "__main__":
    main()
