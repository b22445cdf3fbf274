"""Classifiers that see texts and labels but never the model.

Every one learns from many sets of labels at once, because permuted labels leave the texts as they
are. A higher score means "more likely a member".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from warnings import catch_warnings, simplefilter

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

__all__ = ["Classifier", "Direction", "Logistic", "NaiveBayes", "Ridge"]

_TOLERANCE = 0.01
"""Of the logistic regression: a tighter one takes longer and moves no AUC by 0.001."""


class Classifier(Protocol):
    """What learns labels of some texts and scores others."""

    def scores(
        self, train: NDArray[np.intp], test: NDArray[np.intp], labels: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Score rows ``test`` once for each column of ``labels``, the classes of rows ``train``."""
        ...


@dataclass(frozen=True, slots=True)
class NaiveBayes:
    """Multinomial naive Bayes with add-one smoothing: scikit-learn's ``MultinomialNB``.

    Written out because one matrix product then serves every set of labels. The class prior, the
    same for all texts of a fold, is left out.

    Attributes
    ----------
    counts
        Counts of words, one row per text.
    """

    counts: csr_array

    def scores(
        self, train: NDArray[np.intp], test: NDArray[np.intp], labels: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Log-likelihood ratio of the words; see ``Classifier.scores``."""
        counts = self.counts[train].T
        ratio = _log_shares(counts @ labels.astype(float))
        ratio -= _log_shares(counts @ (~labels).astype(float))
        return self.counts[test] @ ratio


def _log_shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    smoothed = counts + 1
    shares: NDArray[np.float64] = np.log(smoothed / smoothed.sum(axis=0))
    return shares


@dataclass(frozen=True, slots=True)
class Logistic:
    """Logistic regression with an L2 penalty of weight 1.

    Attributes
    ----------
    values
        What is weighted, one row per text.
    """

    values: csr_array

    def scores(
        self, train: NDArray[np.intp], test: NDArray[np.intp], labels: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Log-odds; see ``Classifier.scores``."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        seen, unseen = self.values[train], self.values[test]
        model = LogisticRegression(solver="liblinear", dual=True, tol=_TOLERANCE, random_state=0)
        with catch_warnings():  # after 100 rounds it is a classifier like any other
            simplefilter("ignore", ConvergenceWarning)
            odds = [model.fit(seen, label).decision_function(unseen) for label in labels.T]
        return np.column_stack(odds)


@dataclass(frozen=True, slots=True)
class Ridge:
    """Ridge regression of the class, from similarities of texts.

    Attributes
    ----------
    similarity
        Positive semi-definite matrix, one row and one column per text.
    penalty
        Weight of the penalty, as a share of the mean similarity of a text with itself.
    """

    similarity: NDArray[np.float64]
    penalty: float

    def scores(
        self, train: NDArray[np.intp], test: NDArray[np.intp], labels: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Predicted class less its mean; see ``Classifier.scores``."""
        from sklearn.kernel_ridge import KernelRidge

        alpha = self.penalty * max(float(self.similarity.diagonal().mean()), 1.0)
        model = KernelRidge(alpha=alpha, kernel="precomputed")
        model.fit(self.similarity[np.ix_(train, train)], labels - labels.mean(axis=0))
        scores: NDArray[np.float64] = model.predict(self.similarity[np.ix_(test, train)])
        return scores


@dataclass(frozen=True, slots=True)
class Direction:
    """One number of each text, as it stands or turned round, whichever is right more often.

    Attributes
    ----------
    value
        Number of each text.
    """

    value: NDArray[np.float64]

    def scores(
        self, train: NDArray[np.intp], test: NDArray[np.intp], labels: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Take the number, times -1 where its AUC is below 1/2; see ``Classifier.scores``."""
        from scipy.stats import rankdata

        above_mean = rankdata(self.value[train]) - (train.size + 1) / 2
        sign = np.where(above_mean @ labels >= 0, 1.0, -1.0)
        return np.outer(self.value[test], sign)
