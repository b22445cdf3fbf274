"""Canaries: published texts that were drawn by lot from committed sets, so the null is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["canary_p_value", "canary_ranks", "rank_sum_p_value"]


def canary_p_value(published: float, twins: NDArray[np.float64]) -> float:
    """p-value of one set: the published text among its T twins.

    The draw alone makes it valid: every text of the set could have been the published one.

    Parameters
    ----------
    published
        Score of the published text; NaN = unscored.
    twins
        Scores of the texts that stayed unpublished; an unscored one (NaN) counts as higher.

    Returns
    -------
    float
        (1 + twins that score so high) / (T + 1), in (0, 1]; NaN where the text is unscored.
    """
    if np.isnan(published):
        return float("nan")
    return float((1 + np.count_nonzero(~(twins < published))) / (1 + twins.size))


def canary_ranks(published: float, twins: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank the texts of one set, the published one first in the answer.

    Parameters
    ----------
    published
        Score of the published text; unscored (NaN), it has the lowest rank.
    twins
        Scores of its twins; the unscored ones have the highest ranks.

    Returns
    -------
    ndarray
        Ranks from 1, equal scores sharing their mean rank (a multiple of 1/2); float64.
    """
    from scipy.stats import rankdata

    lost = np.isnan(twins)
    ranks = np.empty(twins.size + 1, np.float64)
    ranks[1:][lost] = twins.size + 1 - np.arange(np.count_nonzero(lost))
    known = np.concatenate(([True], ~lost))
    scores = np.concatenate(([np.nan_to_num(published, nan=-np.inf)], twins[~lost]))
    ranks[known] = rankdata(scores)
    return ranks


def rank_sum_p_value(sets: Sequence[NDArray[np.float64]]) -> float:
    """p-value of all sets together: the sum of the published texts' ranks, exact.

    In each set the published text is equally likely to have any of the set's ranks, whatever
    happens in other sets; the law of the sum is the convolution of these laws.

    Parameters
    ----------
    sets
        `canary_ranks` of every committed set, none left out; at least one.

    Returns
    -------
    float
        Probability of a sum at least as large as the one observed, in (0, 1].
    """
    law: NDArray[np.float64] = np.ones(1)
    for ranks in sets:
        halves = np.bincount((2 * ranks).astype(np.int64))
        law = np.convolve(law, halves / ranks.size).astype(np.float64)
    observed = int(sum(2 * ranks[0] for ranks in sets))
    return float(min(1.0, law[observed:].sum()))
