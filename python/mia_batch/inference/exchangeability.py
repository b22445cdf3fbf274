"""How unlike targets and non-members are, and how unlike they would have to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.diagnostics.exclusions import excluded
from mia_batch.stats.intervals import Interval, auc_interval
from mia_batch.stats.roc import RocCurve

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LengthDifference", "compare_lengths", "odds_factor"]

_LEVEL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDifference:
    """How well lengths, which no model made, tell targets from non-members.

    Attributes
    ----------
    auc
        Probability that a target is the longer one, ties one half; in [0, 1].
    interval
        Its interval.
    """

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
            f"lengths of targets and non-members: AUC {self.auc:.2f}; "
            f"{excluded(self.excluded_above)}"
        )


def compare_lengths(
    targets: NDArray[np.float64], nulls: NDArray[np.float64]
) -> LengthDifference | None:
    """Compare the lengths of targets and non-members.

    Parameters
    ----------
    targets
        One finite length per independent target: where texts share a group, one per group.
    nulls
        The same of the non-members.

    Returns
    -------
    LengthDifference | None
        The comparison; none where either side is empty.
    """
    if not (targets.size and nulls.size):
        return None
    auc = RocCurve(members=np.sort(targets), nonmembers=np.sort(nulls)).area
    return LengthDifference(auc=auc, interval=auc_interval(targets, nulls))


def odds_factor(p: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""How much likelier a target would have to score high, without membership, to undo a p-value.

    Of n + 1 texts, one a target, exchangeability gives the target each rank with the same
    probability. Let instead its odds of one rank against another be up to \(\Gamma\) times as
    large. A target in the first k = p (n + 1) ranks is then likeliest where these ranks have
    weight \(\Gamma\) and the others 1: its probability is at most
    \(\Gamma k / (\Gamma k + n + 1 - k)\), the largest p-value under such a bias. It exceeds the
    level a = 0.05 where

    .. math:: \Gamma > \frac{(n + 1) / k - 1}{1 / a - 1} = \frac{1 / p - 1}{1 / a - 1}

    Parameters
    ----------
    p
        p-values in (0, 1]; NaN = missing.

    Returns
    -------
    ndarray
        The odds factor, at least 1; NaN where p is missing or above 0.05 already.

    References
    ----------
    Rosenbaum (1987), "Sensitivity analysis for certain permutation inferences in matched
    observational studies", for the idea and the name \(\Gamma\); the bound is that of one rank.
    """
    low = np.where(p <= _LEVEL, p, np.nan)
    # Rounding keeps p = 0.05 at 1.
    factors: NDArray[np.float64] = np.round((1 / low - 1) / (1 / _LEVEL - 1), 12)
    return factors
