"""Classifiers tried on folds they were not trained on, for true and for permuted labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.folds import permute_labels
from mia_batch.stats.intervals import Interval, auc_interval
from mia_batch.stats.roc import roc_auc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from mia_batch.diagnostics.blind.classifiers import Classifier
    from mia_batch.stats.folds import Folds

__all__ = ["Outcome", "cross_validate"]

_SETS_AT_ONCE = 50
"""Sets of labels that a classifier learns together; bounds the memory of naive Bayes."""

_DECIMALS = 9
"""Beyond them, scores of equal texts may differ with their places in a matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How well a classifier tells the classes apart on texts it was not trained on.

    Attributes
    ----------
    label
        Class of each text.
    score
        Share of the texts of its fold that score below a text, ties and itself one half: in
        (0, 1), comparable across folds.
    auc
        ROC AUC of the score.
    permuted
        The same under each permutation of the labels, with everything learned anew.
    """

    label: NDArray[np.bool_]
    score: NDArray[np.float64]
    auc: float
    permuted: NDArray[np.float64]

    def interval(self, confidence: float = 0.95) -> Interval:
        """Interval of the AUC to expect of such a classifier, trained on as many texts.

        Learning adds to the error of an AUC, and so do clusters. How much is measured on the
        permutations: the limits of ``auc_interval`` move away from the AUC by the ratio of its
        standard deviation there to that of independent texts and a fixed score, at least 1.

        References
        ----------
        Variance for independent texts, ties included: Lehmann (1975), "Nonparametrics", section
        1.4. That cross-validated figures vary more, and no formula says how much: Bengio and
        Grandvalet (2004), "No unbiased estimator of the variance of K-fold cross-validation".
        """
        members, nonmembers = self.score[self.label], self.score[~self.label]
        plain = auc_interval(members, nonmembers, confidence=confidence)
        spread = float(np.sqrt(np.mean((self.permuted - 0.5) ** 2)))
        expected = _null_deviation(self.score, members.size)
        wider = max(1.0, spread / expected) if expected else 1.0
        return Interval(
            low=max(0.0, self.auc - wider * (self.auc - plain.low)),
            high=min(1.0, self.auc + wider * (plain.high - self.auc)),
            confidence=confidence,
            method=f"{plain.method}_permuted",
        )


def cross_validate(
    classifiers: Mapping[str, Classifier],
    label: NDArray[np.bool_],
    folds: Folds,
    *,
    n_permutations: int,
    generator: np.random.Generator,
) -> dict[str, Outcome]:
    """Score each fold by classifiers trained on the others, for true and for permuted labels."""
    from sklearn import config_context
    from threadpoolctl import threadpool_limits

    permuted = [permute_labels(label, folds, generator) for _ in range(n_permutations)]
    labels = np.column_stack([label, *permuted])
    # One thread, because sums of several differ in the last bit, and because the matrices are
    # small; checks of a thousand small fits would take longer than the fits.
    with threadpool_limits(1), config_context(assume_finite=True, skip_parameter_validation=True):
        return {name: _outcome(model, labels, folds) for name, model in classifiers.items()}


def _outcome(classifier: Classifier, labels: NDArray[np.bool_], folds: Folds) -> Outcome:
    pieces = np.array_split(labels, -(-labels.shape[1] // _SETS_AT_ONCE), axis=1)
    shares = np.hstack([_held_out(classifier, piece, folds) for piece in pieces])
    areas = [roc_auc(label, score) for label, score in zip(labels.T, shares.T, strict=True)]
    return Outcome(
        label=labels[:, 0], score=shares[:, 0], auc=areas[0], permuted=np.array(areas[1:])
    )


def _held_out(
    classifier: Classifier, labels: NDArray[np.bool_], folds: Folds
) -> NDArray[np.float64]:
    from scipy.stats import rankdata

    shares = np.empty(labels.shape)
    fold_of_text = folds.fold_of_text
    for fold in range(folds.n_folds):
        test, train = np.flatnonzero(fold_of_text == fold), np.flatnonzero(fold_of_text != fold)
        scores = classifier.scores(train, test, labels[train]).round(_DECIMALS)
        shares[test] = (rankdata(scores, axis=0) - 0.5) / test.size
    return shares


def _null_deviation(score: NDArray[np.float64], n_members: int) -> float:
    """Give the deviation of a fixed score's AUC, members drawn at random; 0 if constant."""
    n = score.size
    ties = np.unique(score, return_counts=True)[1]
    untied = n + 1 - (ties**3 - ties).sum() / (n * (n - 1))
    return float(np.sqrt(max(untied, 0.0) / (12 * n_members * (n - n_members))))
