"""Calibration of verdicts without labels, by simulation: p-values, q-values, groups, estimates.

Every figure is a rate over simulated data sets whose truth is known, beside what it
should be.

    python -m benches.p_value_calibration [--runs N]
"""

from __future__ import annotations

import argparse
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
from benches.results import append_results, versions

from mia_batch.inference.comparison import collection_test, summarise, window_pattern
from mia_batch.inference.conformal import TieDraws, p_values, q_values, shared_weights
from mia_batch.inference.estimates import (
    Flagged,
    contamination_bound,
    contamination_rate,
)
from mia_batch.inference.verdicts import aligned_ranks, rank_sum_p_value

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = 20_240_613
SETTINGS_OF_RATES = [  # targets, calibration non-members and members, FPR, TPR
    (200, 300, 300, 0.05, 0.5),
    (1000, 300, 300, 0.05, 0.3),
    (100, 100, 100, 0.1, 0.8),
    (200, 500, 500, 0.01, 0.95),
    (1000, 1000, 200, 0.05, 0.2),
    (60, 40, 40, 0.1, 0.6),
]
SHARES = (0.1, 0.3, 0.5, 0.9)

Figure = dict[str, Any]


def texts(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """199 of 300 non-members as nulls, 101 as targets; then 20 targets at q = 0.1."""
    pool = np.round(rng.gamma(2, size=300), 2)
    shares = []
    for _ in range(runs):
        split = rng.permutation(pool)
        ties = TieDraws(rng.random(101), rng.random(199))
        shares.append(np.mean(p_values(split[199:], split[:199], ties=ties) <= 0.05))
    yield {
        "case": "share of nulls with p <= 0.05",
        "rate": np.mean(shares),
        "wanted": "0.05",
    }
    for n_members, wanted in ((0, "0.10"), (10, "0.05")):
        false = [_false_discoveries(rng, n_members) for _ in range(runs)]
        case = f"false discoveries at q = 0.1, {n_members} of 20 members"
        yield {"case": case, "rate": mean(false), "wanted": wanted}


def _false_discoveries(rng: np.random.Generator, n_members: int) -> float:
    scores = np.round(rng.normal(2.0 * (np.arange(20) < n_members), 1), 1)
    nulls = np.round(rng.normal(size=199), 1)
    p = p_values(scores, nulls, ties=TieDraws(rng.random(20), rng.random(199)))
    found = q_values(p, "bh") <= 0.1
    return float(found[n_members:].sum() / max(1, found.sum()))


def groups(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """39 null groups of 40 windows that share three tenths of their variance, and one like them."""
    clusters = np.repeat(np.arange(39), 40)
    weights = shared_weights(clusters)
    for n_windows in (40, 5):
        chosen = np.arange(39)[:, None] * 40 + window_pattern(40, n_windows, 0)
        rejected, of_windows, together = [], [], []
        for _ in range(runs):
            windows = 0.3**0.5 * rng.normal(size=(42, 1)) + 0.7**0.5 * rng.normal(
                size=(42, 40)
            )
            nulls, asked = windows[3:].ravel(), windows[:3, :n_windows].ravel()
            of_nulls = summarise(nulls[chosen], "mean")
            of_asked = summarise(asked.reshape(3, -1), "mean")
            rejected.append(p_values(of_asked[:1], of_nulls)[0] <= 0.05)
            of_windows.append(p_values(asked[:1], nulls, weights=weights)[0] <= 0.05)
            together.append(collection_test(of_asked, of_nulls, 0).p_value <= 0.05)
        what = f"{n_windows} windows asked about"
        yield {"case": f"a group, {what}", "rate": np.mean(rejected), "wanted": "0.05"}
        yield {
            "case": f"a window of it, {what}",
            "rate": np.mean(of_windows),
            "wanted": "<= 0.05",
        }
        yield {
            "case": f"three groups, {what}",
            "rate": np.mean(together),
            "wanted": "0.05",
        }


def canaries(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Sets of 8 texts, with ties."""
    for n_sets in (1, 5, 20):
        found = [
            rank_sum_p_value(
                aligned_ranks([(one[0], one[1:]) for one in np.round(sets, 1)])
            )
            <= 0.05
            for sets in rng.normal(size=(runs, n_sets, 8))
        ]
        wanted = "0 (p >= 1/8)" if n_sets == 1 else "<= 0.05"
        yield {
            "case": f"canaries, sets: {n_sets}",
            "rate": np.mean(found),
            "wanted": wanted,
        }


def rates(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Intervals of the share of members among the targets."""
    for n, n0, n1, fpr, tpr in SETTINGS_OF_RATES:
        for share in SHARES:
            n_members = round(share * n)
            hits, widths = [], []
            for _ in range(runs):
                flagged = rng.binomial(n_members, tpr) + rng.binomial(
                    n - n_members, fpr
                )
                made = contamination_rate(
                    Flagged(flagged, n),
                    Flagged(rng.binomial(n0, fpr), n0),
                    Flagged(rng.binomial(n1, tpr), n1),
                    blind_warns=False,
                )
                if made.low is not None and made.high is not None:
                    hits.append(made.low <= n_members / n <= made.high)
                    widths.append(made.high - made.low)
            case = f"rate {share:.1f}, {n} targets, {n0} + {n1}, FPR {fpr}, TPR {tpr}"
            yield {
                "case": case,
                "rate": np.mean(hits),
                "wanted": "0.95",
                "width": mean(widths),
                "refused": 1 - len(hits) / runs,
            }


def bounds(rng: np.random.Generator, runs: int) -> Iterator[Figure]:
    """Lower bounds from 199 nulls and 100 targets, the tenth largest null as threshold."""
    for share, tpr in ((0, 1), (0.1, 0.2), (0.1, 1), (0.5, 0.2), (0.5, 0.9), (0.9, 1)):
        n_members = round(100 * share)
        flagged = rng.binomial(n_members, tpr, runs)
        flagged += rng.binomial(100 - n_members, rng.beta(10, 190, runs))
        low = [
            contamination_bound(Flagged(int(f), 100), n_null=199, rank=10).low
            for f in flagged
        ]
        hits = [bound is not None and bound <= share for bound in low]
        case = f"lower bound of {share:.1f}, TPR {tpr}"
        yield {"case": case, "rate": np.mean(hits), "wanted": ">= 0.95"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=2000, help="simulated data sets of each case"
    )
    runs = parser.parse_args().runs
    figures = []
    for number, simulate in enumerate((texts, groups, canaries, rates, bounds)):
        for figure in simulate(np.random.default_rng([SEED, number]), runs):
            figures.append(figure | {"rate": round(float(figure["rate"]), 4)})
            extra = "".join(
                f"  {name} {figure[name]:.3f}"
                for name in ("width", "refused")
                if name in figure
            )
            print(
                f"{figure['case']:56} {figure['rate']:.4f}  wanted"
                f" {figure['wanted']}{extra}"
            )
    append_results(
        "p_value_calibration",
        {"seed": SEED, "runs": runs, "figures": figures} | versions("numpy", "scipy"),
    )


if __name__ == "__main__":
    main()
