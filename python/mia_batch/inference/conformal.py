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
    score_weights: Floats | float = 1.0,
    ties: TieDraws | None = None,
) -> Floats:
    r"""Conformal p-value of each score (NaN = unscored), the nulls being exchangeable with it.

    .. math:: p = (w + \sum_i w_i [\text{null}_i \ge \text{score}]) / (w + \sum_i w_i)

    ``score_weights`` is w (NaN = unknown). Weights are 1 where nulls are exchangeable;
    `shared_weights` where groups share the nulls: Lee, Barber and Willett,
    arXiv:2306.06342; or odds of being audited by what else is known of a text:
    Tibshirani, Barber, Candes and Ramdas (2019), arXiv:1904.06019, equation 7. An
    unscored null (NaN) counts as higher than all, and without ``ties`` an equal one as
    higher; scores that rounding alone parts are equal. P(p <= a) <= a on average over
    null sets: Vovk, Gammerman and Shafer (2005), "Algorithmic Learning in a Random
    World", section 2.2; Bates et al. (2023), arXiv:2104.08279.
    """
    null_weights = np.ones(nulls.size) if weights is None else weights
    scores = significant(scores)
    nulls = significant(nulls)
    is_scored = ~np.isnan(nulls)
    distinct = np.unique(nulls[is_scored])
    # Places among the distinct nulls, between which draws order equal scores
    null_places = distinct.searchsorted(nulls[is_scored]).astype(np.float64)
    n_below = distinct.searchsorted(scores)
    places = n_below.astype(np.float64)
    if ties is not None:
        null_places += ties.nulls[is_scored]
        is_tied = np.zeros(scores.shape, np.bool_)
        if distinct.size:
            next_null = distinct[np.minimum(n_below, distinct.size - 1)]
            is_tied = next_null == scores
        places += np.where(is_tied, ties.scores, 0.0)
    order = null_places.argsort(kind="stable")
    cumulated = np.cumsum(null_weights[is_scored][order])
    lower = np.concatenate(([0.0], cumulated))
    n_lower = null_places[order].searchsorted(places)
    total = null_weights.sum()
    above = total - lower[n_lower]
    # Rounded, so that three times 1/3 is 1.
    above = np.round(above, _DIGITS_OF_SUMS)
    total = np.round(total, _DIGITS_OF_SUMS)
    p = (score_weights + above) / (score_weights + total)
    return np.where(np.isnan(scores), np.nan, p)


def significant(values: Floats) -> Floats:
    """Round to 12 digits: sums of the same numbers in another order are equal."""
    nonzero = np.where(values == 0, 1.0, values)
    size = np.floor(np.log10(np.abs(nonzero)))
    digits = np.clip(_DIGITS - 1 - size, -300, 300)
    scale = 10.0**digits
    rounded = np.round(values * scale) / scale
    return np.asarray(rounded, np.float64)


def shared_weights(clusters: Ints) -> Floats:
    """Return weights 1 / size of each null's cluster: each cluster counts as one."""
    _, index, sizes = np.unique(
        clusters,
        return_inverse=True,
        return_counts=True,
    )
    weights: Floats = 1 / sizes[index]
    return weights


def tie_draws(keys: Iterable[str], seed: int) -> Floats:
    """Draw a multiple of 2**-53 in [0, 1) for each key: BLAKE2b of seed and key."""
    digests = []
    for key in keys:
        hashed = blake2b(
            f"{seed}:{key}".encode(),
            digest_size=8,
            person=b"mia-ties",
        )
        digests.append(hashed.digest())
    numbers = np.frombuffer(b"".join(digests), ">u8")
    high_bits = numbers >> np.uint64(11)
    return high_bits.astype(np.float64) * 2.0**-53


def q_values(p: Floats, adjustment: Adjustment) -> Floats:
    """Adjust p-values: of all with q <= x at most a share x is false, on average over null sets.

    Of several audits each has a line. A missing p-value (NaN) counts as 1 and as a
    test. Benjamini and Hochberg (1995); Benjamini and Yekutieli (2001), theorem 1.3;
    that p-values which share their nulls allow the first: Bates et al. (2023),
    arXiv:2104.08279.
    """
    from scipy.stats import false_discovery_control

    is_missing = np.isnan(p)
    filled = np.where(is_missing, 1.0, p)
    # e-BH: of p = 1 / e
    method: Literal["bh", "by"] = "by" if adjustment == "by" else "bh"
    adjusted = false_discovery_control(
        filled,
        axis=-1,
        method=method,
    )
    rounded = np.round(adjusted, _DIGITS)
    return np.where(is_missing, np.nan, rounded)


def weighted_q_values(
    scores: Floats,
    p: Floats,
    weights: Floats,
    null_total: float,
    q: float,
    names: Iterable[str],
    seed: int,
) -> Floats:
    """Lowest level in `_LEVELS`, or ``q``, at which each weighted p-value is on the list, else 1.

    Weighted conformalized selection with homogeneous pruning by one number, drawn from
    the ``names`` of all tests and the seed: Jin and Candes (2023), arXiv:2307.09291,
    algorithm 1. ``weights`` are the scores', ``null_total`` is that of all nulls.
    """
    lowest_levels = np.where(np.isnan(p), np.nan, 1.0)
    tested = np.flatnonzero(~np.isnan(p))
    if not tested.size:
        return lowest_levels
    n_tests = p.size
    p = p[tested]
    weights = weights[tested]
    scores = scores[tested]
    ranks = np.arange(tested.size + 1)
    draw = tie_draws(["\n".join(names)], seed)[0]
    # One line for each test: the p-values of all were it one more null, and its own
    # were 0.
    is_as_high = scores <= scores[:, None]
    own_weights = weights[:, None]
    above = p * (weights + null_total) - weights + own_weights * is_as_high
    p_of_others = above / (own_weights + null_total)
    np.fill_diagonal(p_of_others, 0)
    p_of_others.sort(axis=1)
    for level in sorted({q, *_LEVELS}, reverse=True):
        excess = p_of_others - level * ranks[1:] / n_tests
        is_below = np.round(excess, _DIGITS) <= 0
        n_above = is_below[:, ::-1].argmax(axis=1)
        n_listed = tested.size - n_above
        excess = p - level * n_listed / n_tests
        is_candidate = np.round(excess, _DIGITS) <= 0
        keys = np.where(is_candidate, draw * n_listed, np.inf)
        n_up_to = np.sort(keys).searchsorted(ranks, side="right")
        threshold = np.flatnonzero(n_up_to >= ranks)[-1]
        # Below q only what is listed at q
        may_be_listed = (level >= q) | (lowest_levels[tested] <= q)
        is_listed = (keys <= threshold) & may_be_listed
        lowest_levels[tested[is_listed]] = level
    return lowest_levels


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
    ratios = (1 / low - 1) / (1 / _LEVEL - 1)
    bounds: Floats = np.round(ratios, _DIGITS)
    return bounds  # rounding keeps p = 0.05 at 1


# Monte-Carlo error of scores: how far they depend on the samples that were drawn.

_SAME = 1e-9  # relative difference of a score and the mean of its samples' values


def score_errors(
    values: pl.DataFrame,
    scores: pl.DataFrame,
) -> pl.DataFrame:
    """Compute ``target_id`` and ``standard_error`` of each ``score``, in its unit."""
    # ``values`` has the attack's ``value`` on each sample alone. The error is null
    # where fewer than two samples have a value, or the score is not their mean.
    places = scores.select("target_id", row=pl.int_range(pl.len()))
    samples = values.join(places, on="target_id")
    rows = samples["row"].to_numpy()
    ranks = samples["sample_index"].rank("dense").to_numpy()
    columns = ranks.astype(np.int64) - 1
    n_columns = int(columns.max(initial=0)) + 1
    # NaN = no sample
    matrix = np.full((scores.height, n_columns), np.nan)
    matrix[rows, columns] = samples["value"].fill_null(np.nan)
    has_value = ~np.isnan(matrix)
    n_values = has_value.sum(axis=1)
    errors = np.full(n_values.size, np.nan)
    several = n_values > 1
    deviations = np.nanstd(
        matrix[several],
        axis=1,
        ddof=1,
    )
    errors[several] = deviations / np.sqrt(n_values[several])
    sums = np.where(has_value, matrix, 0.0).sum(axis=1)
    means = sums / np.maximum(n_values, 1)
    score = scores["score"].to_numpy()
    is_mean = np.isclose(
        means,
        score,
        rtol=_SAME,
        atol=1e-12,
    )
    errors[~(np.isnan(score) | is_mean)] = np.nan
    standard_error = pl.Series(errors, nan_to_null=True)
    return scores.select("target_id", standard_error=standard_error)
