"""The SaMIA authors' own metrics, for comparison with their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.roc import roc_curve

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["N_FOLDS", "accuracy_5_fold", "tpr_nearest_fpr"]

N_FOLDS = 5

_FOLD_SEED = 0


def tpr_nearest_fpr(member: NDArray[np.bool_], score: NDArray[np.float64], fpr: float) -> float:
    """TPR at the ROC point whose FPR is nearest to the given one; it **may exceed** it.

    Of points equally near, the one with the highest threshold counts. The curve leaves out points
    on straight lines between their neighbours, as the authors' code does.

    References
    ----------
    Kaneko et al. (2024), arXiv:2404.11262v2, appendix B; the rule is that of the authors' code.
    """
    from sklearn.metrics import roc_curve as sklearn_roc_curve

    rates, tpr, _ = sklearn_roc_curve(member, score)
    return float(tpr[np.argmin(np.abs(rates - fpr))])


def accuracy_5_fold(member: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """Accuracy in 5-fold cross-validation, the mean over folds.

    The threshold is the one that maximises TPR - FPR on the other four folds; of several, the
    highest. Folds are drawn within each class from a fixed seed, so the same texts in the same
    order give the same folds.

    References
    ----------
    Kaneko et al. (2024), arXiv:2404.11262v2, section 3.5.
    """
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=_FOLD_SEED)
    accuracies = []
    for train, test in folds.split(score, member):
        threshold = roc_curve(member[train], score[train]).widest_gap().threshold
        accuracies.append(np.mean((score[test] >= threshold) == member[test]))
    return float(np.mean(accuracies))
