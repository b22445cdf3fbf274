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
from mia_batch.inference.estimates import null_rank, null_threshold, too_few
from mia_batch.stats.clusters import design_effect

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets

__all__ = ["WindowShare"]


class WindowShare:
    """Estimates of the share of windows, all with one threshold, by `ContaminationEstimates`' rule.

    Here the units are windows. With calibration data there is a point estimate; where that is
    withheld, or without them, a lower bound. Windows of a document depend on each other, so that
    all counts are divided by the `design_effect` on being flagged in the known texts: of the nulls
    and calibration non-members, of the calibration members, and for the document the larger one.
    """

    def __init__(
        self,
        sets: ComparisonSets,
        scores: NDArray[np.float64],
        fpr: float,
        *,
        blind_warns: bool,
        lack: str | None = None,
    ) -> None:
        nulls = scores[sets.nulls]
        self._blind_warns, self._fpr = blind_warns, fpr
        self.threshold = null_threshold(nulls, fpr)[1]
        calibration = (sets.calibration_nonmembers, sets.calibration_members)
        outside = np.concatenate([sets.nulls, sets.calibration_nonmembers])
        effects = [
            self._effect(scores, sets.cluster, rows) for rows in (outside, sets.calibration_members)
        ]
        self._most = max(effects)
        self._n_null = max(int(nulls.size / effects[0]), min(nulls.size, 1))
        self._known = [
            self._flagged(scores[rows], effect)
            for rows, effect in zip(calibration, effects, strict=True)
        ]
        self._lack = lack or _lack(sets, ("null", sets.nulls))
        names = ("calibration non-member", "calibration member")
        self._unusable = _lack(sets, *zip(names, calibration, strict=True))
        self._calibrated = bool(sum(rows.size for rows in calibration))
        self.of = lru_cache(1 << 16)(self._estimate)

    def _effect(
        self, scores: NDArray[np.float64], cluster: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> float:
        scored = rows[~np.isnan(scores[rows])]
        flagged = (scores[scored] > self.threshold).astype(np.float64)
        return design_effect(flagged, cluster[scored])

    def _flagged(self, scores: NDArray[np.float64], effect: float) -> Flagged:
        scored = scores[~np.isnan(scores)]
        return Flagged(np.count_nonzero(scored > self.threshold) / effect, scored.size / effect)

    def _estimate(self, above: int, scored: int, asked: int) -> Contamination:
        """Estimate from how many of the windows lie above the threshold; ``of`` remembers it."""
        lack = self._lack or (None if scored else "no window has a score")
        if lack:
            return withheld("beta_binomial", lack, 0.95)
        rate = self._rate(Flagged(above / self._most, scored / self._most))
        if rate is not None and rate.value is not None:
            return rate
        rank = null_rank(self._n_null, self._fpr)
        counts = Flagged(int(above / self._most), max(int(asked / self._most), 1))
        bound = contamination_bound(counts, n_null=self._n_null, rank=rank)
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
