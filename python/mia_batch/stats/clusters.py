"""How much less texts tell that depend on each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["design_effect", "effective_number", "few", "is_enough"]

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


def design_effect(values: NDArray[np.float64], cluster: NDArray[np.int64]) -> float:
    r"""Factor by which the variance of a mean grows because values of a cluster are alike.

    .. math:: 1 + (m - 1) \rho

    with m the size of the cluster that a value is in, on average over the values, and
    \(\rho = (B - W) / (B + (n_0 - 1) W)\) the correlation within clusters by analysis of variance:
    B and W are the mean squares between the k clusters and within them, and
    \(n_0 = (N - m) / (k - 1)\) of N values. At least 1, which it is too where no cluster has two
    values, where there are fewer than two clusters, and where all values are equal.

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
