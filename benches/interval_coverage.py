"""How often intervals hold the truth, and how wide they are, on simulated runs; and max-t's speed.

Scores are normal, members' shifted so that the area is known; texts of a group share a part of
their deviation. Each case has a seed of its own, so that one case can be run again alone.

    python -m benches.interval_coverage [--simulations N]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from zlib import crc32

import numpy as np
from benches.results import append_results, machine

from mia_batch.metrics.macro import macro_averages
from mia_batch.metrics.metric_rows import Classes, MetricRow, balanced_accuracy
from mia_batch.stats.bootstrap import find_units, rank, resample
from mia_batch.stats.difference import auc_difference
from mia_batch.stats.influence import estimate_auc
from mia_batch.stats.intervals import Interval, estimate_interval
from mia_batch.stats.rates import grouped_tpr_interval, tpr_interval
from mia_batch.stats.roc import roc_curve
from mia_batch.stats.simultaneous import AucResult, simultaneous_bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESAMPLES = 400
"""Of groups, in a simulation; a run makes more."""
LIMIT_S = 60
NORMAL = NormalDist()

Value = TypeVar("Value")
Promise = Literal["93 to 97 %", "at least 93 %"]
Figure = Literal["auc", "tpr", "balanced accuracy", "difference", "macro", "simultaneous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One distribution of scores and the figure that is bounded.

    Attributes
    ----------
    figure
        What has the interval.
    n
        Texts of each class; of each group where texts are grouped.
    groups
        Groups of each class; 0: texts are independent.
    auc
        True AUC; of the first attack where there are several.
    budget
        False-positive rate of a TPR.
    within
        Correlation of two texts of a group.
    mixed
        Whether groups have texts of both classes.
    uneven
        Whether groups have from one text to twice as many as ``n``.
    promise
        Nominal coverage, or at least that much.
    """

    figure: Figure
    n: int
    groups: int = 0
    auc: float
    budget: float = 0.0
    within: float = 0.0
    mixed: bool = False
    uneven: bool = False
    promise: Promise = "93 to 97 %"

    def __str__(self) -> str:
        grouped = f"{self.groups} groups of {self.n}, correlation {self.within:g}"
        parts = [self.figure, f"AUC {self.auc:g}", grouped if self.groups else f"{self.n} a class"]
        parts += [f"at {self.budget:g}"] if self.budget else []
        return ", ".join(parts + ["mixed"] * self.mixed + ["uneven"] * self.uneven)


_AT_LEAST: Promise = "at least 93 %"

CASES = [
    Case(figure="auc", n=100, auc=0.6),
    Case(figure="auc", n=30, auc=0.8),
    Case(figure="auc", n=300, auc=0.9),
    Case(figure="auc", n=50, auc=0.95),
    Case(figure="auc", n=50, auc=0.99, promise=_AT_LEAST),
    Case(figure="auc", n=200, auc=0.999, promise=_AT_LEAST),
    Case(figure="auc", n=20, groups=6, within=0.3, auc=0.6, promise=_AT_LEAST),
    Case(figure="auc", n=20, groups=6, within=0.3, auc=0.9, promise=_AT_LEAST),
    Case(figure="auc", n=20, groups=20, within=0.3, auc=0.8, promise=_AT_LEAST),
    Case(figure="auc", n=20, groups=30, within=0.3, auc=0.6),
    Case(figure="auc", n=20, groups=30, within=0.3, auc=0.9),
    Case(figure="auc", n=20, groups=30, within=0.3, auc=0.9, uneven=True),
    Case(figure="auc", n=10, groups=40, within=0.3, auc=0.7, mixed=True),
    Case(figure="auc", n=10, groups=100, within=0.3, auc=0.95),
    Case(figure="auc", n=20, groups=30, within=0.3, auc=0.99, promise=_AT_LEAST),
    Case(figure="auc", n=20, groups=8, within=0.3, auc=0.99, promise=_AT_LEAST),
    Case(figure="tpr", n=200, auc=0.7, budget=0.1),
    Case(figure="tpr", n=400, auc=0.8, budget=0.05),
    Case(figure="tpr", n=2_000, auc=0.7, budget=0.01),
    Case(figure="tpr", n=20_000, auc=0.9, budget=0.001),
    Case(figure="tpr", n=100, auc=0.7, budget=0.01, promise=_AT_LEAST),
    Case(figure="tpr", n=150, auc=0.9, budget=0.1, promise=_AT_LEAST),
    Case(figure="tpr", n=1_000, auc=0.99, budget=0.005, promise=_AT_LEAST),
    Case(figure="tpr", n=40, groups=30, within=0.3, auc=0.7, budget=0.1),
    Case(figure="tpr", n=40, groups=30, within=0.3, auc=0.9, budget=0.05),
    Case(figure="tpr", n=20, groups=60, within=0.1, auc=0.7, budget=0.05),
    Case(figure="tpr", n=40, groups=40, within=0.3, auc=0.7, budget=0.1, mixed=True),
    Case(figure="tpr", n=40, groups=10, within=0.3, auc=0.7, budget=0.1, promise=_AT_LEAST),
    Case(figure="tpr", n=40, groups=20, within=0.3, auc=0.7, budget=0.05, promise=_AT_LEAST),
    Case(figure="tpr", n=100, groups=30, within=0.3, auc=0.7, budget=0.01, promise=_AT_LEAST),
    Case(figure="balanced accuracy", n=100, auc=0.7, promise=_AT_LEAST),
    Case(figure="balanced accuracy", n=20, groups=12, within=0.3, auc=0.7, promise=_AT_LEAST),
    Case(figure="balanced accuracy", n=20, groups=40, within=0.3, auc=0.9),
    Case(figure="difference", n=100, auc=0.7),
    Case(figure="difference", n=50, auc=0.97, promise=_AT_LEAST),
    Case(figure="difference", n=20, groups=8, within=0.3, auc=0.7, promise=_AT_LEAST),
    Case(figure="difference", n=20, groups=30, within=0.3, auc=0.7),
    Case(figure="macro", n=50, auc=0.7),
    Case(figure="macro", n=50, auc=0.98, promise=_AT_LEAST),
    Case(figure="simultaneous", n=50, auc=0.6, promise=_AT_LEAST),
    Case(figure="simultaneous", n=300, auc=0.9, promise=_AT_LEAST),
    Case(figure="simultaneous", n=20, groups=8, within=0.3, auc=0.7, promise=_AT_LEAST),
    Case(figure="simultaneous", n=20, groups=30, within=0.3, auc=0.7, promise=_AT_LEAST),
]

BUCKETS = 3
ATTACKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of a simulated run, without scores."""

    member: NDArray[np.bool_]
    cluster: NDArray[np.int32] | None
    within: float

    def score(self, auc: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw scores of a true AUC."""
        noise = rng.normal(size=self.member.size)
        if self.cluster is not None:
            shared = rng.normal(size=self.cluster.max() + 1)[self.cluster]
            noise = self.within**0.5 * shared + (1 - self.within) ** 0.5 * noise
        return noise + shift(auc) * self.member


def shift(auc: float) -> float:
    """Distance of two normal distributions whose area is an AUC."""
    return 2**0.5 * NORMAL.inv_cdf(auc)


def texts(case: Case, rng: np.random.Generator) -> Texts:
    if case.groups == 0:
        member = np.arange(2 * case.n) < case.n
        return Texts(member=member, cluster=None, within=0.0)
    n_groups = case.groups if case.mixed else 2 * case.groups
    sizes = np.full(n_groups, case.n)
    if case.uneven:
        sizes = rng.integers(1, 2 * case.n, n_groups)
    cluster = np.repeat(np.arange(n_groups, dtype=np.int32), sizes)
    member = rng.random(cluster.size) < 0.5 if case.mixed else cluster < case.groups
    return Texts(member=member, cluster=cluster, within=case.within)


def simulate(case: Case, rng: np.random.Generator) -> tuple[bool, float]:
    """Make one run; whether the interval holds the truth, and its width."""
    made = texts(case, rng)
    if case.figure == "simultaneous":
        return of_many(case, made, rng)
    one = {
        "auc": of_auc,
        "tpr": of_tpr,
        "balanced accuracy": of_balanced_accuracy,
        "difference": of_difference,
        "macro": of_macro,
    }
    interval, truth = one[case.figure](case, made, rng)
    return interval.low <= truth <= interval.high, interval.high - interval.low


def there(value: Value | None) -> Value:
    """Every case has an interval."""
    if value is None:
        msg = "a case has no interval"
        raise ValueError(msg)
    return value


def classes(made: Texts, score: NDArray[np.float64]) -> Classes:
    return Classes(member=made.member, score=score, cluster=made.cluster, n_unscored=0)


def of_row(row: MetricRow) -> Interval:
    low, high = there(row.low), there(row.high)
    return Interval(low=low, high=high, confidence=0.95, method=there(row.method))


def draws(
    made: Texts, scores: list[NDArray[np.float64]], rng: np.random.Generator, *budgets: float
) -> NDArray[np.float64]:
    units = find_units(made.member, made.cluster)
    rankings = [rank(made.member, score, units.code) for score in scores]
    seed = int(rng.integers(2**31))
    return resample(rankings, units, seed=seed, budgets=budgets, n_resamples=RESAMPLES)


def of_auc(case: Case, made: Texts, rng: np.random.Generator) -> tuple[Interval, float]:
    score = made.score(case.auc, rng)
    drawn = None if made.cluster is None else draws(made, [score], rng)[:, 0, 0]
    estimate, _ = estimate_auc(made.member, score, made.cluster)
    return there(estimate_interval(estimate, drawn)), case.auc


def of_balanced_accuracy(
    case: Case, made: Texts, rng: np.random.Generator
) -> tuple[Interval, float]:
    """At the best threshold."""
    score = made.score(case.auc, rng)
    row = balanced_accuracy(classes(made, score), shift(case.auc) / 2)
    return of_row(row), NORMAL.cdf(shift(case.auc) / 2)


def of_tpr(case: Case, made: Texts, rng: np.random.Generator) -> tuple[Interval, float]:
    truth = NORMAL.cdf(shift(case.auc) + NORMAL.inv_cdf(case.budget))
    score = made.score(case.auc, rng)
    curve = roc_curve(made.member, score)
    if made.cluster is None:
        return tpr_interval(curve, case.budget, rng), truth
    flagged = ~made.member & (score >= curve.at_fpr(case.budget).threshold)
    interval = grouped_tpr_interval(
        curve,
        case.budget,
        estimate_auc(made.member, score, made.cluster)[0],
        draws(made, [score], rng, case.budget)[:, 0, 1],
        np.unique(made.cluster[flagged]).size,
    )
    return there(interval), truth


def of_difference(case: Case, made: Texts, rng: np.random.Generator) -> tuple[Interval, float]:
    """Two attacks, of which the second adds noise to the first."""
    first = made.score(case.auc, rng)
    noisy = first + made.score(0.5, rng)
    found = auc_difference(made.member, first, noisy, cluster=made.cluster)
    return there(found.interval), case.auc - NORMAL.cdf(shift(case.auc) / 2)


def of_macro(case: Case, made: Texts, rng: np.random.Generator) -> tuple[Interval, float]:
    """Average over buckets of which each is harder than the one before."""
    areas = [case.auc - 0.05 * number for number in range(BUCKETS)]
    of_buckets: list[tuple[dict[str, int], list[MetricRow]]] = []
    for auc in areas:
        estimate, _ = estimate_auc(made.member, made.score(auc, rng))
        row = MetricRow(metric="roc_auc", value=estimate.value).within(estimate_interval(estimate))
        of_buckets.append(({}, [row]))
    ((_, average),) = macro_averages(of_buckets, clustered=False)
    return of_row(average), float(np.mean(areas))


def of_many(case: Case, made: Texts, rng: np.random.Generator) -> tuple[bool, float]:
    """Many attacks of the same AUC, any two correlated by one half; mean distance of the bounds."""
    common = made.score(0.5, rng)
    scores = [
        (common + made.score(0.5, rng)) / 2**0.5 + shift(case.auc) * made.member
        for _ in range(ATTACKS)
    ]
    drawn = draws(made, scores, rng)
    tried = {
        (str(number), "all"): AucResult(
            estimate=estimate_auc(made.member, score, made.cluster)[0],
            draws=drawn[:, number, 0],
            counts={},
        )
        for number, score in enumerate(scores)
    }
    lows = [there(bound).low for bound in simultaneous_bounds(tried).values()]
    return max(lows) <= case.auc, case.auc - float(np.mean(lows))


def coverage(case: Case, n_simulations: int) -> tuple[float, float]:
    """Share of simulations whose interval holds the truth, and the mean width."""
    seed = crc32(str(case).encode())
    found = [
        simulate(case, np.random.default_rng([seed, number])) for number in range(n_simulations)
    ]
    return float(np.mean([held for held, _ in found])), float(
        np.mean([width for _, width in found])
    )


def kept(case: Case, share: float, n_simulations: int) -> bool:
    """Whether a coverage is what was promised, up to three standard errors of the simulation."""
    error = 3 * (0.05 * 0.95 / n_simulations) ** 0.5
    return share >= 0.93 - error and (case.promise == _AT_LEAST or share <= 0.97 + error)


def time_resamples() -> dict[str, Any]:
    """Time 2,000 resamples of 100,000 scores by 20 attacks."""
    rng = np.random.default_rng(0)
    member = np.arange(100_000) % 2 == 0
    units = find_units(member, None)
    scores = [rng.normal(size=member.size) + member for _ in range(20)]
    began, cpu = time.perf_counter(), time.process_time()
    resample([rank(member, score, units.code) for score in scores], units, seed=0)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"2,000 resamples of 100,000 scores by 20 attacks: {seconds:.1f} s (limit {LIMIT_S} s)")
    return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "limit_s": LIMIT_S}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=1_000, help="of each case")
    n_simulations = parser.parse_args().simulations
    rows = []
    print(f"{'covers':>7} {'width':>6}  promised")
    for case in CASES:
        share, width = coverage(case, n_simulations)
        ok = kept(case, share, n_simulations)
        print(
            f"{share:>7.3f} {width:>6.3f}  {case.promise:<13}  {case}{'' if ok else '  MISSED'}",
            flush=True,
        )
        rows.append(
            {
                "case": str(case),
                "promise": case.promise,
                "coverage": round(share, 4),
                "mean_width": round(width, 4),
                "kept": ok,
            }
        )
    timed = time_resamples()
    print(machine())
    figures = {"simulations": n_simulations, "cases": rows, "resamples": timed}
    append_results("interval_coverage", figures)


if __name__ == "__main__":
    main()
