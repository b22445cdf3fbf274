"""Each target, each group and all groups together: p-values among the nulls, and q-values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import polars as pl

from mia_batch.inference.comparison import (
    ComparisonSets,
    collection_test,
    cut_units,
    windows_per_group,
)
from mia_batch.inference.conformal import (
    NO_WEIGHT,
    Adjustment,
    TieDraws,
    p_values,
    q_values,
    sensitivity_bound,
    shared_weights,
    tie_draws,
    weighted_q_values,
)
from mia_batch.inference.findings import AttackScores, VerdictPlan, verdict_rows
from mia_batch.stats import Floats, Ints
from mia_batch.stats.clusters import effective_number

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """Targets and the nulls of like length, by their index in the comparison set, ascending."""

    targets: Ints
    nulls: Ints
    weights: Floats | None  # of these nulls, where nulls share clusters or have odds
    n_null: int  # independent units: clusters where nulls share them, else texts

    @property
    def total(self) -> float:
        return float(self.nulls.size if self.weights is None else self.weights.sum())


def _length_buckets(
    sets: ComparisonSets, edges: tuple[int, ...], odds: Floats | None
) -> Iterator[_Bucket]:
    """Sort targets and nulls by length; yield buckets that have targets.

    A target of unknown length is in none; a null of unknown length, which counts as higher than
    everything, is in all. Without edges all lengths are one bucket.
    """
    lengths = sets.n_words.cast(pl.Float64).to_numpy()
    which = np.searchsorted(edges, lengths, side="right")
    unknown = np.isnan(lengths) if edges else np.zeros(lengths.size, np.bool_)
    shared = sets.share_clusters(sets.nulls)
    for bucket in range(len(edges) + 1):
        targets = np.flatnonzero((which == bucket)[sets.targets] & ~unknown[sets.targets])
        nulls = np.flatnonzero((which == bucket)[sets.nulls] | unknown[sets.nulls])
        clusters = sets.cluster[sets.nulls][nulls]
        weights = shared_weights(clusters) if shared else None
        n_null = np.unique(clusters).size if shared else nulls.size
        if odds is not None:
            weights = shared_weights(clusters) * odds[sets.nulls][nulls]
            n_null = int(effective_number(np.bincount(clusters, weights))) if nulls.size else 0
        if targets.size:
            yield _Bucket(targets=targets, nulls=nulls, weights=weights, n_null=n_null)


class Odds(NamedTuple):
    """Odds of each text, or of its group, of being audited; 1 on average over the nulls."""

    of_rows: Floats  # of the table; NaN where there is no blind score, or no set
    n_null: int  # independent nulls: texts, or groups where texts share them
    n_effective: float
    auc: float  # of a second classifier, targets against weighted nulls
    lack: str | None  # why there can be no answer with these weights

    def own(self, rows: Ints) -> Floats:
        """Weights of audited rows; NaN where there can be no answer."""
        return np.full(rows.size, np.nan) if self.lack else self.of_rows[rows]


class TargetTest:
    """Tests of each target, prepared once for all attacks.

    Where texts share a cluster, their p-values depend on each other in unknown ways, and q-values
    are Benjamini-Yekutieli's, whatever the plan says. With ``odds`` nulls are weighted, and
    q-values those of `weighted_q_values` where these are proved to hold.
    """

    adjustment: Adjustment
    n_null: int  # independent nulls of the bucket that has the most

    def __init__(self, sets: ComparisonSets, plan: VerdictPlan, odds: Odds | None = None) -> None:
        dependent = sets.share_clusters(sets.targets, sets.nulls)
        self.adjustment = "by" if dependent else plan.adjustment
        self._method = "conformal_groups" if sets.share_clusters(sets.nulls) else "conformal"
        self._own, self._lack, of_rows = np.ones(sets.targets.size), None, None
        if odds is not None:
            of_rows, self._lack = odds.of_rows, odds.lack or NO_WEIGHT
            self._own = odds.own(sets.targets)
            sets = replace(sets, nulls=sets.nulls[~np.isnan(of_rows[sets.nulls])])
            self._method = f"weighted_{self._method}"
        self._sets, self._plan = sets, plan
        self._buckets = list(_length_buckets(sets, plan.length_edges, of_rows))
        if odds is not None and len(self._buckets) > 1:
            self.adjustment = "by"
        self._selects = odds is not None and self.adjustment == "bh"
        self._total = sum(bucket.total for bucket in self._buckets)
        self.n_null = max((bucket.n_null for bucket in self._buckets), default=0)
        random = plan.ties == "random" and odds is None
        self._draws = tie_draws(sets.target_id, plan.seed) if random else None

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Yield verdicts on every target in the table's order, in parts, at least one frame."""
        rows = self._sets.targets
        scores, (p, n_null) = found.scores[rows], self.p_values(found.scores)
        if self._selects:
            names, plan = self._sets.target_id, self._plan
            q = weighted_q_values(scores, p, self._own, self._total, plan.q, names, plan.seed)
        else:
            q = q_values(p, self.adjustment)
        columns: dict[str, pl.Series | Floats] = {
            "key": self._sets.target_id[rows],
            "score": scores,
            "n_null": n_null,
            "p_value": p,
            "q_value": q,
            "sensitivity_bound": sensitivity_bound(p),
            "reason": self._reasons(scores, p),
        }
        for start in range(0, max(rows.size, 1), _ROWS_AT_ONCE):
            part = {name: column[start : start + _ROWS_AT_ONCE] for name, column in columns.items()}
            yield verdict_rows(
                len(part["key"]),
                attack=found.attack,
                level="target",
                planned=found.planned(self._plan, "target"),
                adjustment="wcs" if self._selects else self.adjustment,
                method=self._method,
                **part,
            )

    def p_values(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return the p-value of each target, and how many independent nulls it rests on."""
        p, n_null = np.full(self._sets.targets.size, np.nan), np.zeros(self._sets.targets.size)
        draws = self._draws
        for bucket in self._buckets:
            targets, nulls = self._sets.targets[bucket.targets], self._sets.nulls[bucket.nulls]
            p[bucket.targets] = p_values(
                scores[targets],
                scores[nulls],
                weights=bucket.weights,
                own=self._own[bucket.targets],
                ties=None if draws is None else TieDraws(draws[targets], draws[nulls]),
            )
            n_null[bucket.targets] = bucket.n_null
        return p, n_null

    def _reasons(self, scores: Floats, p: Floats) -> pl.Series:
        """Say why p-values are missing."""
        columns = {"score": scores, "weight": self._own, "p": p}
        lost = pl.DataFrame({name: np.isnan(column) for name, column in columns.items()})
        unknown = "the target's number of words is unknown, so it is in no bucket of lengths"
        return lost.select(
            pl.when("score")
            .then(pl.lit("the target has no score"))
            .when("weight")
            .then(pl.lit(self._lack))
            .when("p")
            .then(pl.lit(unknown))
        ).to_series()


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
            self.ties = TieDraws(
                *(
                    tie_draws((f"{level} {key}" for level, key in names.iter_rows()), plan.seed)
                    for names in (groups, nulls)
                )
            )

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

    def _collection(self, found: AttackScores, scores: Floats, nulls: Floats) -> pl.DataFrame:
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
            planned=found.planned(self._plan, "collection"),
            score=test and test.score,
            n_null=self._n_null,
            p_value=test and test.p_value,
            method=test and test.method,
            reason=reason,
        )

    def _reasons(self, scores: Floats) -> list[str | None]:
        unscored, few = "one of the group's windows has no score", self.groups.too_few()
        lost = zip(few, np.isnan(scores), np.isnan(self._own), strict=True)
        return [
            reason or (unscored if no_score else self._lack if no_weight else None)
            for reason, no_score, no_weight in lost
        ]
