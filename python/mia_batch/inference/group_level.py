"""Whole groups: the p-value of each among the null groups, and that of all together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.inference.conformal import (
    NO_WEIGHT,
    TieDraws,
    p_values,
    q_values,
    sensitivity_bound,
    tie_draws,
    weighted_q_values,
)
from mia_batch.inference.groups import collection_test, cut_units, windows_per_group
from mia_batch.inference.rows import verdict_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets
    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.rows import AttackScores
    from mia_batch.inference.weights import Odds

__all__ = ["GroupTest"]


class GroupTest:
    """Tests of each group and of the collection, prepared once for all attacks.

    A group is a cluster: a ``group``, else a document. Null groups with too few windows are left
    out, for their number is known before scores are seen; audited ones with too few have no p-value
    and stay in the number of tests. With ``odds`` null groups are weighted.
    """

    def __init__(self, sets: ComparisonSets, plan: VerdictPlan, odds: Odds | None = None) -> None:
        self.n_windows = windows_per_group(sets, plan)
        self.groups = cut_units(sets, sets.targets, self.n_windows, plan.seed)
        self.nulls = cut_units(sets, sets.nulls, self.n_windows, plan.seed)
        self._plan = plan
        self._names = sets.clusters[self.groups.cluster].with_columns(
            level=pl.col("level").replace({"target": "document"})
        )
        self._own, self._weights, self._lack = np.ones(self.groups.sizes.size), None, None
        self._n_null, self._adjustment = int(self.nulls.enough.sum()), str(plan.adjustment)
        self._method = f"conformal_{plan.statistic}_of_{self.n_windows}"
        if odds is not None:
            self._own[self.groups.enough] = odds.own(self.groups.chosen[:, 0])
            self._weights = np.nan_to_num(odds.of_rows[self.nulls.chosen[:, 0]])
            self._lack, self._n_null = odds.lack or NO_WEIGHT, int(odds.n_effective)
            self._adjustment = "wcs" if plan.adjustment == "bh" else "by"
            self._method = f"weighted_{self._method}"
        self.ties = None
        if plan.ties == "random" and odds is None:
            nulls = sets.clusters[self.nulls.cluster[self.nulls.enough]]
            groups = self._names.filter(self.groups.enough)
            self.ties = TieDraws(*(self._draws(names) for names in (groups, nulls)))

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Yield verdicts on every group, by name, and on the collection.

        Texts without a group are of level ``document``.
        """
        groups, plan = self.groups, self._plan
        scores = np.full(groups.sizes.size, np.nan)
        scores[groups.enough] = groups.statistics(found.scores, plan)
        nulls = self.nulls.statistics(found.scores, plan)
        p = p_values(scores, nulls, weights=self._weights, own=self._own)
        if self.ties is not None:
            p[groups.enough] = p_values(scores[groups.enough], nulls, ties=self.ties)
        if self._weights is None or plan.adjustment == "by":
            q = q_values(p, plan.adjustment)
        else:
            total, names = float(self._weights.sum()), self._names["key"]
            q = weighted_q_values(scores, p, self._own, total, plan.q, names, plan.seed)
        yield verdict_rows(
            scores.size,
            attack=found.attack,
            level=self._names["level"],
            key=self._names["key"],
            versus="non_members",
            planned=found.planned(plan, "group"),
            score=scores,
            n_null=self._n_null,
            p_value=p,
            q_value=q,
            adjustment=self._adjustment,
            sensitivity_bound=sensitivity_bound(p),
            method=self._method,
            reason=self._reasons(scores),
        )
        yield self._collection(found, scores[groups.enough], nulls)

    def _collection(
        self, found: AttackScores, scores: NDArray[np.float64], nulls: NDArray[np.float64]
    ) -> pl.DataFrame:
        test, reason, odds = None, None, None
        if self._weights is not None:
            odds = np.concatenate([self._own[self.groups.enough], self._weights])
        if odds is not None and not (odds > 0).all():
            reason = self._lack
        elif scores.size and nulls.size:
            test = collection_test(scores, nulls, self._plan.seed, odds)
        else:
            reason = f"no {'audited' if nulls.size else 'null'} group has {self.n_windows} windows"
        return verdict_rows(
            1,
            attack=found.attack,
            level="collection",
            versus="non_members",
            planned=found.planned(self._plan, "collection"),
            score=test and test.score,
            n_null=self._n_null,
            p_value=test and test.p_value,
            method=test and test.method,
            reason=reason,
        )

    def _reasons(self, scores: NDArray[np.float64]) -> list[str | None]:
        unscored = "one of the group's windows has no score"
        return [
            f"the group has {size} of {self.n_windows} windows"
            if size < self.n_windows
            else (unscored if lost else self._lack if without_weight else None)
            for size, lost, without_weight in zip(
                self.groups.sizes.tolist(),
                np.isnan(scores).tolist(),
                np.isnan(self._own).tolist(),
                strict=True,
            )
        ]

    def _draws(self, names: pl.DataFrame) -> NDArray[np.float64]:
        keys = (f"{level} {key}" for level, key in names.iter_rows())
        return tie_draws(keys, self._plan.seed)
