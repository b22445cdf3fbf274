"""How unlike targets and non-members are, and how unlike they would have to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.verdict.exclusions import excluded
from mia_batch.verdict.labelled.intervals import Interval, auc_interval
from mia_batch.verdict.labelled.roc import RocCurve

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SideDifference", "odds_factor", "side_difference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideDifference:
    """How well a number that no model made, such as a length, tells targets from non-members.

    Attributes
    ----------
    what
        Name of the number, such as ``lengths``.
    auc
        Probability that a target's is the larger one, ties one half; in [0, 1].
    interval
        Its interval.
    """

    what: str
    auc: float
    interval: Interval

    @property
    def excluded_above(self) -> float:
        """The AUC, in either direction, above which differences are excluded; in [0.5, 1]."""
        return max(self.interval.high, 1 - self.interval.low)

    @property
    def sentence(self) -> str:
        """What may be said; never that the texts are exchangeable."""
        return (
            f"{self.what} of targets and non-members: AUC {self.auc:.2f}; "
            f"{excluded(self.excluded_above)}"
        )


def side_difference(
    targets: NDArray[np.float64], nulls: NDArray[np.float64], what: str
) -> SideDifference | None:
    """Compare a number between targets and non-members.

    Parameters
    ----------
    targets
        One finite number per independent target: where texts share a group, one per group.
    nulls
        The same of the non-members.
    what
        What to call the number, in the plural.

    Returns
    -------
    SideDifference | None
        The comparison; none where either side is empty.
    """
    if not (targets.size and nulls.size):
        return None
    auc = RocCurve(members=np.sort(targets), nonmembers=np.sort(nulls)).area
    return SideDifference(what=what, auc=auc, interval=auc_interval(targets, nulls))


def odds_factor(p: NDArray[np.float64], level: float = 0.05) -> NDArray[np.float64]:
    r"""How much likelier a target would have to score high, without membership, to undo a p-value.

    Of n + 1 texts, one a target, exchangeability gives the target each rank with the same
    probability. Let instead its odds of one rank against another be up to \(\Gamma\) times as
    large. A target in the first k = p (n + 1) ranks is then likeliest where these ranks have
    weight \(\Gamma\) and the others 1: its probability is at most
    \(\Gamma k / (\Gamma k + n + 1 - k)\), the largest p-value under such a bias. It exceeds the
    level a where

    .. math:: \Gamma > \frac{(n + 1) / k - 1}{1 / a - 1} = \frac{1 / p - 1}{1 / a - 1}

    Parameters
    ----------
    p
        p-values in (0, 1]; NaN = missing.
    level
        The level a, in (0, 1).

    Returns
    -------
    ndarray
        The odds factor, at least 1; NaN where p is missing or above the level already.

    References
    ----------
    Rosenbaum (1987), "Sensitivity analysis for certain permutation inferences in matched
    observational studies", for the idea and the name \(\Gamma\); the bound is that of one rank.
    """
    low = np.where(p <= level, p, np.nan)
    # Rounding keeps p = level at 1.
    factors: NDArray[np.float64] = np.round((1 / low - 1) / (1 / level - 1), 12)
    return factors
