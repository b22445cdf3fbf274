"""Canaries in a table of scores: a set is a group, its published text the only member."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mia_batch.errors import RequestError
from mia_batch.inference.canaries import canary_p_value, canary_ranks, rank_sum_p_value
from mia_batch.inference.rows import verdict_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl
    from numpy.typing import NDArray

    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.rows import AttackScores
    from mia_batch.inference.sides import Sides

__all__ = ["CanaryTest"]


class _Set(NamedTuple):
    name: str
    published: int
    twins: NDArray[np.int64]


class CanaryTest:
    """Tests of every committed set of canaries, prepared once for all attacks.

    Parameters
    ----------
    sides
        Which rows are canaries.
    plan
        Names the primary attack.

    Raises
    ------
    RequestError
        If a set has not exactly one published text, or no twin.
    """

    def __init__(self, sides: Sides, plan: VerdictPlan) -> None:
        self._plan = plan
        rows = np.concatenate([sides.published, sides.twins])
        self._sets = [_one_set(sides, cluster) for cluster in np.unique(sides.cluster[rows])]

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Test every set, and all together, by the scores of one attack.

        Parameters
        ----------
        found
            The scores.

        Yields
        ------
        DataFrame
            Rows of the verdicts table: level ``group`` for each set, in the order of their names,
            and one of level ``collection`` where there are several.
        """
        scores = [(found.scores[one.published], found.scores[one.twins]) for one in self._sets]
        p = np.array([canary_p_value(*of_set) for of_set in scores])
        planned = found.planned(self._plan)
        yield verdict_rows(
            len(self._sets),
            attack=found.attack,
            level="group",
            key=[one.name for one in self._sets],
            planned=planned,
            score=np.array([published for published, _ in scores]),
            n_null=[one.twins.size for one in self._sets],
            p_value=p,
            method="canary_rank",
            reason=["the published text has no score" if np.isnan(one) else None for one in p],
        )
        if len(self._sets) > 1:
            yield verdict_rows(
                1,
                attack=found.attack,
                level="collection",
                planned=planned,
                n_null=sum(one.twins.size for one in self._sets),
                p_value=rank_sum_p_value([canary_ranks(*of_set) for of_set in scores]),
                method=f"canary_rank_sum_of_{len(self._sets)}",
            )


def _one_set(sides: Sides, cluster: int) -> _Set:
    published, twins = (
        rows[sides.cluster[rows] == cluster] for rows in (sides.published, sides.twins)
    )
    name = sides.clusters["key"][int(cluster)]
    if published.size != 1 or not twins.size:
        msg = (
            f"the canaries {name!r} have {published.size} published texts and {twins.size} twins; "
            "give one published text and all its twins, each as one target"
        )
        raise RequestError(msg)
    return _Set(name, int(published[0]), twins)
