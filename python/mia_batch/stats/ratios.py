"""Ratios of sums over texts, such as micro precision, with errors from whole clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.clusters import few
from mia_batch.stats.intervals import Interval
from mia_batch.stats.paired import cluster_means

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Ratio", "ratio_difference", "ratio_of_sums"]

_NO_SPREAD = "all groups of texts agree, so that the spread is unknown"
_NOTHING = "there is nothing to take a share of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of sums, or the reason why value or interval is missing.

    Attributes
    ----------
    value
        The ratio; None where its denominator is 0.
    interval
        Its confidence interval; None where the data support none.
    reason
        Why value or interval is None.
    """

    value: float | None = None
    interval: Interval | None = None
    reason: str | None = None


def ratio_of_sums(
    sums: NDArray[np.float64], cluster: NDArray[np.intp], *, confidence: float = 0.95
) -> Ratio:
    r"""Divide sums over texts, with an interval in [0, 1] for a ratio that lies there.

    The ratio is \(R = \sum a_i / \sum b_i\). Its error is that of the mean of
    \((a_i - R b_i) / \bar b\) over whole clusters, and the interval is symmetric in its logit, by
    Student's t. ``sums`` has a row of numerators and one of denominators, which are not smaller;
    clusters are codes from 0, each of which has a text.

    Cochran (1977), "Sampling techniques", sections 2.11 and 6.3.
    """
    above, below = sums
    if not below.any():
        return Ratio(reason=_NOTHING)
    value = float(above.sum() / below.sum())
    half = _half(_influence(sums), cluster, confidence)
    if isinstance(half, str):
        return Ratio(value=value, reason=half)
    if not 0 < value < 1:
        return Ratio(value=value, reason=_NO_SPREAD)
    from scipy.special import expit, logit

    middle, wide = logit(value), half / (value * (1 - value))
    low, high = float(expit(middle - wide)), float(expit(middle + wide))
    return Ratio(
        value=value,
        interval=Interval(low=low, high=high, confidence=confidence, method="ratio_logit_t"),
    )


def ratio_difference(
    one: NDArray[np.float64],
    other: NDArray[np.float64],
    cluster: NDArray[np.intp],
    *,
    confidence: float = 0.95,
) -> Ratio:
    """Subtract a ratio of sums over the same texts from another, with an interval of the pair.

    Each has two rows, as `ratio_of_sums` takes them. The interval is symmetric, by Student's t, of
    the differences of what each text adds to either ratio.
    """
    if not one[1].any() or not other[1].any():
        return Ratio(reason=_NOTHING)
    value = float(one[0].sum() / one[1].sum() - other[0].sum() / other[1].sum())
    half = _half(_influence(one) - _influence(other), cluster, confidence)
    if isinstance(half, str):
        return Ratio(value=value, reason=half)
    limits = Interval(
        low=value - half, high=value + half, confidence=confidence, method="ratio_difference_t"
    )
    return Ratio(value=value, interval=limits)


def _influence(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what each text adds to the error of a ratio; its mean is 0."""
    above, below = sums
    ratio = above.sum() / below.sum()
    return np.asarray((above - ratio * below) / below.mean())


def _half(
    influence: NDArray[np.float64], cluster: NDArray[np.intp], confidence: float
) -> float | str:
    """Half of an interval, or why there is none."""
    means = cluster_means(influence[:, None], np.zeros(len(influence), np.intp), cluster)
    if not means.enough[0]:
        return few(float(means.effective[0]))
    half = float(means.half_widths(confidence)[0, 0])
    return half if np.isfinite(half) else _NO_SPREAD
