"""ROC curve with ties kept together, its area, and its point at a false-positive budget.

Members are the positive class and a higher score means "more likely a member". Both classes must
be present and scores finite.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["OperatingPoint", "RocCurve", "n_beaten", "pieces", "roc_auc", "roc_curve"]

_Value = TypeVar("_Value", bound=np.generic)

_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """One point of a ROC curve.

    Attributes
    ----------
    threshold
        Predicted member if ``score >= threshold``; infinite where nothing is.
    fpr
        Share of non-members predicted members, in [0, 1].
    tpr
        Share of members predicted members, in [0, 1].
    """

    threshold: float
    fpr: float
    tpr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RocCurve:
    """Every point of a ROC curve, in 8 bytes a score.

    Attributes
    ----------
    members
        Scores of the members, float64, rising; at least one.
    nonmembers
        Scores of the non-members, the same.
    """

    members: NDArray[np.float64]
    nonmembers: NDArray[np.float64]

    @property
    def threshold(self) -> NDArray[np.float64]:
        """Infinity, then every distinct score, falling."""
        scores = np.unique(np.concatenate([self.members, self.nonmembers]))
        return np.append(scores, np.inf)[::-1]

    @property
    def fpr(self) -> NDArray[np.float64]:
        """False-positive rate at each threshold, in [0, 1], rising."""
        return _share_from(self.nonmembers, self.threshold)

    @property
    def tpr(self) -> NDArray[np.float64]:
        """True-positive rate at each threshold, in [0, 1], rising."""
        return _share_from(self.members, self.threshold)

    @property
    def area(self) -> float:
        """Probability that a member outscores a non-member, ties one half; in [0, 1]."""
        won = sum(n_beaten(some, self.nonmembers).sum() for some in pieces(self.members))
        return float(won / (self.members.size * self.nonmembers.size))

    def point(self, threshold: float) -> OperatingPoint:
        """Point at a threshold."""
        return OperatingPoint(
            threshold=threshold,
            fpr=float(_share_from(self.nonmembers, threshold)),
            tpr=float(_share_from(self.members, threshold)),
        )

    def at_fpr(self, budget: float) -> OperatingPoint:
        """Point of the largest TPR whose empirical FPR is **at most** the budget.

        Neither interpolated nor nearest: the budget is never exceeded.

        Where no score can be flagged within the budget, the threshold is infinite.
        """
        n = self.nonmembers.size
        spared = n - bisect_right(range(n + 1), budget, key=lambda flagged: flagged / n) + 1
        classes = (self.members, self.nonmembers)
        if spared == 0:
            return self.point(float(min(scores[0] for scores in classes)))
        highest_spared = self.nonmembers[spared - 1]
        above = [scores[scores.searchsorted(highest_spared, side="right") :] for scores in classes]
        return self.point(
            float(min((scores[0] for scores in above if scores.size), default=np.inf))
        )

    def widest_gap(self) -> OperatingPoint:
        """Point of the largest TPR - FPR; of several, the one with the highest threshold."""
        return self.point(float(self.threshold[np.argmax(self.tpr - self.fpr)]))


def roc_curve(member: NDArray[np.bool_], score: NDArray[np.float64]) -> RocCurve:
    """Make the ROC curve over every distinct score; equal scores move together."""
    members, nonmembers = score[member], score[~member]
    members.sort()
    nonmembers.sort()
    return RocCurve(members=members, nonmembers=nonmembers)


def roc_auc(member: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """Probability that a member outscores a non-member, ties one half."""
    return roc_curve(member, score).area


def n_beaten(scores: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Count for each score the others below it, ties one half."""
    below, not_above = (others.searchsorted(scores, side=side) for side in ("left", "right"))
    return (below + not_above) / 2


def pieces(values: NDArray[_Value]) -> Iterator[NDArray[_Value]]:
    """Cut an array, so that what is made of it needs little room at a time."""
    for start in range(0, values.size, _AT_ONCE):
        yield values[start : start + _AT_ONCE]


def _share_from(
    scores: NDArray[np.float64], threshold: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Share of rising scores that reach a threshold."""
    return (scores.size - scores.searchsorted(threshold, side="left")) / scores.size
