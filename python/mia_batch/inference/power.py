"""What the planned test can show at best, and what a design finds on average."""

from dataclasses import dataclass
from itertools import count, repeat
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
    n_null: float  # that they can be compared with: non-members, or groups; the most of one length
    adjustment: Adjustment
    smallest_p: float | None
    # Fewest that can be reported, each beating every null; None: none can be
    needed: int | None
    together: float = 1.0  # smallest p-value of all groups together
    for_bound: int | None = None  # that beat every null for a lower bound of one member


def power(n_tests: int, n_null: float, q: float, adjustment: Adjustment) -> Power:
    return power_of(
        np.full(n_tests, least_p(n_null, q, adjustment)), n_null, q, adjustment
    )


def power_of(
    smallest: Floats, n_null: float, q: float, adjustment: Adjustment
) -> Power:
    """Say what tests can show whose smallest possible p-values are these (NaN = none)."""
    # Under Benjamini-Hochberg r of m targets are reported where each p-value is at most
    # r q / m, and none is below 1 / (n + 1): so r is at least ceil(m / (q (n + 1))).
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


def least_p(n_null: float, q: float, adjustment: Adjustment) -> float:
    e_values = adjustment == "e-bh"
    return 1 / (plan_rounds(1, int(n_null), q).values[0] if e_values else n_null + 1)


def nulls_to_name(n_named: int, n_tests: int, q: float, adjustment: Adjustment) -> int:
    """Return the fewest nulls with which so many of m targets that beat all of them are named."""
    least = _share(q, adjustment, n_tests) * n_named / n_tests
    fewest = ceil(round(1 / least, 9)) - 1
    return next(
        n for n in count(fewest) if round(least_p(n, q, adjustment) / least, 9) <= 1
    )


# What a design finds on average: whole audits of made-up scores, by the tests of a real
# one.

_DRAWN = 1_000  # audits
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

    asked: int
    members: int
    effect: float
    q: float = 0.05
    adjustment: Adjustment = "bh"

    def __post_init__(self) -> None:
        if not 1 <= self.members <= self.asked:
            raise SettingsError(
                f"{self.members:,} members cannot be among {self.asked:,} that are"
                " asked about; give 1 or more, and at most as many as are asked about"
            )

    def sizes(self) -> list[int]:
        """List numbers of nulls to try, doubled until they hardly limit a list of all members."""
        most = 4 * nulls_to_name(self.members, self.asked, self.q, self.adjustment)
        tried = [10]
        while tried[-1] < max(most, 160):
            tried.append(2 * tried[-1])
        return tried


def effect_of(area: float) -> float:
    return 2**0.5 * NormalDist().inv_cdf(area)


def area_of(effect: float) -> float:
    return NormalDist().cdf(effect / 2**0.5)


def simulate(design: Design, n_null: int, *, seed: int = 0) -> AuditOutcome:
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
    return AuditOutcome(
        n_null=n_null,
        named=float(named.mean()),
        any_named=float((named > 0).mean()),
        false=float(((reported - named) / np.maximum(reported, 1)).mean()),
        at_least=float(np.median(bounds)),
        together=float(np.mean(together)),
    )
