"""An attack's AUC among texts that look alike to a blind classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.stats.influence import estimate_auc
from mia_batch.stats.intervals import Interval, estimate_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BlindFifth", "fifth_aucs"]

_N_FIFTHS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindFifth:
    """An attack's AUC within one fifth of the blind score.

    Attributes
    ----------
    slice
        ``blind fifth 1`` (least likely members, says the blind classifier) to ``blind fifth 5``.
    value
        ROC AUC; null where the fifth lacks a class.
    interval
        Its interval; null where the data cannot support one.
    reason
        Why value or interval is null.
    n_members
        Scored members in the fifth.
    n_nonmembers
        Scored non-members in the fifth.
    n_unscored
        Texts in the fifth without a score.
    """

    slice: str
    value: float | None
    interval: Interval | None
    reason: str | None
    n_members: int
    n_nonmembers: int
    n_unscored: int


def fifth_aucs(
    member: NDArray[np.bool_],
    score: NDArray[np.float64],
    blind: NDArray[np.float64],
    cluster: NDArray[np.int32] | None,
) -> list[BlindFifth]:
    """Measure an attack within fifths of the blind score; equal blind scores stay together.

    Where an attack only repeats what the text alone tells, little is left within fifths.

    Parameters
    ----------
    member
        Whether each text is a member.
    score
        Score of each text by the attack; NaN where it has none.
    blind
        Score of each text by a blind classifier, from texts that it was not trained on.
    cluster
        Code of each text's cluster, from 0; null where texts are independent.

    Returns
    -------
    list[BlindFifth]
        Five fifths, the lowest blind scores first.
    """
    limits = np.quantile(blind, np.arange(1, _N_FIFTHS) / _N_FIFTHS)
    fifth = limits.searchsorted(blind, side="right")
    scored = ~np.isnan(score)
    return [
        _measure(
            f"blind fifth {place + 1}",
            member[within],
            score[within],
            None if cluster is None else cluster[within],
            n_unscored=int(np.count_nonzero((fifth == place) & ~scored)),
        )
        for place, within in enumerate((fifth == place) & scored for place in range(_N_FIFTHS))
    ]


def _measure(
    name: str,
    member: NDArray[np.bool_],
    score: NDArray[np.float64],
    cluster: NDArray[np.int32] | None,
    *,
    n_unscored: int,
) -> BlindFifth:
    value = interval = None
    n_members = int(member.sum())
    n_nonmembers = member.size - n_members
    if n_members and n_nonmembers:
        estimate, _ = estimate_auc(member, score, cluster)
        value, interval, reason = estimate.value, estimate_interval(estimate), estimate.lack
    else:
        reason = f"there is no scored {'non-member' if n_members else 'member'} in this fifth"
    return BlindFifth(
        slice=name,
        value=value,
        interval=interval,
        reason=reason,
        n_members=n_members,
        n_nonmembers=n_nonmembers,
        n_unscored=n_unscored,
    )
