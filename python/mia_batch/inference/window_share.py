"""The share of one document's windows that the model was trained on."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.inference.contamination import (
    Contamination,
    Flagged,
    contamination_bound,
    contamination_rate,
    withheld,
)
from mia_batch.inference.estimates import null_threshold, too_few

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets

__all__ = ["WindowShare"]


class WindowShare:
    """Estimates of the share of windows, all with one threshold, by `ContaminationEstimates`' rule.

    Here the units are windows. With calibration data there is a point estimate; where that is
    withheld, or without them, a lower bound. Windows of a document depend on each other, and their
    methods take them as independent: the intervals are rather too narrow than too wide.
    """

    def __init__(
        self, sets: ComparisonSets, scores: NDArray[np.float64], fpr: float, *, blind_warns: bool
    ) -> None:
        nulls = scores[sets.nulls]
        self._n_null, self._blind_warns = nulls.size, blind_warns
        self._rank, self.threshold = null_threshold(nulls, fpr)
        calibration = (sets.calibration_nonmembers, sets.calibration_members)
        self._known = [self._flagged(scores[rows]) for rows in calibration]
        self._lack = _lack(sets, ("null", sets.nulls))
        names = ("calibration non-member", "calibration member")
        self._unusable = _lack(sets, *zip(names, calibration, strict=True))
        self._calibrated = bool(sum(rows.size for rows in calibration))
        self.of = lru_cache(1 << 16)(self._estimate)

    def _flagged(self, scores: NDArray[np.float64]) -> Flagged:
        scored = scores[~np.isnan(scores)]
        return Flagged(int(np.count_nonzero(scored > self.threshold)), scored.size)

    def _estimate(self, above: int, scored: int, asked: int) -> Contamination:
        """Estimate from how many of the windows lie above the threshold; ``of`` remembers it."""
        lack = self._lack or (None if scored else "no window has a score")
        if lack:
            return withheld("beta_binomial", lack, 0.95)
        rate = self._rate(Flagged(above, scored))
        if rate is not None and rate.value is not None:
            return rate
        bound = contamination_bound(Flagged(above, asked), n_null=self._n_null, rank=self._rank)
        low = min(bound.low or 0.0, (asked - 1) / asked)  # never all: one window stays open
        return Contamination(
            low=low,
            high=1.0,
            confidence=bound.confidence,
            method=bound.method,
            assumption=bound.assumption,
            reason=rate.reason if rate else bound.reason,
        )

    def _rate(self, flagged: Flagged) -> Contamination | None:
        if not self._calibrated:
            return None
        unusable = self._unusable or (
            None
            if all(known.total for known in self._known)
            else "a class of the calibration data has no score"
        )
        if unusable:
            return withheld("fieller", unusable, 0.95)
        return contamination_rate(flagged, *self._known, blind_warns=self._blind_warns)


def _lack(sets: ComparisonSets, *named: tuple[str, NDArray[np.int64]]) -> str | None:
    """Say which set has too few clusters for its windows to stand for others, if one has."""
    lacks = (
        too_few(np.unique(sets.cluster[rows]).size, name, grouped=sets.share_clusters(rows))
        for name, rows in named
    )
    return next(filter(None, lacks), None)
