"""What the planned test can show at best, and what a design finds on average."""

from dataclasses import dataclass
from itertools import count
from math import ceil
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from mia_batch.errors import SettingsError
from mia_batch.inference.comparison import permuted_sums
from mia_batch.inference.conformal import Adjustment, p_values, q_values
from mia_batch.inference.e_values import plan_rounds
from mia_batch.inference.sets import top_bound
from mia_batch.stats import Floats

LEVEL = 0.05  # of a collection's p-value


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What so many targets against so many nulls can show."""

    unit: str = "text"  # or document, group, book
    n_tests: int  # targets, or groups of them
    n_usable: int  # those that can be compared
    # Non-members, or groups of them, to compare with; the most of one length
    n_null: float
    adjustment: Adjustment
    smallest_p: float | None
    # Fewest that can be reported, each beating every null; None: none can be
    needed: int | None
    together: float = 1.0  # smallest p-value of all groups together
    for_bound: int | None = None  # that beat every null for a lower bound of one member


def compute_power(
    n_tests: int,
    n_null: float,
    q: float,
    adjustment: Adjustment,
) -> Power:
    """Return what so many tests against the same nulls can show."""
    smallest = np.full(n_tests, least_p(n_null, q, adjustment))
    return power_from_p_values(smallest, n_null, q, adjustment)


def power_from_p_values(
    smallest: Floats,
    n_null: float,
    q: float,
    adjustment: Adjustment,
) -> Power:
    """Return what tests can show whose smallest possible p-values are these (NaN = none)."""
    # Under Benjamini-Hochberg r of m targets are reported where each p-value is at most
    # r q / m, and none is below 1 / (n + 1): so r is at least ceil(m / (q (n + 1))).
    n_tests = smallest.size
    ordered = np.sort(smallest)  # NaN is last
    ranks = np.arange(1, n_tests + 1)
    needed_ranks = ordered * n_tests / _adjusted_q(q, adjustment, n_tests)
    enough = np.flatnonzero(np.round(needed_ranks, 9) <= ranks)
    n_usable = int(np.sum(~np.isnan(smallest)))
    return Power(
        n_tests=n_tests,
        n_usable=n_usable,
        n_null=n_null,
        adjustment=adjustment,
        smallest_p=float(ordered[0]) if n_usable else None,
        needed=int(ranks[enough[0]]) if enough.size else None,
    )


def _adjusted_q(
    q: float,
    adjustment: Adjustment,
    n_tests: int,
) -> float:
    if adjustment != "by":
        return q
    return q / float((1 / np.arange(1, n_tests + 1)).sum())


def least_p(
    n_null: float,
    q: float,
    adjustment: Adjustment,
) -> float:
    if adjustment == "e-bh":
        rounds = plan_rounds(1, int(n_null), q)
        return 1 / rounds.values[0]
    return 1 / (n_null + 1)


def nulls_to_name(
    n_named: int,
    n_tests: int,
    q: float,
    adjustment: Adjustment,
) -> int:
    """Return the fewest nulls with which so many targets that beat all of them are named."""
    limit = _adjusted_q(q, adjustment, n_tests) * n_named / n_tests
    fewest = ceil(round(1 / limit, 9)) - 1
    return next(
        n_null
        for n_null in count(fewest)
        if round(least_p(n_null, q, adjustment) / limit, 9) <= 1
    )


# What a design finds on average: whole audits of made-up scores, by the tests of a real
# one.

_MOST_AUDITS = 1_000
_MOST_SCORES = 500_000  # of all audits together; large designs vary less


class AuditOutcome(NamedTuple):
    """What audits of one design find; averages unless another is named."""

    n_null: int
    named: float  # members on the list
    any_named: float  # share of audits with a member on the list
    false: float  # share of the list that is no member
    at_least: float  # lower bound for the members, its median
    together: float  # share of audits in which all together have p <= 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """So many units (texts, or groups of them) are asked about, and some are members."""

    # Scores of units are normal with standard deviation 1, those of members ``effect``
    # higher.

    n_units: int
    members: int
    effect: float
    q: float = 0.05
    adjustment: Adjustment = "bh"

    def __post_init__(self) -> None:
        if not 1 <= self.members <= self.n_units:
            raise SettingsError(
                f"{self.members:,} members cannot be among {self.n_units:,} that are"
                " asked about; give 1 or more, and at most as many as are asked about"
            )

    def sizes(self) -> list[int]:
        """List numbers of nulls to try, doubled until they hardly limit a list."""
        n_nulls = nulls_to_name(self.members, self.n_units, self.q, self.adjustment)
        sizes = [10]
        while sizes[-1] < max(4 * n_nulls, 160):
            sizes.append(2 * sizes[-1])
        return sizes


def compute_effect(area: float) -> float:
    """Return how much higher members score whose ROC AUC is ``area``."""
    return 2**0.5 * NormalDist().inv_cdf(area)


def compute_area(effect: float) -> float:
    """Return the ROC AUC of members that score so much higher."""
    return NormalDist().cdf(effect / 2**0.5)


def simulate(
    design: Design,
    n_null: int,
    *,
    seed: int = 0,
) -> AuditOutcome:
    n_units = design.n_units
    members = design.members
    n_audits = _MOST_SCORES // (n_units + n_null)
    n_audits = min(_MOST_AUDITS, max(100, n_audits))
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_audits, n_units))
    scores[:, :members] += design.effect
    nulls = np.sort(rng.standard_normal((n_audits, n_null)))
    audits = [*zip(scores, nulls, strict=True)]
    p = np.array([p_values(*audit) for audit in audits])
    is_listed = q_values(p, design.adjustment) <= design.q
    n_listed = is_listed.sum(axis=1)
    n_named = is_listed[:, :members].sum(axis=1)
    n_false = n_listed - n_named
    bounds = [
        top_bound(unit_scores, n_units, null_scores).at_least
        for unit_scores, null_scores in audits
    ]
    ranks = np.arange(n_units + n_null, dtype=np.float64)
    rank_sums, method = permuted_sums(ranks[None], n_units, seed)
    if method != "permutation_exact":
        rank_sums[0] = np.inf  # the observed order, of whichever audit
    n_below = n_null + 1 - p * (n_null + 1)  # nulls that score lower
    observed_sums = n_below.sum(axis=1).round() + ranks[:n_units].sum()
    together = [
        (rank_sums >= observed_sum).mean() <= LEVEL for observed_sum in observed_sums
    ]
    return AuditOutcome(
        n_null=n_null,
        named=float(n_named.mean()),
        any_named=float((n_named > 0).mean()),
        false=float((n_false / np.maximum(n_listed, 1)).mean()),
        at_least=float(np.median(bounds)),
        together=float(np.mean(together)),
    )
