"""Clusters of texts as units, each by as many of its windows as the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.inference.groups import group_statistics, pattern, usual_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.sides import Sides

__all__ = ["Units", "cut_units", "windows_per_group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The clusters of one side.

    Attributes
    ----------
    cluster
        Which cluster each is, rising.
    sizes
        How many windows each has.
    enough
        Whether these are enough to compare it.
    chosen
        Rows of the windows compared, a line for each cluster that has enough.
    """

    cluster: NDArray[np.int64]
    sizes: NDArray[np.int64]
    enough: NDArray[np.bool_]
    chosen: NDArray[np.int64]

    def statistics(self, scores: NDArray[np.float64], plan: VerdictPlan) -> NDArray[np.float64]:
        """Summarise the clusters that have enough windows.

        Parameters
        ----------
        scores
            One per row of the table; NaN = unscored.
        plan
            Names the statistic.

        Returns
        -------
        ndarray
            Float64; NaN where one of the windows compared is unscored.
        """
        return group_statistics(scores, self.chosen, plan.statistic)


def windows_per_group(sides: Sides, plan: VerdictPlan) -> int:
    """How many windows of each cluster are compared; scores play no part.

    Parameters
    ----------
    sides
        Who is compared with whom; one side must have rows.
    plan
        Names the number, or leaves it to the sizes of audited and null clusters.

    Returns
    -------
    int
        At least 1.
    """
    sizes = [
        np.unique(sides.cluster[rows], return_counts=True)[1]
        for rows in (sides.targets, sides.nulls)
    ]
    return plan.windows_per_group or usual_windows(np.concatenate(sizes))


def cut_units(sides: Sides, rows: NDArray[np.int64], n_windows: int, seed: int) -> Units:
    """Cut the clusters of one side to so many windows.

    Parameters
    ----------
    sides
        Which row belongs to which cluster.
    rows
        The rows of one side, rising: a cluster's windows are in the table's order.
    n_windows
        Windows to choose of each cluster.
    seed
        Draws the `pattern`.

    Returns
    -------
    Units
        All clusters of the side.
    """
    ordered = rows[sides.cluster[rows].argsort(kind="stable")]
    cluster, starts, sizes = np.unique(
        sides.cluster[ordered], return_index=True, return_counts=True
    )
    enough = sizes >= n_windows
    chosen = np.empty((cluster.size, n_windows), np.int64)
    for size in np.unique(sizes[enough]):
        alike = sizes == size
        chosen[alike] = starts[alike, None] + pattern(int(size), n_windows, seed)
    return Units(cluster=cluster, sizes=sizes, enough=enough, chosen=ordered[chosen[enough]])
