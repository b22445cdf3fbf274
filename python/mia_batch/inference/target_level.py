"""Each target on its own: its p-value among the nulls, and its q-value among the targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.inference.conformal import (
    TieDraws,
    p_values,
    q_values,
    sensitivity_bound,
    shared_weights,
    tie_draws,
)
from mia_batch.inference.rows import verdict_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets
    from mia_batch.inference.conformal import Adjustment
    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.rows import AttackScores

__all__ = ["TargetTest"]

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """Targets and the nulls of like length, by their index in the comparison set, ascending."""

    targets: NDArray[np.int64]
    nulls: NDArray[np.int64]
    weights: NDArray[np.float64] | None  # of these nulls, where nulls share clusters
    n_null: int  # independent units: clusters where nulls share them, else texts


def _length_buckets(sets: ComparisonSets, edges: tuple[int, ...]) -> Iterator[_Bucket]:
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
        if targets.size:
            yield _Bucket(
                targets=targets,
                nulls=nulls,
                weights=shared_weights(clusters) if shared else None,
                n_null=np.unique(clusters).size if shared else nulls.size,
            )


class TargetTest:
    """Tests of each target, prepared once for all attacks.

    Where texts share a cluster, their p-values depend on each other in unknown ways, and q-values
    are Benjamini-Yekutieli's, whatever the plan says.
    """

    adjustment: Adjustment
    n_null: int  # independent nulls of the bucket that has the most

    def __init__(self, sets: ComparisonSets, plan: VerdictPlan) -> None:
        dependent = sets.share_clusters(sets.targets, sets.nulls)
        self.adjustment = "by" if dependent else plan.adjustment
        self._sets, self._plan = sets, plan
        self._method = "conformal_groups" if sets.share_clusters(sets.nulls) else "conformal"
        self._buckets = list(_length_buckets(sets, plan.length_edges))
        self.n_null = max((bucket.n_null for bucket in self._buckets), default=0)
        self._draws = tie_draws(sets.target_id, plan.seed) if plan.ties == "random" else None

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Yield verdicts on every target in the table's order, in parts, at least one frame."""
        rows = self._sets.targets
        scores, (p, n_null) = found.scores[rows], self.p_values(found.scores)
        columns: dict[str, pl.Series | NDArray[np.float64]] = {
            "key": self._sets.target_id[rows],
            "score": scores,
            "n_null": n_null,
            "p_value": p,
            "q_value": q_values(p, self.adjustment),
            "sensitivity_bound": sensitivity_bound(p),
            "reason": _reasons(scores, p),
        }
        for start in range(0, max(rows.size, 1), _ROWS_AT_ONCE):
            part = {name: column[start : start + _ROWS_AT_ONCE] for name, column in columns.items()}
            yield verdict_rows(
                len(part["key"]),
                attack=found.attack,
                level="target",
                versus="non_members",
                planned=found.planned(self._plan, "target"),
                adjustment=self.adjustment,
                method=self._method,
                **part,
            )

    def p_values(
        self, scores: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the p-value of each target, and how many independent nulls it rests on."""
        p, n_null = np.full(self._sets.targets.size, np.nan), np.zeros(self._sets.targets.size)
        for bucket in self._buckets:
            p[bucket.targets] = self._p_values(scores, bucket)
            n_null[bucket.targets] = bucket.n_null
        return p, n_null

    def _p_values(self, scores: NDArray[np.float64], bucket: _Bucket) -> NDArray[np.float64]:
        targets, nulls = self._sets.targets[bucket.targets], self._sets.nulls[bucket.nulls]
        draws = self._draws
        ties = None if draws is None else TieDraws(draws[targets], draws[nulls])
        return p_values(scores[targets], scores[nulls], weights=bucket.weights, ties=ties)


def _reasons(scores: NDArray[np.float64], p: NDArray[np.float64]) -> pl.Series:
    """Say why p-values are missing."""
    lost = pl.DataFrame({"score": np.isnan(scores), "p": np.isnan(p)})
    return lost.select(
        pl.when("score")
        .then(pl.lit("the target has no score"))
        .when("p")
        .then(pl.lit("the target's number of words is unknown, so it is in no bucket of lengths"))
    ).to_series()
