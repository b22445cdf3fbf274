"""The share of members among the audited units, from the scores of one attack."""

from __future__ import annotations

from dataclasses import asdict
from math import floor
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.inference.contamination import (
    BOUND_ASSUMES,
    RATE_ASSUMES,
    Contamination,
    Flagged,
    contamination_bound,
    contamination_rate,
)
from mia_batch.inference.rows import verdict_rows
from mia_batch.inference.units import cut_units, windows_per_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl
    from numpy.typing import NDArray

    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.rows import AttackScores
    from mia_batch.inference.sides import Sides

__all__ = ["ContaminationEstimates"]

_FEWEST_GROUPS = 20
_CONFIDENCE = 0.95


class ContaminationEstimates:
    """Estimates of the contamination rate, prepared once for all attacks.

    The units are clusters of texts, by their statistic over as many windows each; where no texts
    share a cluster, they are texts. With fewer than 20 groups on a side nothing is estimated.

    Parameters
    ----------
    sides
        Who is compared with whom; targets and nulls must have rows.
    plan
        How.
    blind_warns
        Whether the calibration labels can be told apart without the model.
    """

    def __init__(self, sides: Sides, plan: VerdictPlan, *, blind_warns: bool) -> None:
        self._plan, self._blind_warns = plan, blind_warns
        rows = [sides.targets, sides.nulls]
        self._calibrated = bool(sides.calibration_members.size + sides.calibration_nonmembers.size)
        if self._calibrated:
            rows += [sides.calibration_nonmembers, sides.calibration_members]
        self._grouped = sides.shares(*rows)
        n_windows = windows_per_group(sides, plan) if self._grouped else 1
        self._units = [cut_units(sides, side, n_windows, plan.seed) for side in rows]

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Estimate the rate from the scores of one attack.

        The threshold is that of the k-th largest null, k = floor(fpr (n + 1)) and at least 1; a
        unit above it is flagged. Unscored nulls lie above it, unscored targets count as not
        flagged in the lower bound and are left out of the point estimate, as unscored calibration
        units are.

        Parameters
        ----------
        found
            The scores.

        Yields
        ------
        DataFrame
            Rows of level ``collection`` of the verdicts table: the lower bound and, where there
            are calibration data, the point estimate.
        """
        targets, nulls, *calibration = (
            units.statistics(found.scores, self._plan) for units in self._units
        )
        rank = max(1, floor(round(self._plan.fpr * (nulls.size + 1), 9)))
        highest = np.sort(np.nan_to_num(nulls, nan=np.inf))
        threshold = float(highest[-rank]) if nulls.size else np.inf
        n_targets = self._units[0].sizes.size
        lack = self._lack(("audited", targets), ("null", nulls))
        if lack:
            bound = _withheld("beta_binomial", BOUND_ASSUMES, lack)
        else:
            flagged = Flagged(int(np.count_nonzero(targets > threshold)), n_targets)
            bound = contamination_bound(
                flagged, n_null=nulls.size, rank=rank, confidence=_CONFIDENCE
            )
        made = [bound]
        if self._calibrated:
            made.append(self._rate(threshold, lack, targets, *calibration))
        for one in made:
            yield verdict_rows(
                1,
                attack=found.attack,
                level="collection",
                planned=found.planned(self._plan),
                n_null=nulls.size,
                estimate="contamination_rate",
                **asdict(one),
            )

    def _rate(
        self,
        threshold: float,
        lack: str | None,
        targets: NDArray[np.float64],
        nonmembers: NDArray[np.float64],
        members: NDArray[np.float64],
    ) -> Contamination:
        scored = [side[~np.isnan(side)] for side in (targets, nonmembers, members)]
        names = ("scored audited", "scored calibration non-member", "scored calibration member")
        lack = lack or self._lack(*zip(names, scored, strict=True))
        if lack:
            return _withheld("fieller", RATE_ASSUMES, lack)
        return contamination_rate(
            *(Flagged(int(np.count_nonzero(side > threshold)), side.size) for side in scored),
            blind_warns=self._blind_warns,
            confidence=_CONFIDENCE,
        )

    def _lack(self, *sides: tuple[str, NDArray[np.float64]]) -> str | None:
        """Say which side has too few units, if one has."""
        unit, fewest = ("groups", _FEWEST_GROUPS) if self._grouped else ("texts", 1)
        for name, side in sides:
            if side.size < fewest:
                return f"{side.size} {name} {unit} are too few, {fewest} are needed"
        return None


def _withheld(method: str, assumption: str, reason: str) -> Contamination:
    return Contamination(
        confidence=_CONFIDENCE, method=method, assumption=assumption, reason=reason
    )
