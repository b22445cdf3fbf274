"""The exact test: whether what was published scores above what could have been instead."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from mia_batch.stats import Floats

__all__ = ["N_DRAWS", "Comparison", "compare_published"]

N_DRAWS = 99_999
_MOST_LISTED = 200_000  # combinations; of more, some are drawn
_AT_ONCE = 1 << 22  # values that are drawn at once: some 32 MB
_TIE = 1e-12  # of the largest sum; sums nearer to each other count as equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison of published units with their alternatives came to.

    Attributes
    ----------
    statistic
        Mean over units of the published score less the mean of the others.
    p_value
        Share of choices of one alternative in each unit with as large a statistic.
    smallest
        The smallest p-value that these units allow.
    n_units
        Units that were compared.
    n_first
        Of these, those whose published score is above all others.
    """

    statistic: float
    p_value: float
    smallest: float
    n_units: int
    n_first: int


def compare_published(
    scores: Floats, seed: int, n_draws: int = N_DRAWS
) -> Comparison | None:
    r"""Compare the published alternative of each unit with the others, exactly.

    Row u of ``scores`` has the scores of a unit's alternatives, the published one
    first; NaN fills rows of fewer. The statistic is the sharded one of Oren et al. (2023,
    arXiv:2310.17623), \(T = \frac1n \sum_u (x_{u0} - \bar x_{u,k > 0})\),
    but its p-value rests on no t distribution: under the null the published one is in
    each unit any of its alternatives with the same probability, whatever the scores
    are and however units depend on each other through their content. So the p-value is
    the share of all choices of one alternative in each unit whose statistic is as
    large. Of many choices ``n_draws`` are drawn, and the observed one counts as one
    more (Phipson and Smyth 2010, equation 2, which keeps the level). Ties count against
    the published one.

    None where no unit has two alternatives.
    """
    if not scores.size:
        return None
    n_alternatives = np.isfinite(scores).sum(axis=1)
    is_usable = np.isfinite(scores[:, 0]) & (n_alternatives > 1)
    units, sizes = scores[is_usable], n_alternatives[is_usable]
    if not sizes.size:
        return None
    # Score of each alternative less the mean of the unit's others; finite ones first
    units = np.take_along_axis(units, np.argsort(np.isnan(units), 1, kind="stable"), 1)
    means = np.nanmean(units, axis=1, keepdims=True)
    gains = (units - means) * (sizes / (sizes - 1))[:, None]
    observed = float(gains[:, 0].sum())
    limit = observed - _TIE * float(np.nanmax(np.abs(gains), axis=1).sum())
    n_choices = prod(sizes.tolist())
    if n_choices <= _MOST_LISTED:
        sums = _list_sums(gains, sizes.tolist())
        p_value = float((sums >= limit).mean())
        smallest = 1 / n_choices
    else:
        n_as_large = _count_as_large(gains, sizes, limit, seed, n_draws)
        p_value = (1 + n_as_large) / (1 + n_draws)
        smallest = 1 / (1 + n_draws)
    best_shuffled = np.nanmax(units[:, 1:], axis=1)
    return Comparison(
        statistic=observed / sizes.size,
        p_value=p_value,
        smallest=smallest,
        n_units=sizes.size,
        n_first=int((units[:, 0] > best_shuffled).sum()),
    )


def _list_sums(gains: Floats, sizes: list[int]) -> Floats:
    """List the sums of all choices of one alternative in each unit."""
    sums: Floats = np.zeros(1)
    for row, size in zip(gains, sizes, strict=True):
        sums = (sums[:, None] + row[:size]).ravel()
    return sums


def _count_as_large(
    gains: Floats, sizes: np.ndarray, limit: float, seed: int, n_draws: int
) -> int:
    """Count drawn choices of one alternative in each unit whose sum reaches a limit."""
    rng = np.random.default_rng(seed)
    n_units = sizes.size
    rows = np.arange(n_units)
    n_at_once = max(1, _AT_ONCE // n_units)
    n_as_large = 0
    for start in range(0, n_draws, n_at_once):
        n = min(n_at_once, n_draws - start)
        choices = rng.integers(sizes, size=(n, n_units))
        n_as_large += int((gains[rows, choices].sum(axis=1) >= limit).sum())
    return n_as_large
