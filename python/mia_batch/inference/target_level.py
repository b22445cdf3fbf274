"""Each target on its own: its p-value among the nulls, and its q-value among the targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.inference.conformal import TieDraws, p_values, shared_weights, tie_draws
from mia_batch.inference.exchangeability import odds_factor
from mia_batch.inference.multiplicity import q_values
from mia_batch.inference.rows import verdict_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mia_batch.inference.multiplicity import Adjustment
    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.rows import AttackScores
    from mia_batch.inference.sides import Sides

__all__ = ["Bucket", "TargetTest", "length_buckets"]

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Targets and the nulls that they are compared with.

    Attributes
    ----------
    targets
        Positions among the targets, rising.
    nulls
        Positions among the nulls, rising.
    weights
        Of these nulls, where nulls share clusters; none: 1 each.
    n_null
        Independent units among these nulls: clusters where they share them, else texts.
    """

    targets: NDArray[np.int64]
    nulls: NDArray[np.int64]
    weights: NDArray[np.float64] | None
    n_null: int


def length_buckets(sides: Sides, edges: tuple[int, ...]) -> list[Bucket]:
    """Sort targets and nulls into buckets of like length.

    Parameters
    ----------
    sides
        Who is compared with whom.
    edges
        Words at which a new bucket begins, rising; none: one bucket of everything.

    Returns
    -------
    list of Bucket
        Those that have targets. A target of unknown length is in none; a null of unknown length,
        which counts as higher than everything, is in all.
    """
    lengths = sides.n_words.cast(pl.Float64).to_numpy()
    which = np.searchsorted(edges, lengths, side="right")
    unknown = np.isnan(lengths) if edges else np.zeros(lengths.size, np.bool_)
    shared = sides.shares(sides.nulls)
    buckets = []
    for bucket in range(len(edges) + 1):
        targets = np.flatnonzero((which == bucket)[sides.targets] & ~unknown[sides.targets])
        nulls = np.flatnonzero((which == bucket)[sides.nulls] | unknown[sides.nulls])
        clusters = sides.cluster[sides.nulls][nulls]
        made = Bucket(
            targets=targets,
            nulls=nulls,
            weights=shared_weights(clusters) if shared else None,
            n_null=np.unique(clusters).size if shared else nulls.size,
        )
        if targets.size:
            buckets.append(made)
    return buckets


class TargetTest:
    """Tests of each target, prepared once for all attacks.

    Attributes
    ----------
    adjustment
        The procedure of the q-values: the plan's, or ``by`` where texts on either side share a
        cluster, since their p-values then depend on each other in unknown ways.
    n_null
        Independent nulls of the bucket that has the most.

    Parameters
    ----------
    sides
        Who is compared with whom.
    plan
        How.
    """

    adjustment: Adjustment

    def __init__(self, sides: Sides, plan: VerdictPlan) -> None:
        dependent = sides.shares(sides.targets, sides.nulls)
        self.adjustment = "by" if dependent else plan.adjustment
        self._sides, self._plan = sides, plan
        test = "conformal_groups" if sides.shares(sides.nulls) else "conformal"
        self._method = f"{test}+{self.adjustment}"
        self._buckets = length_buckets(sides, plan.length_edges)
        self.n_null = max((bucket.n_null for bucket in self._buckets), default=0)
        self._draws = tie_draws(sides.target_id, plan.seed) if plan.ties == "random" else None

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Test every target by the scores of one attack.

        Parameters
        ----------
        found
            The scores.

        Yields
        ------
        DataFrame
            Rows of level ``target`` of the verdicts table, in the order of the targets, so many
            at a time; at least one frame.
        """
        rows = self._sides.targets
        scores, p, n_null = found.scores[rows], np.full(rows.size, np.nan), np.zeros(rows.size)
        for bucket in self._buckets:
            p[bucket.targets] = self._p_values(found.scores, bucket)
            n_null[bucket.targets] = bucket.n_null
        columns: dict[str, pl.Series | NDArray[np.float64]] = {
            "key": self._sides.target_id[rows],
            "score": scores,
            "n_null": n_null,
            "p_value": p,
            "q_value": q_values(p, self.adjustment),
            "odds_factor": odds_factor(p),
            "reason": _reasons(scores, p),
        }
        for start in range(0, max(rows.size, 1), _ROWS_AT_ONCE):
            part = {name: column[start : start + _ROWS_AT_ONCE] for name, column in columns.items()}
            yield verdict_rows(
                len(part["key"]),
                attack=found.attack,
                level="target",
                planned=found.planned(self._plan, "target"),
                method=self._method,
                **part,
            )

    def _p_values(self, scores: NDArray[np.float64], bucket: Bucket) -> NDArray[np.float64]:
        targets, nulls = self._sides.targets[bucket.targets], self._sides.nulls[bucket.nulls]
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
