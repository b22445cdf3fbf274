"""What is said of one attack on one slice: each figure with its interval, or why it is missing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.metrics.authors import N_FOLDS, accuracy_5_fold, tpr_nearest_fpr
from mia_batch.stats.influence import AucEstimate, estimate_auc
from mia_batch.stats.intervals import estimate_interval
from mia_batch.stats.rates import (
    clopper_pearson,
    independent_number,
    threshold_fpr_interval,
    tpr_interval,
)
from mia_batch.stats.roc import RocCurve, roc_curve
from mia_batch.stats.simultaneous import N_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mia_batch.stats.intervals import Interval

__all__ = [
    "FPR_BUDGETS",
    "Classes",
    "MetricRow",
    "authors_rows",
    "balanced_accuracy",
    "metric_rows",
]

FPR_BUDGETS = (0.001, 0.005, 0.01, 0.05, 0.1)
"""False-positive rates at which the true-positive rate is given."""

_STABLE = 10
"""Non-members times FPR from which a budget's threshold has nearly the FPR that it should."""

_AUTHORS_FPR = 0.1


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The labelled targets of a slice that an attack scored.

    Attributes
    ----------
    member
        Whether each is a member.
    score
        Its score, finite.
    cluster
        Code of its cluster; None where targets are independent.
    row
        Its number among the labelled targets.
    n_unscored
        Labelled targets without a score.
    """

    member: NDArray[np.bool_]
    score: NDArray[np.float64]
    cluster: NDArray[np.int32] | None
    row: NDArray[np.intp]
    n_unscored: int

    @property
    def n_members(self) -> int:
        """Scored members."""
        return int(self.member.sum())

    @property
    def n_nonmembers(self) -> int:
        """Scored non-members."""
        return self.member.size - self.n_members

    @property
    def counts(self) -> dict[str, int]:
        """Columns of the metrics table that stand beside every figure."""
        return {
            "n_members": self.n_members,
            "n_nonmembers": self.n_nonmembers,
            "n_unscored": self.n_unscored,
        }

    @property
    def lack(self) -> str | None:
        """Why there is no ROC curve."""
        if self.n_members == 0:
            return "there is no scored member"
        return "there is no scored non-member" if self.n_nonmembers == 0 else None

    @cached_property
    def curve(self) -> RocCurve:
        """Their ROC curve."""
        return roc_curve(self.member, self.score)

    def independent(self, threshold: float) -> tuple[float, float]:
        """Members and non-members; where they are clustered, as many as tell as much of rates."""
        if self.cluster is None:
            return self.n_members, self.n_nonmembers
        members, others = (
            independent_number(self.score[rows] >= threshold, self.cluster[rows])
            for rows in (self.member, ~self.member)
        )
        return members, others

    @property
    def estimate(self) -> AucEstimate:
        """Their AUC and what is known of its error."""
        return self._estimated[0]

    @property
    def errors(self) -> NDArray[np.float64]:
        """Influences on their AUC, of texts or clusters, in sums over blocks of these."""
        return self._estimated[1]

    @cached_property
    def _estimated(self) -> tuple[AucEstimate, NDArray[np.float64]]:
        estimate, influence = estimate_auc(self.member, self.score, self.cluster)
        unit = self.row if self.cluster is None else np.arange(influence.size)
        errors = np.zeros(N_BLOCKS)
        np.add.at(errors, unit % N_BLOCKS, influence)
        return estimate, errors


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One figure; the attributes are columns of the metrics table.

    Attributes
    ----------
    metric, fpr, value, low, high, confidence, method, reason
        As there.
    """

    metric: str
    fpr: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    method: str | None = None
    reason: str | None = None

    def within(self, interval: Interval | None, lack: str | None = None) -> MetricRow:
        """Put the figure in its interval."""
        return replace(self, reason=lack) if interval is None else replace(self, **asdict(interval))


def metric_rows(classes: Classes) -> Iterator[MetricRow]:
    """Measure AUC and TPR at each budget."""
    auc = MetricRow(metric="roc_auc", reason=classes.lack)
    if classes.lack:
        yield auc
        yield from (replace(auc, metric="tpr_at_fpr", fpr=budget) for budget in FPR_BUDGETS)
        return
    estimate = classes.estimate
    row = MetricRow(metric="roc_auc", value=estimate.value)
    yield row.within(estimate_interval(estimate), estimate.lack)
    for budget in FPR_BUDGETS:
        yield from _tpr_at_fpr(classes, budget)


def _tpr_at_fpr(classes: Classes, budget: float) -> Iterator[MetricRow]:
    row = MetricRow(metric="tpr_at_fpr", fpr=budget)
    needed, n = round(1 / budget), classes.n_nonmembers
    if n < needed:
        reason = f"a rate of {budget:g} needs {needed} non-members, scored are {n}"
        yield replace(row, reason=reason)
        return
    curve, estimate = classes.curve, classes.estimate
    point, interval = curve.at_fpr(budget), None
    if not estimate.lack:
        sizes = classes.independent(point.threshold)
        interval = tpr_interval(curve, budget, point.tpr, sizes)
    row = replace(row, value=point.tpr).within(interval, estimate.lack)
    effective = estimate.sizes[1]
    if effective >= _STABLE * needed:
        yield row
        return
    unit = "non-members" if classes.cluster is None else "groups of them, were they of one size"
    reason = f"unstable: a rate of {budget:g} rests on {effective:.0f} {unit}"
    yield replace(row, reason=row.reason or reason)
    true_fpr = MetricRow(metric="fpr_at_threshold", fpr=budget, value=point.fpr)
    yield true_fpr.within(threshold_fpr_interval(effective, budget))


def balanced_accuracy(classes: Classes, threshold: float | None) -> MetricRow:
    """Mean of TPR and true-negative rate at a threshold that was chosen on other texts.

    It is the AUC of being flagged, and has that AUC's interval. Flagged if ``score >= threshold``.
    """
    row = MetricRow(metric="balanced_accuracy", reason=classes.lack)
    if classes.lack:
        return row
    if threshold is None:
        reason = "its threshold needs a calibration set with scored members and non-members"
        return replace(row, reason=reason)
    flagged = classes.score >= threshold
    estimate, _ = estimate_auc(classes.member, flagged.astype(np.float64), classes.cluster)
    row = replace(row, value=estimate.value)
    return row.within(estimate_interval(estimate), estimate.lack)


def authors_rows(classes: Classes) -> Iterator[MetricRow]:
    """Measure what the SaMIA authors report.

    TPR nearest to 10 % FPR, with the interval of the TPR at the rate that it spends, and accuracy
    in five folds, with Clopper-Pearson's, for each text is judged by a threshold from other folds.
    Clustered targets have no intervals: the authors take texts as independent.
    """
    nearest = MetricRow(metric="tpr_nearest_fpr", fpr=_AUTHORS_FPR, reason=classes.lack)
    accuracy = MetricRow(metric="accuracy_5_fold", reason=classes.lack)
    if classes.lack:
        yield nearest
        yield accuracy
        return
    curve = classes.curve
    grouped = "the authors' procedure takes texts as independent; these are clustered"
    lack = None if classes.cluster is None else grouped
    value = tpr_nearest_fpr(classes.member, classes.score, _AUTHORS_FPR)
    sizes = classes.n_members, classes.n_nonmembers
    interval = None
    if not lack:
        interval = tpr_interval(curve, _fpr_of(curve, value), value, sizes)
    yield replace(nearest, value=value).within(interval, lack)
    if min(sizes) < N_FOLDS:
        reason = f"{N_FOLDS} folds need {N_FOLDS} scored members and as many non-members"
        yield replace(accuracy, reason=reason)
        return
    value = accuracy_5_fold(classes.member, classes.score)
    right = None if lack else clopper_pearson(round(value * sum(sizes)), sum(sizes))
    yield replace(accuracy, value=value).within(right, lack)


def _fpr_of(curve: RocCurve, tpr: float) -> float:
    """Nearest rate to the authors' at which the curve has a TPR."""
    rates = curve.fpr[np.isclose(curve.tpr, tpr)]
    return float(rates[np.argmin(np.abs(rates - _AUTHORS_FPR))])
