"""What the planned test can show at best, and how many comparison texts it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count, repeat
from math import ceil
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mia_batch.errors import SettingsError
from mia_batch.inference.comparison import (
    n_orders,
    permuted_sums,
    read_comparison_sets,
    windows_per_group,
)
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.e_values import plan_rounds
from mia_batch.inference.few_books import needed_for_bound, top_bound
from mia_batch.inference.findings import finding_rows
from mia_batch.inference.levels import TargetTest

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets
    from mia_batch.inference.conformal import Adjustment
    from mia_batch.inference.findings import VerdictPlan


# What the planned test can show at best, from the targets alone.


LEVEL = 0.05  # of a collection's p-value
_BOOK = r"\.(txt|epub|x?html?)$"  # a book's group is the name of its file
_NAMED = 5  # as many as a user may hope for


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What so many targets against so many nulls can show."""

    unit: str = "text"  # or document, group, book
    n_tests: int  # targets, or groups of them
    n_usable: int  # those that can be compared
    n_null: float  # that they can be compared with: non-members, or groups; the most of one length
    adjustment: Adjustment
    smallest_p: float | None
    needed: int | None  # fewest that can be reported, each beating every null; None: none can be
    together: float = 1.0  # smallest p-value of all groups together
    for_bound: int | None = None  # that beat every null for a lower bound of one member


def power(n_tests: int, n_null: float, q: float, adjustment: Adjustment) -> Power:
    """Say what m tests against n independent nulls can show at best; see `_power`."""
    return _power(np.full(n_tests, _least(n_null, q, adjustment)), n_null, q, adjustment)


def _power(smallest: NDArray[np.float64], n_null: float, q: float, adjustment: Adjustment) -> Power:
    """Say what tests can show whose smallest possible p-values are these (NaN = none).

    Under Benjamini-Hochberg r of m targets are reported where each p-value is at most r q / m, and
    none is below 1 / (n + 1): so r is at least ceil(m / (q (n + 1))), and so many targets that
    beat every null are reported. Nothing can be where r > m, that is, where n + 1 < 1 / q.
    Benjamini-Yekutieli divides q by the sum of 1 / i up to m; of e-BH p is one over an e-value.
    """
    ordered, ranks = np.sort(smallest), np.arange(1, smallest.size + 1)  # NaN is last
    wanted = np.round(ordered * smallest.size / _share(q, adjustment, smallest.size), 9)
    enough = np.flatnonzero(wanted <= ranks)
    usable = int(np.sum(~np.isnan(smallest)))
    return Power(
        n_tests=smallest.size,
        n_usable=usable,
        n_null=n_null,
        adjustment=adjustment,
        smallest_p=float(ordered[0]) if usable else None,
        needed=int(ranks[enough[0]]) if enough.size else None,
    )


def _share(q: float, adjustment: Adjustment, n_tests: int) -> float:
    return q / float((1 / np.arange(1, n_tests + 1)).sum()) if adjustment == "by" else q


def _least(n_null: float, q: float, adjustment: Adjustment) -> float:
    """Return the smallest p-value, of e-BH one over the largest e-value."""
    e_values = adjustment == "e-bh"
    return 1 / (plan_rounds(1, int(n_null), q).values[0] if e_values else n_null + 1)


def nulls_to_name(n_named: int, n_tests: int, q: float, adjustment: Adjustment) -> int:
    """Return the fewest nulls with which so many of m targets that beat all of them are named."""
    least = _share(q, adjustment, n_tests) * n_named / n_tests
    fewest = ceil(round(1 / least, 9)) - 1
    return next(n for n in count(fewest) if round(_least(n, q, adjustment) / least, 9) <= 1)


def planned_power(targets: pl.LazyFrame, plan: VerdictPlan) -> Power | None:
    """Power of the planned test; None without targets or nulls."""
    sets = read_comparison_sets(targets, named=plan.level != "target")
    if not (sets.targets.size and sets.nulls.size):
        return None
    n_windows = windows_per_group(sets, plan)
    groups, nulls = (
        np.unique(sets.cluster[rows], return_counts=True)[1] >= n_windows
        for rows in (sets.targets, sets.nulls)
    )
    n_groups, n_null = int(groups.sum()), int(nulls.sum())
    if plan.level == "target":
        test = TargetTest(sets, plan)
        best = np.ones(sets.target_id.len())
        best[sets.nulls] = 0
        found = _power(test.p_values(best)[0], test.n_null, plan.q, test.adjustment)
        independent = not (plan.length_edges or sets.share_clusters(sets.targets, sets.nulls))
    else:
        smallest = np.where(groups, _least(n_null, plan.q, plan.adjustment), np.nan)
        found = _power(smallest, n_null, plan.q, plan.adjustment)
        independent = n_null > 0
    return replace(
        found,
        unit=_unit(sets, plan),
        together=1 / n_orders(n_groups, n_null),
        for_bound=needed_for_bound(found.n_tests, int(found.n_null)) if independent else None,
    )


def _unit(sets: ComparisonSets, plan: VerdictPlan) -> str:
    """Name what is asked about as its user does."""
    if plan.level == "target":
        return "text"
    names = sets.clusters[np.unique(sets.cluster[sets.targets])]
    if (names["level"] != "group").all():
        return "document"
    return "book" if names["key"].str.contains(_BOOK).all() else "group"


def power_findings(targets: pl.LazyFrame, plan: VerdictPlan) -> pl.DataFrame:
    """Rows of check ``power`` about the planned level; none without targets or nulls.

    The verdict of ``n_tests`` says what they are: ``text``, ``document``, ``group`` or ``book``;
    those of ``needed`` (not of a collection), ``for_bound`` and ``together``, the smallest p-value
    of all groups together, are ``possible`` or ``impossible``. With ``nulls_needed`` nulls
    ``n_named`` that beat all of them are reported, or a collection's p-value can be 0.05.
    """
    found = planned_power(targets, plan)
    if found is None:
        return finding_rows("power", [])
    bucketed = plan.level == "target" and plan.length_edges
    possible = {True: "possible", False: "impossible"}
    rows: list[tuple[str, float | None, str | None]] = [
        ("n_tests", found.n_tests, found.unit),
        ("n_usable", found.n_usable, None),
        ("n_null", found.n_null, "of_one_length" if bucketed else None),
        ("together", found.together, possible[found.together <= LEVEL]),
    ]
    wanted: int | None = None
    if plan.level == "collection":
        if found.n_usable:
            wanted = next(n for n in count(1) if n_orders(found.n_usable, n) * LEVEL >= 1)
    else:
        named = min(_NAMED, found.n_usable)
        named = 1 if found.needed and found.needed <= named else named
        if named:
            wanted = nulls_to_name(named, found.n_tests, plan.q, found.adjustment)
        rows += [
            ("smallest_p", found.smallest_p, None),
            ("q", plan.q, found.adjustment),
            ("needed", found.needed, possible[found.needed is not None]),
            ("for_bound", found.for_bound, possible[found.for_bound is not None]),
            ("n_named", named, None),
        ]
    rows.append(("nulls_needed", wanted, None))
    names = ("statistic", "value", "verdict")
    return finding_rows(
        "power", [{"subject": plan.level} | dict(zip(names, row, strict=True)) for row in rows]
    )


# What a design finds on average: whole audits of made-up scores, by the tests of a real one.


_DRAWN = 1_000  # audits
_MOST_SCORES = 500_000  # of all audits together; large designs vary less


class Found(NamedTuple):
    """What audits of one design find; averages unless another is named."""

    n_null: int
    named: float  # members on the list
    any_named: float  # share of audits with a member on the list
    false: float  # share of the list that is no member
    at_least: float  # lower bound for the members, its median
    together: float  # share of audits in which all together have p <= 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """So many units (texts, or groups of them) are asked about, and some are members.

    Scores of units are normal with standard deviation 1, those of members ``effect`` higher.
    """

    asked: int
    members: int
    effect: float
    q: float = 0.05
    adjustment: Adjustment = "bh"

    def __post_init__(self) -> None:
        if not 1 <= self.members <= self.asked:
            raise SettingsError(
                f"{self.members:,} members cannot be among {self.asked:,} that are asked about; "
                "give 1 or more, and at most as many as are asked about"
            )

    def sizes(self) -> list[int]:
        """List numbers of nulls to try, doubled until they hardly limit a list of all members."""
        most = 4 * nulls_to_name(self.members, self.asked, self.q, self.adjustment)
        tried = [10]
        while tried[-1] < max(most, 160):
            tried.append(2 * tried[-1])
        return tried


def effect_of(area: float) -> float:
    """Return how many standard deviations apart scores have this AUC."""
    return 2**0.5 * NormalDist().inv_cdf(area)


def area_of(effect: float) -> float:
    """Return the AUC of normal scores so many standard deviations apart."""
    return NormalDist().cdf(effect / 2**0.5)


def simulate(design: Design, n_null: int, *, seed: int = 0) -> Found:
    """Audit 1,000 sets of scores by the tests of `verdicts`; fewer of large designs."""
    asked, members = design.asked, design.members
    n_audits = min(_DRAWN, max(100, _MOST_SCORES // (asked + n_null)))
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_audits, asked))
    scores[:, :members] += design.effect
    nulls = np.sort(rng.standard_normal((n_audits, n_null)))
    p = np.array([p_values(*audit) for audit in zip(scores, nulls, strict=True)])
    listed = q_values(p, design.adjustment) <= design.q
    named, reported = listed[:, :members].sum(axis=1), listed.sum(axis=1)
    bounds = [top_bound(*audit).at_least for audit in zip(scores, repeat(asked), nulls)]
    ranks = np.arange(asked + n_null, dtype=np.float64)
    sums, method = permuted_sums(ranks[None], asked, seed)
    if method != "permutation_exact":
        sums[0] = np.inf  # the observed order, of whichever audit
    below = n_null + 1 - p * (n_null + 1)  # nulls that score lower
    observed = below.sum(axis=1).round() + ranks[:asked].sum()
    together = [(sums >= each).mean() <= LEVEL for each in observed]
    return Found(
        n_null=n_null,
        named=float(named.mean()),
        any_named=float((named > 0).mean()),
        false=float(((reported - named) / np.maximum(reported, 1)).mean()),
        at_least=float(np.median(bounds)),
        together=float(np.mean(together)),
    )
