"""What the targets table says before any score is seen: power, and lengths on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.inference.exchangeability import LengthDifference, compare_lengths
from mia_batch.inference.group_level import GroupTest
from mia_batch.inference.groups import n_orders
from mia_batch.inference.power import Power, power
from mia_batch.inference.sides import read_sides
from mia_batch.inference.target_level import TargetTest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mia_batch.inference.plan import VerdictPlan

__all__ = ["foresee_power", "length_difference"]


def foresee_power(targets: pl.LazyFrame, plan: VerdictPlan) -> Power | None:
    """Say what the planned test can show at best.

    Parameters
    ----------
    targets
        The targets table.
    plan
        The plan; with buckets of lengths, the one with the most nulls counts.

    Returns
    -------
    Power | None
        The answer; none where there is no target or no non-member.
    """
    sides = read_sides(targets)
    if not (sides.targets.size and sides.nulls.size):
        return None
    if plan.level == "target":
        test = TargetTest(sides, plan)
        return power(sides.targets.size, test.n_null, plan.q, test.adjustment)
    groups = GroupTest(sides, plan)
    n_groups, n_null = (int(units.enough.sum()) for units in (groups.groups, groups.nulls))
    if plan.level == "group":
        return power(groups.groups.sizes.size, n_null, plan.q, plan.adjustment, "group")
    ways = n_orders(n_groups, n_null)
    return power(1, ways - 1, plan.q, plan.adjustment, "collection")


def length_difference(targets: pl.LazyFrame) -> LengthDifference | None:
    """Compare the lengths of targets and nulls, clusters by their mean length.

    Parameters
    ----------
    targets
        The targets table, or scores with the targets' ``role``; texts of unknown length are left
        out.

    Returns
    -------
    LengthDifference | None
        The comparison, in words; none where either side is empty.
    """
    sides = read_sides(targets)
    words = sides.n_words.cast(pl.Float64)

    def of_clusters(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        side = pl.DataFrame({"cluster": sides.cluster[rows], "words": words[rows]})
        means = side.drop_nulls().group_by("cluster", maintain_order=True).agg(pl.mean("words"))
        return means["words"].to_numpy()

    return compare_lengths(of_clusters(sides.targets), of_clusters(sides.nulls))
