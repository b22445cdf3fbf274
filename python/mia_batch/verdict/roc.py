"""ROC curve with ties kept together, its area, and its point at a false-positive budget.

Members are the positive class and a higher score means "more likely a member". Both classes must
be present and scores finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["OperatingPoint", "RocCurve", "roc_auc", "roc_curve"]


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
    """Every point of a ROC curve, from the highest threshold to the lowest.

    Attributes
    ----------
    threshold
        Float64, infinity first, then every distinct score, falling.
    fpr
        Float64 in [0, 1], same length, rising.
    tpr
        Float64 in [0, 1], same length, rising.
    """

    threshold: NDArray[np.float64]
    fpr: NDArray[np.float64]
    tpr: NDArray[np.float64]

    def point(self, index: int) -> OperatingPoint:
        """Point at a position of the curve.

        Parameters
        ----------
        index
            Position.

        Returns
        -------
        OperatingPoint
            The point.
        """
        return OperatingPoint(
            threshold=float(self.threshold[index]),
            fpr=float(self.fpr[index]),
            tpr=float(self.tpr[index]),
        )

    def at_fpr(self, budget: float) -> OperatingPoint:
        """Point of the largest TPR whose empirical FPR is **at most** the budget.

        Neither interpolated nor nearest: the budget is never exceeded.

        Parameters
        ----------
        budget
            False-positive rate, in [0, 1].

        Returns
        -------
        OperatingPoint
            The point; where no score can be flagged within the budget, its threshold is infinite.
        """
        return self.point(int(np.searchsorted(self.fpr, budget, side="right")) - 1)

    def widest_gap(self) -> OperatingPoint:
        """Point of the largest TPR - FPR; of several, the one with the highest threshold.

        Returns
        -------
        OperatingPoint
            The point.
        """
        return self.point(int(np.argmax(self.tpr - self.fpr)))


def roc_curve(member: NDArray[np.bool_], score: NDArray[np.float64]) -> RocCurve:
    """ROC curve over every distinct score; equal scores move together.

    Parameters
    ----------
    member
        Whether each text is a member.
    score
        Score of each text, same length.

    Returns
    -------
    RocCurve
        Distinct scores + 1 points, from (0, 0) to (1, 1).
    """
    from sklearn.metrics import roc_curve as sklearn_roc_curve

    fpr, tpr, threshold = sklearn_roc_curve(member, score, drop_intermediate=False)
    return RocCurve(threshold=threshold, fpr=fpr, tpr=tpr)


def roc_auc(member: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """Probability that a member outscores a non-member, ties one half.

    Parameters
    ----------
    member
        Whether each text is a member.
    score
        Score of each text, same length.

    Returns
    -------
    float
        Area under the ROC curve, in [0, 1].
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(member, score))
