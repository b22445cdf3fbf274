"""Texts that depend on each other: what they are worth, dealt to folds and permuted together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mia_batch.stats import Codes, Flags, Floats, Ints

_FEWEST = 4
"""A smaller effective number tells too little of how clusters differ for any interval."""
_ROUNDING = 1e-12


def effective_number(sizes: NDArray[np.integer[Any]]) -> float:
    """Count the clusters that there would be were they of one size.

    Kish (1965), "Survey Sampling": the squared sum of the sizes over the sum of their squares.
    """
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

    .. math:: 1 + (m - 1) \rho

    with m the size of the cluster that a value is in, on average over the values, and
    \(\rho = (B - W) / (B + (n_0 - 1) W)\) by analysis of variance: B and W are the mean squares
    between the k clusters and within them, and \(n_0 = (N - m) / (k - 1)\) of N values. At least 1.

    Kish (1965), "Survey Sampling", section 5.4; Donner (1986), "A review of inference procedures
    for the intraclass correlation coefficient in the one-way random effects model".
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


# Folds that keep clusters whole, and labels permuted by cluster.
#
# Arrays have one entry per text: ``label`` its class, ``cluster`` the number of its cluster, from
# 0 without gaps.

_PURE, _MIXED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """A division of clusters into folds."""

    cluster: Codes  # cluster of each text, as an integer from 0
    fold: Codes  # fold of each cluster, as an integer from 0
    n_folds: int  # number of folds, at least 2

    @property
    def fold_of_text(self) -> Codes:
        return self.fold[self.cluster]


def deal_folds(
    label: Flags, cluster: Codes, *, n_folds: int, generator: np.random.Generator
) -> Folds:
    """Deal shuffled clusters to the folds in turn, one kind after the other.

    Kinds are: all texts false, both, all true, in this order, so that the clusters of a class stand
    together, and two of them come to different folds. Given how many clusters of each kind a fold
    has, every division is equally likely, so labels may be permuted within folds. scikit-learn's
    ``StratifiedGroupKFold`` promises no such thing, because it looks at sizes and labels together.
    """
    share = np.bincount(cluster, label) / np.bincount(cluster)
    kind = np.sign(share) + (share == 1)
    fold = np.empty(share.size, dtype=np.intp)
    fold[_shuffled(kind, generator)] = np.arange(share.size) % n_folds
    return Folds(cluster=cluster, fold=fold, n_folds=n_folds)


def permute_labels(label: Flags, folds: Folds, generator: np.random.Generator) -> Flags:
    """Permute labels among the clusters of a fold.

    Each cluster takes the share of true labels of another one of its fold, those of one class
    among themselves and those of both among themselves; which of its texts are true is drawn
    anew. A share that gives no whole number of texts is rounded at random, to at least one text of
    each class.
    """
    size = np.bincount(folds.cluster)
    share = np.bincount(folds.cluster, label) / size
    mixed = (share > 0) & (share < 1)
    block = 2 * folds.fold + np.where(mixed, _MIXED, _PURE)
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
