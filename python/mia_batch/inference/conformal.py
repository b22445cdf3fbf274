"""Conformal p-values: how high a score is among those of texts known to be outside.

In the arrays of this package NaN stands for a missing score; tables have null there.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from mia_batch.stats import Floats, Ints

Adjustment = Literal["bh", "by", "e-bh"]
"""Benjamini-Hochberg; Benjamini-Yekutieli, which holds under any dependence; e-BH of e-values."""

_DIGITS_OF_SUMS = 9
_DIGITS = 12
_LEVEL = 0.05
_LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
NO_WEIGHT = "the blind classifiers did not see it, so that it has no weight"


class TieDraws(NamedTuple):
    """Numbers in [0, 1), one per score and null score, that order equal scores."""

    scores: Floats
    nulls: Floats


def p_values(
    scores: Floats,
    nulls: Floats,
    *,
    weights: Floats | None = None,
    own: Floats | float = 1.0,
    ties: TieDraws | None = None,
) -> Floats:
    r"""Conformal p-value of each score (NaN = unscored), the nulls being exchangeable with it.

    .. math:: p = (w + \sum_i w_i [\text{null}_i \ge \text{score}]) / (w + \sum_i w_i)

    ``own`` is w (NaN = unknown). Weights are 1 where nulls are exchangeable;
    `shared_weights` where groups share the nulls: Lee, Barber and Willett,
    arXiv:2306.06342; or odds of being audited by what else is known of a text:
    Tibshirani, Barber, Candes and Ramdas (2019), arXiv:1904.06019, equation 7. An
    unscored null (NaN) counts as higher than all, and without ``ties`` an equal one as
    higher; scores that rounding alone parts are equal. P(p <= a) <= a on average over
    null sets: Vovk, Gammerman and Shafer (2005), "Algorithmic Learning in a Random
    World", section 2.2; Bates et al. (2023), arXiv:2104.08279.
    """
    weight = np.ones(nulls.size) if weights is None else weights
    scores, nulls = significant(scores), significant(nulls)
    known = ~np.isnan(nulls)
    distinct = np.unique(nulls[known])
    index = distinct.searchsorted(nulls[known]).astype(np.float64)
    below = distinct.searchsorted(scores)
    wanted = below.astype(np.float64)
    if ties is not None:
        index += ties.nulls[known]
        tied = (
            distinct[np.minimum(below, distinct.size - 1)] == scores
            if distinct.size
            else False
        )
        wanted += np.where(tied, ties.scores, 0.0)
    order = index.argsort(kind="stable")
    lower = np.concatenate(([0.0], np.cumsum(weight[known][order])))
    not_lower = weight.sum() - lower[index[order].searchsorted(wanted)]
    # Rounded, so that three times 1/3 is 1.
    above, total = (
        np.round(not_lower, _DIGITS_OF_SUMS),
        np.round(weight.sum(), _DIGITS_OF_SUMS),
    )
    return np.where(np.isnan(scores), np.nan, (own + above) / (own + total))


def significant(values: Floats) -> Floats:
    """Round to 12 digits: sums of the same numbers in another order are equal."""
    size = np.floor(np.log10(np.abs(np.where(values == 0, 1.0, values))))
    scale = 10.0 ** np.clip(_DIGITS - 1 - size, -300, 300)
    return np.asarray(np.round(values * scale) / scale, np.float64)


def shared_weights(clusters: Ints) -> Floats:
    """Weights 1 / size of each null's cluster: each cluster counts as one."""
    _, which, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    weights: Floats = 1 / sizes[which]
    return weights


def tie_draws(keys: Iterable[str], seed: int) -> Floats:
    """Draw a multiple of 2**-53 in [0, 1) for each key: BLAKE2b of seed and key, in any order."""
    digests = b"".join(
        blake2b(f"{seed}:{key}".encode(), digest_size=8, person=b"mia-ties").digest()
        for key in keys
    )
    numbers = np.frombuffer(digests, ">u8") >> np.uint64(11)
    return numbers.astype(np.float64) * 2.0**-53


def q_values(p: Floats, adjustment: Adjustment) -> Floats:
    """Adjust p-values: of all with q <= x at most a share x is false, on average over null sets.

    Of several audits each has a line. A missing p-value (NaN) counts as 1 and as a
    test. Benjamini and Hochberg (1995); Benjamini and Yekutieli (2001), theorem 1.3;
    that p-values which share their nulls allow the first: Bates et al. (2023),
    arXiv:2104.08279.
    """
    from scipy.stats import false_discovery_control

    missing = np.isnan(p)
    # e-BH: of p = 1 / e
    method: Literal["bh", "by"] = "by" if adjustment == "by" else "bh"
    adjusted = false_discovery_control(
        np.where(missing, 1.0, p), axis=-1, method=method
    )
    return np.where(missing, np.nan, np.round(adjusted, _DIGITS))


def weighted_q_values(
    scores: Floats,
    p: Floats,
    own: Floats,
    total: float,
    q: float,
    names: Iterable[str],
    seed: int,
) -> Floats:
    """Lowest level in `_LEVELS`, or ``q``, at which each weighted p-value is on the list, else 1.

    Weighted conformalized selection with homogeneous pruning by one number, drawn from
    the ``names`` of all tests and the seed: Jin and Candes (2023), arXiv:2307.09291,
    algorithm 1. ``own`` are the scores' weights, ``total`` is that of all nulls.
    """
    made = np.where(np.isnan(p), np.nan, 1.0)
    known = np.flatnonzero(~np.isnan(p))
    p, own, scores = p[known], own[known], scores[known]
    ranks, draw = np.arange(known.size + 1), tie_draws(["\n".join(names)], seed)[0]
    # One line for each test: the p-values of all were it one more null, and its own
    # were 0.
    above = p * (own + total) - own + own[:, None] * (scores <= scores[:, None])
    others = above / (own[:, None] + total)
    np.fill_diagonal(others, 0)
    others.sort(axis=1)
    for level in sorted({q, *_LEVELS} if known.size else (), reverse=True):
        reached = np.round(others - level * ranks[1:] / made.size, _DIGITS) <= 0
        size = known.size - reached[:, ::-1].argmax(axis=1)
        first = np.round(p - level * size / made.size, _DIGITS) <= 0
        order = np.where(first, draw * size, np.inf)
        most = np.flatnonzero(
            np.sort(order).searchsorted(ranks, side="right") >= ranks
        )[-1]
        listed = (order <= most) & ((level >= q) | (made[known] <= q))
        made[known[listed]] = level
    return made


def sensitivity_bound(p: Floats) -> Floats:
    r"""Bias in the odds of scoring high, without membership, that would lift p above a = 0.05.

    .. math:: \Gamma = \frac{1 / p - 1}{1 / a - 1}

    Where the odds of one of n + 1 ranks against another are up to \(\Gamma\) times as
    large, a target is in the first k = p (n + 1) with probability at most \(\Gamma k /
    (\Gamma k + n + 1 - k)\). At least 1; NaN where p is missing or above 0.05. After
    Rosenbaum (1987), "Sensitivity analysis for certain permutation inferences in
    matched observational studies".
    """
    low = np.where(p <= _LEVEL, p, np.nan)
    bounds: Floats = np.round((1 / low - 1) / (1 / _LEVEL - 1), _DIGITS)
    return bounds  # rounding keeps p = 0.05 at 1


# Monte-Carlo error of scores: how far they depend on the samples that were drawn.

_SAME = 1e-9  # relative difference of a score and the mean of its samples' values


def score_errors(values: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """``target_id`` and ``standard_error`` of each ``score``, in its unit."""
    # ``values`` has the attack's ``value`` on each sample alone. The error is null
    # where fewer than two samples have a value, or the score is not their mean.
    found = values.join(
        scores.select("target_id", row=pl.int_range(pl.len())), on="target_id"
    )
    samples = found["sample_index"].rank("dense").to_numpy().astype(np.int64) - 1
    # NaN = no sample
    matrix = np.full((scores.height, int(samples.max(initial=0)) + 1), np.nan)
    matrix[found["row"].to_numpy(), samples] = found["value"].fill_null(np.nan)
    score, present = scores["score"].to_numpy(), ~np.isnan(matrix)
    n = present.sum(axis=1)
    errors, many = np.full(n.size, np.nan), n > 1
    errors[many] = np.nanstd(matrix[many], axis=1, ddof=1) / np.sqrt(n[many])
    means = np.where(present, matrix, 0.0).sum(axis=1) / np.maximum(n, 1)
    errors[~(np.isnan(score) | np.isclose(means, score, rtol=_SAME, atol=1e-12))] = (
        np.nan
    )
    return scores.select(
        "target_id", standard_error=pl.Series(errors, nan_to_null=True)
    )
