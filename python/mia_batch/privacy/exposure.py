"""Exposure of canaries: how far a model prefers those that it learnt to others of their form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.special import gammaln
from scipy.stats import kstest, skewnorm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["exposures", "unlearnt_exposure"]

_KEPT = 10_000  # losses of canaries that were not learnt, to which a distribution is fitted
_FEWEST = 30  # of them
_REFUSED = 0.01  # p of a fit that is not believed


def exposures(
    learnt: NDArray[np.float64], others: Iterable[NDArray[np.float64]], size: int
) -> pl.DataFrame:
    """Rank each canary that was learnt among those that were not.

    Parameters
    ----------
    learnt
        Losses of the canaries that were learnt (log-perplexities, Li et al. 2024, definition 2).
    others
        Losses of canaries of the same format that were not, in pieces of any size; a piece is
        forgotten once it is counted. In random order, if they are not all there are.
    size
        Canaries that the format has.

    Returns
    -------
    DataFrame
        A row for each that was learnt. ``rank``: 1 + those of lower loss, equal ones half
        (definition 3); other learnt ones do not take part, since a model that remembers all of them
        would rank them among each other. ``exposure``: log2(n + 1) - log2(rank) in bits, n the
        number of others (definition 4). ``exposed``: whether none has as low a loss.
        ``extrapolated``: where others are fewer than the format has, the exposure among all by a
        skew normal distribution fitted to their losses (Carlini et al. 2019, arXiv:1802.08232,
        section 4.3); null where that does not fit. A loss that is no number has null in all.
    """
    below, equal = np.zeros(learnt.size), np.zeros(learnt.size)
    n_others, kept = 0, np.empty(0)
    for some in others:
        counted = np.sort(some[np.isfinite(some)])
        low, high = (counted.searchsorted(learnt, side=side) for side in ("left", "right"))
        below += low
        equal += high - low
        n_others += counted.size
        kept = np.concatenate([kept, some[np.isfinite(some)][: _KEPT - kept.size]])
    rank = 1 + below + equal / 2
    exposure = np.log2(n_others + 1) - np.log2(rank)
    beyond = np.full(learnt.size, np.nan)
    if n_others + learnt.size < size:
        beyond = _extrapolated(learnt, kept, size)
    found = pl.DataFrame(
        {
            "loss": learnt,
            "rank": rank,
            "exposure": exposure,
            "exposed": below + equal == 0,
            "extrapolated": beyond,
        }
    )
    return found.with_columns(pl.all().exclude("exposed").fill_nan(None)).with_columns(
        pl.when(pl.col("loss").is_not_null()).then(pl.col("rank", "exposure", "exposed"))
    )


def _extrapolated(
    learnt: NDArray[np.float64], others: NDArray[np.float64], size: int
) -> NDArray[np.float64]:
    """Exposure among all canaries of a format, if the losses of some follow a skew normal."""
    if others.size < _FEWEST or np.ptp(others) == 0:
        return np.full(learnt.size, np.nan)
    fitted = skewnorm(*skewnorm.fit(others))
    if kstest(others, fitted.cdf).pvalue < _REFUSED:
        return np.full(learnt.size, np.nan)
    return np.clip(-fitted.logcdf(learnt) / np.log(2), 0, np.log2(size))


def unlearnt_exposure(n_others: int) -> float:
    """Mean exposure of canaries that a model has not learnt, in bits: about 1 / ln 2 = 1.44.

    Their ranks are 1 to n + 1 with equal probability.
    """
    return float(np.log2(n_others + 1) - gammaln(n_others + 2) / np.log(2) / (n_others + 1))
