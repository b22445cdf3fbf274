"""The share of members among the audited units, from the scores of one attack."""

from __future__ import annotations

from dataclasses import asdict
from math import floor
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.inference.contamination import (
    Contamination,
    Flagged,
    contamination_bound,
    contamination_rate,
    withheld,
)
from mia_batch.inference.groups import cut_units, windows_per_group
from mia_batch.inference.rows import verdict_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl
    from numpy.typing import NDArray

    from mia_batch.inference.comparison import ComparisonSets
    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.rows import AttackScores

__all__ = ["ContaminationEstimates", "null_rank", "null_threshold", "too_few"]

_FEWEST_GROUPS = 20  # of a set, where texts are grouped
_CONFIDENCE = 0.95


def null_rank(n: int, fpr: float) -> int:
    """Return k: which of n nulls, the largest first, is the threshold."""
    return max(1, floor(round(fpr * (n + 1), 9)))


def null_threshold(nulls: NDArray[np.float64], fpr: float) -> tuple[int, float]:
    """Return k and the k-th largest null: k = floor(fpr (n + 1)), at least 1; NaN counts as above.

    Without nulls nothing lies above the threshold.
    """
    rank = null_rank(nulls.size, fpr)
    highest = np.sort(np.nan_to_num(nulls, nan=np.inf))
    return rank, float(highest[-rank]) if nulls.size else np.inf


def too_few(n: int, name: str, *, grouped: bool) -> str | None:
    """Say that a set has too few groups or texts for an estimate; None where it has enough."""
    unit, fewest = ("groups", _FEWEST_GROUPS) if grouped else ("texts", 1)
    return f"{n} {name} {unit} are too few, {fewest} are needed" if n < fewest else None


class ContaminationEstimates:
    """Estimates of the contamination rate, prepared once for all attacks.

    The units are clusters of texts, by their statistic over as many windows each; where no texts
    share a cluster, they are texts. With fewer than 20 groups in a set nothing is estimated.
    ``blind_warns``: the labels of the calibration data can be told apart without the model.
    """

    def __init__(self, sets: ComparisonSets, plan: VerdictPlan, *, blind_warns: bool) -> None:
        self._plan, self._blind_warns = plan, blind_warns
        rows = [sets.targets, sets.nulls]
        self._calibrated = bool(sets.calibration_members.size + sets.calibration_nonmembers.size)
        if self._calibrated:
            rows += [sets.calibration_nonmembers, sets.calibration_members]
        self._grouped = sets.share_clusters(*rows)
        n_windows = windows_per_group(sets, plan) if self._grouped else 1
        self._units = [cut_units(sets, of_set, n_windows, plan.seed) for of_set in rows]

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Yield the lower bound and, where there are calibration data, the point estimate.

        A unit above the `null_threshold` is flagged. Unscored targets count as not flagged in the
        lower bound and are left out of the point estimate, as unscored calibration units are.
        """
        targets, nulls, *calibration = (
            units.statistics(found.scores, self._plan) for units in self._units
        )
        rank, threshold = null_threshold(nulls, self._plan.fpr)
        lack = self._lack(("audited", targets), ("null", nulls))
        if lack:
            made = [withheld("beta_binomial", lack, _CONFIDENCE)]
        else:
            flagged = Flagged(int(np.count_nonzero(targets > threshold)), self._units[0].sizes.size)
            made = [
                contamination_bound(flagged, n_null=nulls.size, rank=rank, confidence=_CONFIDENCE)
            ]
        if self._calibrated:
            made.append(self._rate(threshold, lack, targets, *calibration))
        for one in made:
            yield verdict_rows(
                1,
                attack=found.attack,
                level="collection",
                versus="non_members",
                planned=found.planned(self._plan),
                n_null=nulls.size,
                estimate="contamination_rate",
                **asdict(one),
            )

    def _rate(
        self, threshold: float, lack: str | None, *sets: NDArray[np.float64]
    ) -> Contamination:
        scored = [of_set[~np.isnan(of_set)] for of_set in sets]
        names = ("scored audited", "scored calibration non-member", "scored calibration member")
        lack = lack or self._lack(*zip(names, scored, strict=True))
        if lack:
            return withheld("fieller", lack, _CONFIDENCE)
        return contamination_rate(
            *(Flagged(int(np.count_nonzero(of_set > threshold)), of_set.size) for of_set in scored),
            blind_warns=self._blind_warns,
            confidence=_CONFIDENCE,
        )

    def _lack(self, *sets: tuple[str, NDArray[np.float64]]) -> str | None:
        """Say which set has too few units, if one has."""
        lacks = (too_few(of_set.size, name, grouped=self._grouped) for name, of_set in sets)
        return next(filter(None, lacks), None)
