"""Adjusting p-values so that all statements hold at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["holm"]


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjust p-values: if all adjusted up to a level are reported, one is false with that chance.

    A missing p-value (NaN) counts as 1 and stays in the number of tests.

    Holm (1979), "A simple sequentially rejective multiple test procedure".
    """
    order = np.argsort(np.where(np.isnan(p), 1.0, p), kind="stable")
    steps = np.where(np.isnan(p), 1.0, p)[order] * np.arange(p.size, 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return np.where(np.isnan(p), np.nan, adjusted)
