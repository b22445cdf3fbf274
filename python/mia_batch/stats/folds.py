"""Folds that keep clusters whole, and labels permuted by cluster.

Arrays have one entry per text: ``label`` its class, ``cluster`` the number of its cluster, from 0
without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Folds", "deal_folds", "permute_labels"]

_PURE, _MIXED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """A division of clusters into folds.

    Attributes
    ----------
    cluster
        Cluster of each text, as an integer from 0.
    fold
        Fold of each cluster, as an integer from 0.
    n_folds
        Number of folds, at least 2.
    """

    cluster: NDArray[np.intp]
    fold: NDArray[np.intp]
    n_folds: int

    @property
    def fold_of_text(self) -> NDArray[np.intp]:
        """Fold of each text."""
        return self.fold[self.cluster]


def deal_folds(
    label: NDArray[np.bool_],
    cluster: NDArray[np.intp],
    *,
    n_folds: int,
    generator: np.random.Generator,
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


def permute_labels(
    label: NDArray[np.bool_], folds: Folds, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Permute labels among the clusters of a fold.

    Each cluster takes the share of true labels of another one of its fold, those of one class
    among themselves and those of both among themselves; which of its texts are true is drawn
    anew. So texts without clusters are permuted within folds, whole clusters of one class swap
    labels, and clusters with half their texts true keep their halves. A share that gives no whole
    number of texts is rounded at random, to at least one text of each class.
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


def _shuffled(key: NDArray[np.generic], generator: np.random.Generator) -> NDArray[np.intp]:
    """Order that sorts by the key and is random among equals."""
    order: NDArray[np.intp] = np.lexsort((generator.random(key.size), key))
    return order
