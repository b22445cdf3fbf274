"""An attack's AUC among texts that look alike to a blind classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.verdict.labelled.intervals import Interval, auc_interval
from mia_batch.verdict.labelled.roc import roc_auc

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
        Its interval, for independent texts; null likewise.
    reason
        Why there is no value; null where there is one.
    n_members
        Members in the fifth.
    n_nonmembers
        Non-members in the fifth.
    """

    slice: str
    value: float | None
    interval: Interval | None
    reason: str | None
    n_members: int
    n_nonmembers: int


def fifth_aucs(
    member: NDArray[np.bool_],
    score: NDArray[np.float64],
    blind: NDArray[np.float64],
    *,
    confidence: float = 0.95,
) -> list[BlindFifth]:
    """Measure an attack within fifths of the blind score; equal blind scores stay together.

    Where an attack only repeats what the text alone tells, little is left within fifths.

    Parameters
    ----------
    member
        Whether each text is a member.
    score
        Score of each text by the attack, finite.
    blind
        Score of each text by a blind classifier, from texts that it was not trained on.
    confidence
        Nominal coverage of the intervals.

    Returns
    -------
    list[BlindFifth]
        Five fifths, the lowest blind scores first.
    """
    limits = np.quantile(blind, np.arange(1, _N_FIFTHS) / _N_FIFTHS)
    fifth = limits.searchsorted(blind, side="right")
    return [
        _measure(f"blind fifth {place + 1}", member[within], score[within], confidence)
        for place, within in enumerate(fifth == place for place in range(_N_FIFTHS))
    ]


def _measure(
    name: str, member: NDArray[np.bool_], score: NDArray[np.float64], confidence: float
) -> BlindFifth:
    value = interval = reason = None
    n_members = int(member.sum())
    n_nonmembers = member.size - n_members
    if n_members and n_nonmembers:
        value = roc_auc(member, score)
        interval = auc_interval(score[member], score[~member], value, confidence=confidence)
    else:
        reason = f"there is no {'non-member' if n_members else 'member'} in this fifth"
    return BlindFifth(
        slice=name,
        value=value,
        interval=interval,
        reason=reason,
        n_members=n_members,
        n_nonmembers=n_nonmembers,
    )
