"""Many p-values at once: q-values that bound the share of false discoveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Adjustment", "q_values"]

Adjustment = Literal["bh", "by"]
"""Benjamini-Hochberg, or Benjamini-Yekutieli, which holds under any dependence."""

_DIGITS = 12


def q_values(p: NDArray[np.float64], adjustment: Adjustment) -> NDArray[np.float64]:
    """Adjust p-values: of all with q <= x, at most a share x is false on average.

    On average over null sets, that is; of one null set nothing is promised. A missing p-value
    counts as 1 and stays in the number of tests.

    Parameters
    ----------
    p
        p-values in (0, 1]; NaN = missing.
    adjustment
        The procedure.

    Returns
    -------
    ndarray
        Float64 in (0, 1], NaN where p is; rounded to 12 digits, so that a q-value of 0.1 is not
        above 0.1 by the error of a division.

    References
    ----------
    Benjamini and Hochberg (1995), "Controlling the false discovery rate"; Benjamini and Yekutieli
    (2001), "The control of the false discovery rate in multiple testing under dependency", theorem
    1.3; that p-values which share their nulls allow the first: Bates et al. (2023),
    arXiv:2104.08279.
    """
    from scipy.stats import false_discovery_control

    missing = np.isnan(p)
    adjusted = false_discovery_control(np.where(missing, 1.0, p), method=adjustment)
    return np.where(missing, np.nan, np.round(adjusted, _DIGITS))
