"""Conformal p-values: how high a score is among those of texts known to be outside.

In the arrays of this package NaN stands for a score that is missing; tables have null there.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["TieDraws", "p_values", "shared_weights", "tie_draws"]

_DIGITS = 9


class TieDraws(NamedTuple):
    """Numbers in [0, 1) that put equal scores in order, float64; higher comes first."""

    scores: NDArray[np.float64]
    """One per score."""
    nulls: NDArray[np.float64]
    """One per null score."""


def p_values(
    scores: NDArray[np.float64],
    nulls: NDArray[np.float64],
    *,
    weights: NDArray[np.float64] | None = None,
    ties: TieDraws | None = None,
) -> NDArray[np.float64]:
    r"""Conformal p-value of each score, the null scores being exchangeable with it.

    .. math:: p = (1 + \sum_i w_i [\text{null}_i \ge \text{score}]) / (1 + \sum_i w_i)

    With weights of 1 this is the p-value of n + 1 exchangeable texts. With `shared_weights`, where
    K groups share the nulls, it is that of a text of one more group: of K + 1 exchangeable groups,
    each counts as one, by the share of its texts that score so high. Under the null hypothesis
    P(p <= a) <= a for every a, on average over null sets; a p-value is no probability of anything
    about the text itself.

    Parameters
    ----------
    scores
        Scores of the targets; NaN = unscored.
    nulls
        Scores of texts outside the training data; an unscored one (NaN) counts as higher than all.
    weights
        Weight of each null, above 0; none: 1 each.
    ties
        Puts equal scores in order, as if they were not equal; none: a null counts as higher than
        an equal score, which is conservative.

    Returns
    -------
    ndarray
        Float64 in (0, 1], NaN where unscored.

    References
    ----------
    Vovk, Gammerman and Shafer (2005), "Algorithmic Learning in a Random World", section 2.2; Bates
    et al. (2023), "Testing for outliers with conformal p-values", arXiv:2104.08279, the marginal
    p-value; weights: Lee, Barber and Willett, "Distribution-free inference with hierarchical data",
    arXiv:2306.06342, of whose prediction sets these are the p-values.
    """
    weight = np.ones(nulls.size) if weights is None else weights
    known = ~np.isnan(nulls)
    distinct = np.unique(nulls[known])
    place = distinct.searchsorted(nulls[known]).astype(np.float64)
    below = distinct.searchsorted(scores)
    wanted = below.astype(np.float64)
    if ties is not None:
        place += ties.nulls[known]
        tied = distinct[np.minimum(below, distinct.size - 1)] == scores if distinct.size else False
        wanted += np.where(tied, ties.scores, 0.0)
    order = place.argsort(kind="stable")
    lower = np.concatenate(([0.0], np.cumsum(weight[known][order])))
    not_lower = weight.sum() - lower[place[order].searchsorted(wanted)]
    # Rounded, so that three times 1/3 is 1.
    p = (1 + np.round(not_lower, _DIGITS)) / (1 + np.round(weight.sum(), _DIGITS))
    return np.where(np.isnan(scores), np.nan, p)


def shared_weights(clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weights that let each cluster of nulls count as one.

    Parameters
    ----------
    clusters
        Which cluster each null belongs to, any integers.

    Returns
    -------
    ndarray
        1 / size of the null's cluster, float64; the sum is the number of clusters.
    """
    _, which, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    weights: NDArray[np.float64] = 1 / sizes[which]
    return weights


def tie_draws(keys: Iterable[str], seed: int) -> NDArray[np.float64]:
    """Draw a number for each key, the same on every run and in any order.

    Parameters
    ----------
    keys
        Names, such as ``target_id``.
    seed
        Any integer.

    Returns
    -------
    ndarray
        Float64 in [0, 1), multiples of 2**-53: BLAKE2b of seed and key.
    """
    digests = b"".join(
        blake2b(f"{seed}:{key}".encode(), digest_size=8, person=b"mia-ties").digest()
        for key in keys
    )
    numbers = np.frombuffer(digests, ">u8") >> np.uint64(11)
    return numbers.astype(np.float64) * 2.0**-53
