"""Resamples of texts, or of whole groups, and what areas and rates become in them.

All scores of a run are measured in the same resamples, so that they can be compared. A resample is
a vector of how often each unit (a text or a group) was drawn; sorted once, a score's area in it
takes sums along its order.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["N_RESAMPLES", "Ranking", "Units", "find_units", "n_allowed", "rank", "resample"]

N_RESAMPLES = 2_000

_NUMBERS_AT_ONCE = 1 << 17
"""What one thread holds of resampled numbers of a score: they should fit a core's own cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What is drawn: texts, or groups whole.

    Attributes
    ----------
    code
        Unit of each text, from 0.
    strata
        Units that are drawn from among each other, as many as there are: members and non-members
        apart; all together where a group has texts of both.
    """

    code: NDArray[np.intp]
    strata: tuple[NDArray[np.intp], ...]

    @property
    def at_once(self) -> int:
        """Resamples that are made together; depends on the texts alone."""
        return max(1, _NUMBERS_AT_ONCE // self.code.size)


def find_units(member: NDArray[np.bool_], cluster: NDArray[np.int32] | None) -> Units:
    """Decide what is drawn, and from among what.

    A text's cluster is its code from 0, none left out.
    """
    code = np.arange(member.size) if cluster is None else cluster.astype(np.intp)
    members, nonmembers = np.unique(code[member]), np.unique(code[~member])
    if np.intersect1d(members, nonmembers, assume_unique=True).size:
        return Units(code=code, strata=(np.unique(code),))
    return Units(code=code, strata=(members, nonmembers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Units of the texts that have a score, by rising score.

    Attributes
    ----------
    members
        Unit of each member.
    nonmembers
        Unit of each non-member.
    below
        For each member, non-members whose score is lower.
    not_above
        For each member, non-members whose score is not higher.
    beaten
        For each non-member, members whose score is not higher.
    """

    members: NDArray[np.intp]
    nonmembers: NDArray[np.intp]
    below: NDArray[np.intp]
    not_above: NDArray[np.intp]
    beaten: NDArray[np.intp]


def rank(member: NDArray[np.bool_], score: NDArray[np.float64], unit: NDArray[np.intp]) -> Ranking:
    """Sort texts for `resample`."""
    order = np.argsort(score, kind="stable")
    of_member = member[order]
    members, nonmembers = order[of_member], order[~of_member]
    return Ranking(
        members=unit[members],
        nonmembers=unit[nonmembers],
        below=score[nonmembers].searchsorted(score[members], side="left"),
        not_above=score[nonmembers].searchsorted(score[members], side="right"),
        beaten=score[members].searchsorted(score[nonmembers], side="right"),
    )


def resample(
    rankings: Sequence[Ranking],
    units: Units,
    *,
    seed: int,
    budgets: Sequence[float] = (),
    n_resamples: int = N_RESAMPLES,
) -> NDArray[np.float64]:
    """Measure scores in resamples, each as many units of each stratum as there are.

    Float64, (resamples, scores, 1 + budgets): the AUC, then the largest TPR whose FPR is at most
    each budget; NaN where a resample lacks a class. The same for any number of threads, and other
    calls with the same units and seed meet the same resamples.

    References
    ----------
    Efron and Tibshirani (1993), "An introduction to the bootstrap", chapter 8 (two samples);
    Davison and Hinkley (1997), "Bootstrap methods and their application", section 3.8 (groups).
    """
    starts = range(0, n_resamples, units.at_once)

    def block(start: int) -> NDArray[np.float64]:
        n = min(units.at_once, n_resamples - start)
        drawn = _draw(units, n, np.random.default_rng([seed, start]))
        measured = [_measure(drawn, ranking, budgets) for ranking in rankings]
        return np.stack(measured, axis=1) if measured else np.empty((n, 0, 1 + len(budgets)))

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
        return np.concatenate(list(threads.map(block, starts)))


def n_allowed(n: NDArray[np.integer] | int, budget: float) -> NDArray[np.intp]:
    """Non-members that may be flagged: the most whose share is at most the budget."""
    return np.floor(np.asarray(n) * budget * (1 + 1e-12)).astype(np.intp)


def _draw(units: Units, n: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Count how often each unit is drawn in each of n resamples."""
    drawn = np.zeros((n, int(units.code.max()) + 1), dtype=np.int32)
    for stratum in units.strata:
        size = stratum.size
        picks = rng.integers(size, size=(n, size))
        picks += np.arange(n)[:, None] * size
        counts = np.bincount(picks.ravel(), minlength=n * size).reshape(n, size)
        drawn[:, stratum] = counts
    return drawn


def _measure(
    drawn: NDArray[np.int32], ranking: Ranking, budgets: Sequence[float]
) -> NDArray[np.float64]:
    """AUC and rates in each resample, one row each: Mann-Whitney's sum with multiplicities."""
    members = drawn.take(ranking.members, axis=1)
    nonmembers = _sums(drawn.take(ranking.nonmembers, axis=1))
    n_members, n_nonmembers = members.sum(axis=1), nonmembers[:, -1]
    won = nonmembers.take(ranking.below, axis=1)
    won += nonmembers.take(ranking.not_above, axis=1)
    pairs = 2.0 * n_members * n_nonmembers
    measured = np.full((len(drawn), 1 + len(budgets)), np.nan)
    there = pairs > 0
    wins = np.einsum("ij,ij->i", members, won, dtype=np.int64)
    measured[there, 0] = wins[there] / pairs[there]
    if budgets:
        up_to = _sums(members)
        for column, budget in enumerate(budgets, start=1):
            spared = n_nonmembers - n_allowed(n_nonmembers, budget)
            highest = (nonmembers[:, 1:] < spared[:, None]).sum(axis=1)
            missed = np.take_along_axis(up_to, ranking.beaten[highest][:, None], axis=1)[:, 0]
            measured[there, column] = 1 - missed[there] / n_members[there]
    return measured


def _sums(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Add up along each row, from 0."""
    sums = np.zeros((counts.shape[0], counts.shape[1] + 1), dtype=np.int32)
    np.cumsum(counts, axis=1, out=sums[:, 1:])
    return sums
