"""What a design finds on average: whole audits of made-up scores, by the tests of a real one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mia_batch.errors import SettingsError
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.few_books import top_bound
from mia_batch.inference.groups import permuted_sums
from mia_batch.inference.power import LEVEL, nulls_to_name

if TYPE_CHECKING:
    from mia_batch.inference.conformal import Adjustment

__all__ = ["Design", "Found", "area_of", "effect_of", "simulate"]

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
            msg = (
                f"{self.members:,} members cannot be among {self.asked:,} that are asked about; "
                "give 1 or more, and at most as many as are asked about"
            )
            raise SettingsError(msg)

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
