"""Canaries: published texts drawn by lot from committed sets, so that the null is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mia_batch.errors import RequestError
from mia_batch.inference.rows import verdict_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl
    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets
    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.rows import AttackScores

__all__ = ["CanaryTest", "canary_p_value", "canary_ranks", "rank_sum_p_value"]


def canary_p_value(published: float, controls: NDArray[np.float64]) -> float:
    """p-value of one set: (1 + controls that score as high) / (1 + controls); NaN if unscored.

    The draw alone makes it valid: every text of the set could have been the published one. An
    unscored control (NaN) counts as higher.
    """
    if np.isnan(published):
        return float("nan")
    return float((1 + np.count_nonzero(~(controls < published))) / (1 + controls.size))


def canary_ranks(published: float, controls: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank the texts of one set from 1, the published one first; ties share their mean rank.

    An unscored published text has the lowest rank, unscored controls have the highest.
    """
    from scipy.stats import rankdata

    lost = np.isnan(controls)
    ranks = np.empty(controls.size + 1, np.float64)
    ranks[1:][lost] = controls.size + 1 - np.arange(np.count_nonzero(lost))
    known = np.concatenate(([True], ~lost))
    scores = np.concatenate(([np.nan_to_num(published, nan=-np.inf)], controls[~lost]))
    ranks[known] = rankdata(scores)
    return ranks


def rank_sum_p_value(sets: Sequence[NDArray[np.float64]]) -> float:
    """p-value of all committed sets together: the sum of the published texts' ranks, exact.

    In each set the published text is equally likely to have any rank, whatever happens in other
    sets, so the distribution of the sum is the convolution of theirs. ``sets`` are the
    `canary_ranks` of every set, none left out.
    """
    distribution: NDArray[np.float64] = np.ones(1)
    for ranks in sets:
        half_ranks = np.bincount((2 * ranks).astype(np.int64))
        distribution = np.convolve(distribution, half_ranks / ranks.size).astype(np.float64)
    observed = int(sum(2 * ranks[0] for ranks in sets))
    return float(min(1.0, distribution[observed:].sum()))


class _Set(NamedTuple):
    name: str
    published: int
    controls: NDArray[np.int64]


class CanaryTest:
    """Tests of every committed set of canaries, prepared once for all attacks."""

    def __init__(self, sets: ComparisonSets, plan: VerdictPlan) -> None:
        self._plan = plan
        rows = np.concatenate([sets.published, sets.controls])
        self._sets = [_one_set(sets, cluster) for cluster in np.unique(sets.cluster[rows])]

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Yield a verdict on each set, by name, and one on the collection of several."""
        scores = [(found.scores[one.published], found.scores[one.controls]) for one in self._sets]
        p = np.array([canary_p_value(*of_set) for of_set in scores])
        planned = found.planned(self._plan)
        yield verdict_rows(
            len(self._sets),
            attack=found.attack,
            level="group",
            key=[one.name for one in self._sets],
            versus="controls",
            planned=planned,
            score=np.array([published for published, _ in scores]),
            n_null=[one.controls.size for one in self._sets],
            p_value=p,
            method="canary_rank",
            reason=["the published text has no score" if np.isnan(one) else None for one in p],
        )
        if len(self._sets) > 1:
            yield verdict_rows(
                1,
                attack=found.attack,
                level="collection",
                versus="controls",
                planned=planned,
                n_null=sum(one.controls.size for one in self._sets),
                p_value=rank_sum_p_value([canary_ranks(*of_set) for of_set in scores]),
                method=f"canary_rank_sum_of_{len(self._sets)}",
            )


def _one_set(sets: ComparisonSets, cluster: int) -> _Set:
    published, controls = (
        rows[sets.cluster[rows] == cluster] for rows in (sets.published, sets.controls)
    )
    name = sets.clusters["key"][int(cluster)]
    if published.size != 1 or not controls.size:
        msg = (
            f"the canary set {name!r} has {published.size} published texts and {controls.size} "
            "unpublished controls; give one published text and all its controls, each as one target"
        )
        raise RequestError(msg)
    return _Set(name, int(published[0]), controls)
