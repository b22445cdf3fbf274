"""Texts that depend on each other: what they are worth, dealt to folds and permuted together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mia_batch.stats import Codes, Flags, Floats, Ints

_FEWEST = 4  # a smaller effective number tells too little of how clusters differ for any interval
_ROUNDING = 1e-12


def effective_number(sizes: NDArray[np.integer[Any]]) -> float:
    """Clusters that there would be were they of one size: Kish (1965), "Survey Sampling"."""
    return float(sizes.sum()) ** 2 / float(np.square(sizes, dtype=np.float64).sum())


def is_enough(effective: Any) -> Any:  # noqa: ANN401 - one number or an array of them
    """Whether clusters are worth enough of one size for an interval."""
    return effective > _FEWEST - _ROUNDING


def few(effective: float, where: str = "") -> str:
    """Say that there are too few clusters for an interval."""
    return (
        f"an interval needs {_FEWEST} independent groups of texts of one size{where}, these are "
        f"worth {effective:.3g}"
    )


def design_effect(values: Floats, cluster: Ints) -> float:
    r"""Factor by which the variance of a mean grows because values of a cluster are alike.

    .. math:: 1 + (m - 1) \rho, \; \rho = (B - W) / (B + (n_0 - 1) W), \; n_0 = (N - m) / (k - 1)

    m: mean size of the cluster that a value is in; B, W: mean squares between the k clusters and
    within them, of N values. At least 1. Kish (1965), section 5.4; Donner (1986), "A review of
    inference procedures for the intraclass correlation coefficient".
    """
    _, number, sizes = np.unique(cluster, return_inverse=True, return_counts=True)
    n, k = values.size, sizes.size
    if k < 2 or k == n:
        return 1.0
    means = np.bincount(number, values) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum() / (k - 1))
    within = float(((values - means[number]) ** 2).sum() / (n - k))
    size = float((sizes**2).sum() / n)
    spread = between + ((n - size) / (k - 1) - 1) * within
    return max(1.0, 1 + (size - 1) * (between - within) / spread) if spread else 1.0


class Folds(NamedTuple):
    """A division of clusters into folds, all numbered from 0."""

    cluster: Codes  # of each text
    fold: Codes  # of each cluster
    n_folds: int  # at least 2

    @property
    def fold_of_text(self) -> Codes:
        return self.fold[self.cluster]


def deal_folds(
    label: Flags, cluster: Codes, *, n_folds: int, generator: np.random.Generator
) -> Folds:
    """Deal shuffled clusters to the folds in turn: first all false, then mixed, then all true.

    So two clusters of a class come to different folds, and labels may be permuted within folds.
    """
    # scikit-learn's StratifiedGroupKFold looks at sizes and labels together, so that divisions are
    # not equally likely and permuted labels no null.
    share = np.bincount(cluster, label) / np.bincount(cluster)
    kind = np.sign(share) + (share == 1)
    fold = np.empty(share.size, dtype=np.intp)
    fold[_shuffled(kind, generator)] = np.arange(share.size) % n_folds
    return Folds(cluster, fold, n_folds)


def permute_labels(label: Flags, folds: Folds, generator: np.random.Generator) -> Flags:
    """Give each cluster the share of true labels of another one of its fold and kind.

    Which of its texts are true is drawn anew. A share that gives no whole number of texts is
    rounded at random, to at least one text of each class.
    """
    size = np.bincount(folds.cluster)
    share = np.bincount(folds.cluster, label) / size
    mixed = (share > 0) & (share < 1)
    block = 2 * folds.fold + mixed
    drawn = np.empty_like(share)
    drawn[np.argsort(block, kind="stable")] = share[_shuffled(block, generator)]
    n_true = np.floor(drawn * size + generator.random(share.size))
    n_true = np.where(mixed, np.clip(n_true, 1, size - 1), drawn * size)
    order = _shuffled(folds.cluster, generator)
    position = np.empty_like(order)
    position[order] = np.arange(order.size) - np.repeat(np.cumsum(size) - size, size)
    return position < n_true[folds.cluster]


def _shuffled(key: NDArray[np.generic], generator: np.random.Generator) -> Codes:
    """Order that sorts by the key and is random among equals."""
    order: Codes = np.lexsort((generator.random(key.size), key))
    return order
