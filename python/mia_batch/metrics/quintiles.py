"""An attack's AUC among texts that look alike to a blind classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.influence import estimate_auc
from mia_batch.stats.intervals import Interval, estimate_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BlindQuintile", "quintile_aucs"]

_N_QUINTILES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindQuintile:
    """An attack's AUC within one quintile of the blind score.

    Attributes
    ----------
    slice
        ``blind quintile 1`` (least likely members to the blind classifier) to ``blind quintile 5``.
    value
        ROC AUC; None where the quintile lacks a class.
    interval
        Its interval; None where the data cannot support one.
    reason
        Why value or interval is None.
    n_members
        Scored members in the quintile.
    n_nonmembers
        Scored non-members in the quintile.
    n_unscored
        Texts in the quintile without a score.
    """

    slice: str
    value: float | None
    interval: Interval | None
    reason: str | None
    n_members: int
    n_nonmembers: int
    n_unscored: int


def quintile_aucs(
    member: NDArray[np.bool_],
    score: NDArray[np.float64],
    blind: NDArray[np.float64],
    cluster: NDArray[np.int32] | None,
) -> list[BlindQuintile]:
    """Measure an attack within quintiles of the blind score; equal blind scores stay together.

    Where an attack only repeats what the text alone tells, little is left within quintiles.
    """
    limits = np.quantile(blind, np.arange(1, _N_QUINTILES) / _N_QUINTILES)
    quintile = limits.searchsorted(blind, side="right")
    scored = ~np.isnan(score)
    return [
        _measure(
            f"blind quintile {place + 1}",
            member[within],
            score[within],
            None if cluster is None else cluster[within],
            n_unscored=int(np.count_nonzero((quintile == place) & ~scored)),
        )
        for place, within in enumerate(
            (quintile == place) & scored for place in range(_N_QUINTILES)
        )
    ]


def _measure(
    name: str,
    member: NDArray[np.bool_],
    score: NDArray[np.float64],
    cluster: NDArray[np.int32] | None,
    *,
    n_unscored: int,
) -> BlindQuintile:
    value = interval = None
    n_members = int(member.sum())
    n_nonmembers = member.size - n_members
    if n_members and n_nonmembers:
        estimate, _ = estimate_auc(member, score, cluster)
        value, interval, reason = estimate.value, estimate_interval(estimate), estimate.lack
    else:
        reason = f"there is no scored {'non-member' if n_members else 'member'} in this quintile"
    return BlindQuintile(
        slice=name,
        value=value,
        interval=interval,
        reason=reason,
        n_members=n_members,
        n_nonmembers=n_nonmembers,
        n_unscored=n_unscored,
    )
