"""False answers of a service that changes while it is asked, before and after the order by lot.

Nothing was trained on: 60 texts are audited against 120 others, or 60 members against
120 non-members. A word of an answer is the true one with a probability that falls by a
share, at once after a third of the run or slowly from its beginning to its end; a score
is the share of true words among 200, and texts differ in how easy they are. Before, the
audited texts (or the members) were asked first and the others last; after, all in one
order drawn by lot, and the answer is withheld where scores are found to move.

Last, members are remembered: what the order by lot makes of their AUC.

    python -m benches.drift [--audits N]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from benches.results import append_results, versions

from mia_batch.evidence.lot import lot_numbers
from mia_batch.inference.comparison import collection_test
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.order import LEVEL, score_rows

if TYPE_CHECKING:
    from mia_batch.stats import Floats, Ints

_N_AUDITED, _N_OTHERS = 60, 120
_N = _N_AUDITED + _N_OTHERS
_TRUE_WORDS, _SPREAD, _WORDS = 0.35, 0.03, 200
_REMEMBERED = 0.06  # more true words of members that are remembered
_Q = 0.05
_ROLES = pl.DataFrame(
    {
        "role": ["target"] * _N_AUDITED + ["non_member"] * _N_OTHERS,
        "member": [None] * _N_AUDITED + [False] * _N_OTHERS,
    }
)


def scores_of(
    place: Ints, share: float, kind: str, rng: np.random.Generator, more: float = 0.0
) -> Floats:
    """Draw the scores of texts by their places in the order of asking."""
    time = place / _N
    fall = (time >= _N_AUDITED / _N) if kind == "sudden" else time
    easy = rng.normal(_TRUE_WORDS, _SPREAD, _N)
    easy[:_N_AUDITED] += more
    true: Floats = (
        rng.binomial(_WORDS, np.clip(easy, 0.01, 0.99) * (1 - share * fall)) / _WORDS
    )
    return true


def false_answers(scores: Floats) -> dict[str, float]:
    """Say what an audit of these scores reports."""
    audited, others = scores[:_N_AUDITED], scores[_N_AUDITED:]
    n_listed = int((q_values(p_values(audited, others), "bh") <= _Q).sum())
    test = collection_test(audited, others, 0, None)
    return {
        "lists": n_listed > 0,
        "texts listed": n_listed,
        "collection": test.p_value <= _Q,
        "AUC": area(scores),
    }


def area(scores: Floats) -> float:
    audited, others = scores[:_N_AUDITED, None], scores[_N_AUDITED:]
    return float((audited > others).mean() + 0.5 * (audited == others).mean())


def simulate(share: float, kind: str, n_audits: int, seed: int) -> dict[str, Any]:
    """Average over audits: what is reported before, by lot alone, and how many are withheld."""
    rng, sums = np.random.default_rng(seed), defaultdict[str, float](float)
    names = pl.Series([f"{number:032x}" for number in range(_N)])
    for audit in range(n_audits):
        before = false_answers(scores_of(np.arange(_N), share, kind, rng))
        order = lot_numbers(names, seed=audit).argsort()
        scores = scores_of(order.argsort(), share, kind, rng)
        by_lot = false_answers(scores)
        rows = score_rows(
            _ROLES.with_columns(score=pl.Series(scores))[order], seed=audit
        )
        is_withheld = any(row["p_value"] <= LEVEL for row in rows)
        sums["withheld"] += is_withheld
        for name, value in before.items():
            sums[f"{name}, before"] += value
            sums[f"{name}, by lot"] += by_lot[name]
            sums[f"{name}, after"] += by_lot[name] * (not is_withheld)
        remembered = scores_of(order.argsort(), share, kind, rng, _REMEMBERED)
        sums["AUC of remembered members, by lot"] += area(remembered)
    del sums["AUC, after"]
    return {name: round(total / n_audits, 4) for name, total in sums.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--audits", type=int, default=200, help="simulated of each case"
    )
    n_audits, rows = parser.parse_args().audits, []
    cases = [(0.0, "none")]
    cases += [
        (share, kind) for share in (0.05, 0.1, 0.3, 0.6) for kind in ("sudden", "slow")
    ]
    for number, (share, kind) in enumerate(cases):
        found = simulate(share, kind, n_audits, seed=number)
        rows.append({"drift": share, "kind": kind} | found)
        print(f"drift {share:.0%}, {kind}: {found}", flush=True)
    figures = {"audits": n_audits, "level": LEVEL, "q": _Q, "cases": rows}
    append_results("drift", figures | versions("numpy", "polars"))


if __name__ == "__main__":
    main()
