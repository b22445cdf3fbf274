"""Means of paired differences, with errors that move together within clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.clusters import few, is_enough

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Means", "RemovedShare", "cluster_means", "removed_share"]

_ROUNDING = 1e-12  # of the largest value: what is smaller is the error of sums
_NOT_TOLD_APART = "the runs before and of the retrained model cannot be told apart"
_NOT_ABOVE = "the run before does not score above that of the retrained model"
_NO_SPREAD = "the same share is removed everywhere, so that its spread is unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Means of some numbers of each text, by unit.

    Attributes
    ----------
    value
        Means, a row for each unit and a column for each number.
    covariance
        Of the means, estimated from clusters; 0 where all clusters agree, or there is one.
    n
        Texts of each unit.
    n_clusters
        Clusters of each unit.
    effective
        Clusters that there would be were they of one size (Kish), at most ``n_clusters``.
    """

    value: NDArray[np.float64]
    covariance: NDArray[np.float64]
    n: NDArray[np.int64]
    n_clusters: NDArray[np.int64]
    effective: NDArray[np.float64]

    @property
    def enough(self) -> NDArray[np.bool_]:
        """Which units have clusters enough for an interval."""
        return np.asarray(is_enough(self.effective))

    def half_widths(self, confidence: float = 0.95) -> NDArray[np.float64]:
        """Half of each interval, like ``value``; NaN where the data support none.

        Student's t, its degrees of freedom the effective number of clusters less 1.
        """
        from scipy.stats import t

        return np.asarray(t.ppf((1 + confidence) / 2, self._freedom) * self._errors)

    def p_values(self) -> NDArray[np.float64]:
        """Two-sided, of a mean of 0, by the same t; NaN where there is no interval."""
        from scipy.stats import t

        return np.asarray(2 * t.sf(np.abs(self.value / self._errors), self._freedom))

    @property
    def _errors(self) -> NDArray[np.float64]:
        variance = np.diagonal(self.covariance, axis1=1, axis2=2)
        return np.asarray(np.sqrt(np.where(variance > 0, variance, np.nan)))

    @property
    def _freedom(self) -> NDArray[np.float64]:
        return np.where(self.enough, self.effective - 1, np.nan)[:, None]


def cluster_means(
    values: NDArray[np.float64], unit: NDArray[np.intp], cluster: NDArray[np.intp]
) -> Means:
    r"""Average numbers over the texts of each unit, with a covariance from whole clusters.

    With \(n_k\) texts and the sum \(s_k\) in cluster k, and n texts, the mean is
    \(\bar s = \sum s_k / n\) and its variance

    .. math:: \sum_k \frac{(s_k - n_k \bar s)^2}{1 - n_k / n} / n^2

    ``values`` has a row for each text and a column for each number; ``unit`` and ``cluster`` are
    codes from 0, no unit empty.

    Cochran (1977), "Sampling techniques", section 6.3, for the ratio of sums; Bell and McCaffrey
    (2002), for the denominator, as in `estimate_auc`; Kish (1965), "Survey sampling", for the
    effective number.
    """
    width = int(cluster.max()) + 1
    pairs, code, size = np.unique(unit * width + cluster, return_inverse=True, return_counts=True)
    owner = pairs // width
    n, n_clusters = np.bincount(owner, size), np.bincount(owner)
    sums = np.stack([np.bincount(code, column) for column in values.T], axis=1)
    mean = np.stack([np.bincount(owner, column) for column in sums.T], axis=1) / n[:, None]
    gaps = sums - size[:, None] * mean[owner]
    gaps[np.abs(gaps) <= _ROUNDING * size[:, None] * np.abs(values).max(axis=0)] = 0
    products = gaps[:, :, None] * gaps[:, None, :]
    products /= np.maximum(1 - size / n[owner], 1 / n[owner])[:, None, None]
    covariance = np.zeros((n.size, *products.shape[1:]))
    np.add.at(covariance, owner, products)
    return Means(
        value=mean,
        covariance=covariance / n[:, None, None] ** 2,
        n=n.astype(np.int64),
        n_clusters=n_clusters,
        effective=n**2 / np.bincount(owner, size.astype(np.float64) ** 2),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedShare:
    """(before - after) / (before - retrained), or the reason why value or limits are missing."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


def removed_share(
    gaps: NDArray[np.float64],
    covariance: NDArray[np.float64],
    effective: float,
    *,
    confidence: float = 0.95,
) -> RemovedShare:
    r"""Share of a difference that unlearning has removed, with Fieller's interval.

    ``gaps`` are the means x of before - after and y of before - retrained, over ``effective``
    independent clusters. The interval holds every share \(\rho\) with
    \((x - \rho y)^2 \le t^2 (v_x - 2 \rho c + \rho^2 v_y)\), t of ``effective - 1`` degrees of
    freedom. It is not clipped: below 0 unlearning made it worse, above 1 it went further than the
    retrained model.

    Withheld where the interval of y holds 0 or lies below, and limits where they would meet.

    Fieller (1954), "Some problems in interval estimation".
    """
    from scipy.stats import t

    if not is_enough(effective):
        return RemovedShare(reason=few(effective))
    (x, y), ((v_x, c), (_, v_y)) = gaps.tolist(), covariance.tolist()
    squared = float(t.ppf((1 + confidence) / 2, effective - 1)) ** 2
    if y * y <= squared * v_y:
        return RemovedShare(reason=_NOT_TOLD_APART)
    if y < 0:
        return RemovedShare(reason=_NOT_ABOVE)
    a, b, rest = y * y - squared * v_y, x * y - squared * c, x * x - squared * v_x
    spread = max(b * b - a * rest, 0.0) ** 0.5
    if spread <= 1e-9 * abs(a):
        return RemovedShare(value=x / y, reason=_NO_SPREAD)
    return RemovedShare(value=x / y, low=(b - spread) / a, high=(b + spread) / a)
