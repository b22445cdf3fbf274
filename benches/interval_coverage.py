"""How often intervals hold the truth, and how wide they are, on simulated runs; and max-t's speed.

Scores are normal, members' shifted so that the area is known; texts of a group share a
part of their deviation, which has heavy tails (Student's t of 4 degrees) where it says
so. Groups are of one size, or unequal: sizes as 1, 1/2, 1/3, ..., or one giant with a
share of its class's texts. Where groups are worth fewer than four of one size there is
no interval; the share of such replications is counted. Each case has a seed of its own,
so that one case can be run again alone.

    python -m benches.interval_coverage [--simulations N] [--only FIGURE or UNEQUAL ...]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from zlib import crc32

import numpy as np
import polars as pl
from benches.results import append_results, machine

from mia_batch.inference.sets import codec_findings
from mia_batch.metrics import (
    Classes,
    balanced_accuracy,
    figure,
    macro_averages,
    metric_rows,
)
from mia_batch.stats.intervals import (
    Interval,
    auc_difference,
    cluster_means,
    estimate_auc,
    estimate_interval,
    ratio_difference,
    ratio_of_sums,
    roc_auc,
    simultaneous_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

LIMIT_S = 10
NORMAL = NormalDist()

Value = TypeVar("Value")
Found = tuple[Interval | None, float]
"""An interval, or None without one, and the truth."""
Promise = Literal["93 to 97 %", "at least 93 %"]
Figure = str
"""What has the interval, a key of `_MAKERS`, or ``simultaneous``."""


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
    sizes
        Sizes of groups, ``n`` on average: ``uneven`` ones have from one text to twice
        as many.
    giants
        Share of the members, and of the non-members, that one group has.
    heavy
        Whether what a group shares has heavy tails.
    attacks
        Attacks that are bounded at once.
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
    sizes: Literal["equal", "uneven", "zipf"] = "equal"
    giants: tuple[float, float] = (0.0, 0.0)
    heavy: bool = False
    attacks: int = 20
    promise: Promise = "93 to 97 %"

    def __str__(self) -> str:
        grouped = f"{self.groups} groups of {self.n}, correlation {self.within:g}"
        parts = [
            self.figure,
            f"AUC {self.auc:g}",
            grouped if self.groups else f"{self.n} a class",
        ]
        parts += [f"at {self.budget:g}"] if self.budget else []
        parts += [f"{self.attacks} attacks"] if self.figure == "simultaneous" else []
        parts += ["mixed"] * self.mixed + [self.sizes] * (self.sizes != "equal")
        parts += ["giants of {:.0%} and {:.0%}".format(*self.giants)] * any(self.giants)
        return ", ".join(parts + ["heavy tails"] * self.heavy)


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
    Case(figure="auc", n=20, groups=30, within=0.3, auc=0.9, sizes="uneven"),
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
    Case(
        figure="tpr",
        n=40,
        groups=10,
        within=0.3,
        auc=0.7,
        budget=0.1,
        promise=_AT_LEAST,
    ),
    Case(
        figure="tpr",
        n=40,
        groups=20,
        within=0.3,
        auc=0.7,
        budget=0.05,
        promise=_AT_LEAST,
    ),
    Case(
        figure="tpr",
        n=100,
        groups=30,
        within=0.3,
        auc=0.7,
        budget=0.01,
        promise=_AT_LEAST,
    ),
    Case(figure="balanced accuracy", n=100, auc=0.7, promise=_AT_LEAST),
    Case(
        figure="balanced accuracy",
        n=20,
        groups=12,
        within=0.3,
        auc=0.7,
        promise=_AT_LEAST,
    ),
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
    Case(
        figure="simultaneous", n=20, groups=30, within=0.3, auc=0.7, promise=_AT_LEAST
    ),
]

_UNEQUAL: list[dict[str, Any]] = [
    {"n": 20, "groups": 2, "within": 0.1},
    {"n": 20, "groups": 4, "within": 0.5, "heavy": True},
    {"n": 20, "groups": 5, "within": 0.3},
    {"n": 20, "groups": 10, "within": 0.05, "giants": (0.8, 0.8)},
    {"n": 20, "groups": 10, "within": 0.05, "giants": (0.8, 0)},
    {"n": 20, "groups": 20, "within": 0.05, "giants": (0.9, 0)},
    {"n": 20, "groups": 20, "within": 0.3, "giants": (0.4, 0.4)},
    {"n": 10, "groups": 40, "within": 0.5, "giants": (0.3, 0), "heavy": True},
    {"n": 4, "groups": 200, "within": 0.05, "giants": (0.45, 0.45)},
    {"n": 20, "groups": 8, "within": 0.3, "sizes": "zipf"},
    {"n": 20, "groups": 20, "within": 0.3, "sizes": "zipf", "heavy": True},
    {"n": 10, "groups": 50, "within": 0.0, "sizes": "zipf"},
    {"n": 8, "groups": 100, "within": 0.5, "sizes": "zipf", "heavy": True},
    {"n": 4, "groups": 200, "within": 0.1, "sizes": "zipf"},
    {"n": 20, "groups": 30, "within": 0.5, "sizes": "uneven", "heavy": True},
]
_FIGURES: list[dict[str, Any]] = [
    {"figure": "auc", "auc": 0.6},
    {"figure": "auc", "auc": 0.9},
    {"figure": "simultaneous", "auc": 0.6, "attacks": 5},
    {"figure": "difference", "auc": 0.8},
    {"figure": "tpr", "auc": 0.7, "budget": 0.1},
    {"figure": "fpr", "auc": 0.7, "budget": 0.1},
    {"figure": "balanced accuracy", "auc": 0.7},
    {"figure": "share", "auc": 0.7},
    {"figure": "ratio", "auc": 0.7},
    {"figure": "difference of ratios", "auc": 0.7},
    {"figure": "paired mean", "auc": 0.7},
]
UNEQUAL = [
    Case(**figure, **design, promise=_AT_LEAST)
    for figure in _FIGURES
    for design in _UNEQUAL
]
"""Groups of unequal size, few groups, and heavy tails."""

BUCKETS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of a simulated run, without scores."""

    member: NDArray[np.bool_]
    cluster: NDArray[np.int32] | None
    within: float
    heavy: bool = False

    def score(self, auc: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw scores of a true AUC."""
        noise = rng.normal(size=self.member.size)
        if self.cluster is not None:
            shared = _shared(self.cluster.max() + 1, rng, heavy=self.heavy)[
                self.cluster
            ]
            noise = self.within**0.5 * shared + (1 - self.within) ** 0.5 * noise
        return noise + shift(auc) * self.member

    def below(self, limit: float) -> float:
        """Probability that a non-member scores below a limit."""
        return _below(self.within, limit, heavy=self.heavy)


def _shared(n: int, rng: np.random.Generator, *, heavy: bool) -> NDArray[np.float64]:
    """What texts of a group share, of variance 1."""
    return np.asarray(rng.standard_t(4, n) / 2**0.5 if heavy else rng.normal(size=n))


@lru_cache
def _distribution(within: float, seed: int = 0) -> NDArray[np.float64]:
    """Scores of very many non-members, each of a heavy-tailed group of its own."""
    n, rng = 1 << 20, np.random.default_rng(seed)
    shared = _shared(n, rng, heavy=True)
    return np.asarray(within**0.5 * shared + (1 - within) ** 0.5 * rng.normal(size=n))


@lru_cache
def _below(within: float, limit: float, *, heavy: bool) -> float:
    return float(np.mean(_distribution(within) < limit)) if heavy else NORMAL.cdf(limit)


@lru_cache
def true_tpr(within: float, auc: float, budget: float, *, heavy: bool) -> float:
    if not heavy:
        return NORMAL.cdf(shift(auc) + NORMAL.inv_cdf(budget))
    threshold = float(np.quantile(_distribution(within), 1 - budget))
    return 1 - _below(within, threshold - shift(auc), heavy=True)


@lru_cache
def true_auc(within: float, auc: float, *, heavy: bool, kind: str = "one") -> float:
    """Area of scores that would be ``auc`` were they normal; of half of them common, or noisy.

    Half of the variance of many attacks' scores is common; noisy ones have as much
    again.
    """
    if not heavy:
        return NORMAL.cdf(shift(auc) / 2) if kind == "noisy" else auc
    noise = _distribution(within)
    if kind == "half":
        noise = (noise + _distribution(within, 1)) / 2**0.5
    if kind == "noisy":
        noise = noise + np.random.default_rng(2).normal(size=noise.size)
    member = np.arange(noise.size) < noise.size // 2
    return roc_auc(member, noise + shift(auc) * member)


def shift(auc: float) -> float:
    """Distance of two normal distributions whose area is an AUC."""
    return 2**0.5 * NORMAL.inv_cdf(auc)


def texts(case: Case, rng: np.random.Generator) -> Texts:
    if case.groups == 0:
        member = np.arange(2 * case.n) < case.n
        return Texts(member=member, cluster=None, within=0.0)
    sides = [case.giants[0]] if case.mixed else list(case.giants)
    sizes = np.concatenate([_sizes(case, giant, rng) for giant in sides])
    cluster = np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)
    member = rng.random(cluster.size) < 0.5 if case.mixed else cluster < case.groups
    return Texts(member=member, cluster=cluster, within=case.within, heavy=case.heavy)


def _sizes(case: Case, giant: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Texts of each group of a class."""
    if case.sizes == "uneven":
        return np.asarray(rng.integers(1, 2 * case.n, case.groups))
    weights = np.ones(case.groups)
    if case.sizes == "zipf":
        weights /= np.arange(1, case.groups + 1)
    if giant:
        weights[0] = giant / (1 - giant) * (case.groups - 1)
    shares = weights / weights.sum()
    return np.asarray(np.maximum(1, np.round(shares * case.n * case.groups)), np.int64)


def simulate(case: Case, rng: np.random.Generator) -> tuple[bool, float] | None:
    """Make one run; whether the interval holds the truth, and its width."""
    made = texts(case, rng)
    if case.figure == "simultaneous":
        return of_many(case, made, rng)
    interval, truth = _MAKERS[case.figure](case, made, rng)
    if interval is None:
        return None
    return interval.low <= truth <= interval.high, interval.high - interval.low


def there(value: Value | None) -> Value:
    """Where it must be there."""
    if value is None:
        msg = "there is no interval"
        raise ValueError(msg)
    return value


def classes(made: Texts, score: NDArray[np.float64]) -> Classes:
    row = np.arange(score.size)
    return Classes(
        member=made.member, score=score, cluster=made.cluster, row=row, n_unscored=0
    )


def of_row(row: dict[str, Any]) -> Interval | None:
    if row.get("low") is None:
        return None
    return Interval(
        low=row["low"], high=row["high"], confidence=0.95, method=row["method"]
    )


def of_auc(case: Case, made: Texts, rng: np.random.Generator) -> Found:
    score = made.score(case.auc, rng)
    estimate, _ = estimate_auc(made.member, score, made.cluster)
    truth = true_auc(made.within, case.auc, heavy=made.heavy)
    return estimate_interval(estimate), truth


def of_balanced_accuracy(case: Case, made: Texts, rng: np.random.Generator) -> Found:
    """At the best threshold."""
    score = made.score(case.auc, rng)
    row = balanced_accuracy(classes(made, score), shift(case.auc) / 2)
    return of_row(row), made.below(shift(case.auc) / 2)


def of_tpr(case: Case, made: Texts, rng: np.random.Generator) -> Found:
    truth = true_tpr(made.within, case.auc, case.budget, heavy=made.heavy)
    score = made.score(case.auc, rng)
    rows = {
        row["fpr"]: row
        for row in metric_rows(classes(made, score))
        if row["metric"] == "tpr_at_fpr"
    }
    return of_row(rows[case.budget]), truth


def of_fpr(case: Case, made: Texts, rng: np.random.Generator) -> Found:
    """True FPR of the threshold that spends the budget on these non-members."""
    found = classes(made, made.score(case.auc, rng))
    truth = 1 - made.below(found.curve.at_fpr(case.budget).threshold)
    rows = {
        row["fpr"]: row
        for row in metric_rows(found)
        if row["metric"] == "fpr_at_threshold"
    }
    return of_row(rows[case.budget]), truth


def of_difference(case: Case, made: Texts, rng: np.random.Generator) -> Found:
    """Two attacks, of which the second adds noise, of each text alone, to the first."""
    first = made.score(case.auc, rng)
    noisy = first + rng.normal(size=first.size)
    found = auc_difference(made.member, first, noisy, cluster=made.cluster)
    areas = (
        true_auc(made.within, case.auc, heavy=made.heavy, kind=kind)
        for kind in ("one", "noisy")
    )
    return found.interval, next(areas) - next(areas)


def of_macro(case: Case, made: Texts, rng: np.random.Generator) -> Found:
    """Average over buckets of which each is harder than the one before."""
    areas = [case.auc - 0.05 * number for number in range(BUCKETS)]
    of_buckets: list[tuple[dict[str, int], list[dict[str, Any]]]] = []
    for auc in areas:
        estimate, _ = estimate_auc(made.member, made.score(auc, rng))
        row = figure("roc_auc", None, estimate.value, estimate_interval(estimate))
        of_buckets.append(({}, [row]))
    ((_, average),) = macro_averages(of_buckets, clustered=False)
    return of_row(average), float(np.mean(areas))


def of_share(case: Case, made: Texts, rng: np.random.Generator) -> Found:
    """CoDeC's share of the members that become less likely."""
    falls, cluster = _of_members(made, rng)
    table = pl.DataFrame(
        {
            "target_id": [str(number) for number in range(falls.size)],
            "role": "target",
            "member": None,
            "n_words": 100,
            "group": cluster.astype(str),
            "codec_v1": (falls < NORMAL.inv_cdf(case.auc)).astype(float),
        },
        schema_overrides={"member": pl.Boolean, "n_words": pl.UInt32},
    )
    row = codec_findings(table.lazy()).row(0, named=True)
    truth = made.below(NORMAL.inv_cdf(case.auc))
    if row["low"] is None:
        return None, truth
    return (
        Interval(low=row["low"], high=row["high"], confidence=0.95, method="share"),
        truth,
    )


def of_ratio(case: Case, made: Texts, rng: np.random.Generator) -> Found:
    """Share of each member's 5 to 20 tokens that come back."""
    easy, _, cluster = _tokens(case, made, rng)
    return ratio_of_sums(easy, cluster).interval, _comes_back(case, made)


def of_ratio_difference(case: Case, made: Texts, rng: np.random.Generator) -> Found:
    """Less the share that comes back to a weaker attack."""
    easy, hard, cluster = _tokens(case, made, rng)
    truth = _comes_back(case, made) - _comes_back(case, made, harder=1)
    return ratio_difference(easy, hard, cluster).interval, truth


def of_mean(_: Case, made: Texts, rng: np.random.Generator) -> Found:
    """Mean difference of the members' scores between two runs."""
    gaps, cluster = _of_members(made, rng)
    means = cluster_means(gaps[:, None], np.zeros(gaps.size, np.intp), cluster)
    value, half = float(means.value[0, 0]), float(means.half_widths()[0, 0])
    if np.isnan(half):
        return None, 0.0
    return (
        Interval(low=value - half, high=value + half, confidence=0.95, method="mean"),
        0.0,
    )


def _of_members(
    made: Texts, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    return made.score(0.5, rng)[made.member], there(made.cluster)[made.member].astype(
        np.intp
    )


def _tokens(
    case: Case, made: Texts, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.intp]]:
    ease, cluster = _of_members(made, rng)
    n = rng.integers(5, 21, ease.size)
    easy, hard = (
        np.array(
            [rng.binomial(n, _chance(ease + NORMAL.inv_cdf(case.auc) - less)), n], float
        )
        for less in (0, 1)
    )
    return easy, hard, cluster


@lru_cache
def _mean_chance(within: float, middle: float, *, heavy: bool) -> float:
    ease = _distribution(within)
    if not heavy:
        ease = np.random.default_rng(0).normal(size=ease.size)
    return float(np.mean(_chance(ease + middle)))


def _comes_back(case: Case, made: Texts, harder: float = 0) -> float:
    return _mean_chance(
        made.within, NORMAL.inv_cdf(case.auc) - harder, heavy=made.heavy
    )


def _chance(ease: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-2 * ease)))


_MAKERS: dict[Figure, Callable[[Case, Texts, np.random.Generator], Found]] = {
    "auc": of_auc,
    "tpr": of_tpr,
    "fpr": of_fpr,
    "balanced accuracy": of_balanced_accuracy,
    "difference": of_difference,
    "macro": of_macro,
    "share": of_share,
    "ratio": of_ratio,
    "difference of ratios": of_ratio_difference,
    "paired mean": of_mean,
}


def of_many(
    case: Case, made: Texts, rng: np.random.Generator
) -> tuple[bool, float] | None:
    """Many attacks of the same AUC, any two correlated by one half; mean distance of the bounds."""
    common = made.score(0.5, rng)
    scores = [
        (common + made.score(0.5, rng)) / 2**0.5 + shift(case.auc) * made.member
        for _ in range(case.attacks)
    ]
    tried = {
        (str(number), "all"): one.area
        for number, one in enumerate(classes(made, score) for score in scores)
    }
    lows = [
        bound.low for bound in simultaneous_bounds(tried).values() if bound is not None
    ]
    if not lows:
        return None
    truth = true_auc(made.within, case.auc, heavy=made.heavy, kind="half")
    return max(lows) <= truth, truth - float(np.mean(lows))


def coverage(case: Case, n_simulations: int) -> tuple[float, float, float]:
    """Share of intervals that hold the truth, their mean width, and the share without any."""
    seed = crc32(str(case).encode())
    found = [
        simulate(case, np.random.default_rng([seed, number]))
        for number in range(n_simulations)
    ]
    there = [one for one in found if one is not None]
    none = 1 - len(there) / n_simulations
    held, widths = zip(*there, strict=True) if there else ([np.nan], [np.nan])
    return float(np.mean(held)), float(np.mean(widths)), none


def kept(case: Case, share: float, n_simulations: int) -> bool:
    """Whether a coverage is what was promised, up to three standard errors of the simulation."""
    error = 3 * (0.05 * 0.95 / n_simulations) ** 0.5
    return share >= 0.93 - error and (
        case.promise == _AT_LEAST or share <= 0.97 + error
    )


def time_bounds() -> dict[str, Any]:
    """Time simultaneous bounds of 20 attacks on 100,000 texts."""
    rng = np.random.default_rng(0)
    made = Texts(member=np.arange(100_000) % 2 == 0, cluster=None, within=0.0)
    scores = [made.score(0.7, rng) for _ in range(20)]
    began, cpu = time.perf_counter(), time.process_time()
    found = [classes(made, score) for score in scores]
    tried = [one.area for one in found]
    simultaneous_bounds({(str(number), "all"): one for number, one in enumerate(tried)})
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"bounds of 20 attacks on 100,000 texts: {seconds:.1f} s (limit {LIMIT_S} s)")
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "limit_s": LIMIT_S,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=1_000, help="of each case")
    parser.add_argument(
        "--only", nargs="*", default=[], help="figures of the unequal cases"
    )
    asked = parser.parse_args()
    n_simulations, rows = asked.simulations, []
    cases = [case for case in UNEQUAL if case.figure in asked.only] or CASES + UNEQUAL
    print(f"{'covers':>7} {'width':>6} {'none':>6}  promised")
    for case in cases:
        share, width, none = coverage(case, n_simulations)
        ok = none == 1 or kept(case, share, n_simulations)
        print(
            f"{share:>7.3f} {width:>6.3f} {none:>6.3f}  {case.promise:<13}  {case}"
            f"{'' if ok else '  MISSED'}",
            flush=True,
        )
        rows.append(
            {
                "case": str(case),
                "promise": case.promise,
                "coverage": None if none == 1 else round(share, 4),
                "mean_width": None if none == 1 else round(width, 4),
                "without": round(none, 4),
                "kept": ok,
            }
        )
    print(machine())
    figures = {"simulations": n_simulations, "cases": rows}
    if not asked.only:
        figures["bounds"] = time_bounds()
    append_results("interval_coverage" + "_unequal" * bool(asked.only), figures)


if __name__ == "__main__":
    main()
