"""Figures of a labelled run: each attack on each slice, with an interval or a reason for none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.errors import RequestError
from mia_batch.schemas import Metrics
from mia_batch.stats import Codes, Flags, Floats
from mia_batch.stats.differences import N_BLOCKS, AucResult, auc_difference, simultaneous_bounds
from mia_batch.stats.intervals import (
    Interval,
    RocCurve,
    clopper_pearson,
    estimate_auc,
    estimate_interval,
    independent_number,
    roc_curve,
    threshold_fpr_interval,
    tpr_interval,
)
from mia_batch.tables import read_finite, read_numbers
from mia_batch.targets import Preset, cluster_names

_Key = tuple[str, str]  # attack and slice
_Row = dict[str, Any]

__all__ = ["evaluate"]


# The SaMIA authors' own metrics, for comparison with their tables.

N_FOLDS = 5

_FOLD_SEED = 0


def tpr_nearest_fpr(member: Flags, score: Floats, fpr: float) -> float:
    """TPR at the ROC point whose FPR is nearest to the given one; it **may exceed** it.

    Of points equally near, the one with the highest threshold counts. The curve leaves out points
    on straight lines between their neighbours, as the authors' code does.

    Kaneko et al. (2024), arXiv:2404.11262v2, appendix B; the rule is that of the authors' code.
    """
    from sklearn.metrics import roc_curve as sklearn_roc_curve

    rates, tpr, _ = sklearn_roc_curve(member, score)
    return float(tpr[np.argmin(np.abs(rates - fpr))])


def accuracy_5_fold(member: Flags, score: Floats) -> float:
    """Accuracy in 5-fold cross-validation, the mean over folds.

    The threshold is the one that maximises TPR - FPR on the other four folds; of several, the
    highest. Kaneko et al. (2024), arXiv:2404.11262v2, section 3.5.
    """
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=_FOLD_SEED)
    accuracies = []
    for train, test in folds.split(score, member):
        threshold = roc_curve(member[train], score[train]).widest_gap().threshold
        accuracies.append(np.mean((score[test] >= threshold) == member[test]))
    return float(np.mean(accuracies))


# What is said of one attack on one slice: each figure with its interval, or why it is missing.

FPR_BUDGETS = (0.001, 0.005, 0.01, 0.05, 0.1)
"""False-positive rates at which the true-positive rate is given."""

_STABLE = 10
"""Non-members times FPR from which a budget's threshold has nearly the FPR that it should."""

_AUTHORS_FPR = 0.1


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The labelled targets of a slice that an attack scored."""

    member: Flags  # whether each is a member
    score: Floats  # its score, finite
    cluster: NDArray[np.int32] | None  # code of its cluster; None where targets are independent
    row: Codes  # its number among the labelled targets
    n_unscored: int  # labelled targets without a score

    @property
    def n_members(self) -> int:
        return int(self.member.sum())

    @property
    def n_nonmembers(self) -> int:
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

    @cached_property
    def area(self) -> AucResult:
        """Their AUC and what is known of its error."""
        estimate, influence = estimate_auc(self.member, self.score, self.cluster)
        unit = self.row if self.cluster is None else np.arange(influence.size)
        errors = np.zeros(N_BLOCKS)
        np.add.at(errors, unit % N_BLOCKS, influence)
        return AucResult(estimate=estimate, errors=errors, counts=self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One figure; the attributes are columns of the metrics table."""

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
        return (
            replace(self, reason=lack) if interval is None else replace(self, **interval._asdict())
        )


def metric_rows(classes: Classes) -> Iterator[MetricRow]:
    """Measure AUC and TPR at each budget."""
    auc = MetricRow(metric="roc_auc", reason=classes.lack)
    if classes.lack:
        yield auc
        yield from (replace(auc, metric="tpr_at_fpr", fpr=budget) for budget in FPR_BUDGETS)
        return
    estimate = classes.area.estimate
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
    curve, estimate = classes.curve, classes.area.estimate
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
    """Measure what the SaMIA authors report, on independent targets with intervals."""
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
        rates = curve.fpr[np.isclose(curve.tpr, value)]  # at which the curve has this TPR
        nearest_fpr = float(rates[np.argmin(np.abs(rates - _AUTHORS_FPR))])
        interval = tpr_interval(curve, nearest_fpr, value, sizes)
    yield replace(nearest, value=value).within(interval, lack)
    if min(sizes) < N_FOLDS:
        reason = f"{N_FOLDS} folds need {N_FOLDS} scored members and as many non-members"
        yield replace(accuracy, reason=reason)
        return
    value = accuracy_5_fold(classes.member, classes.score)
    right = None if lack else clopper_pearson(round(value * sum(sizes)), sum(sizes))
    yield replace(accuracy, value=value).within(right, lack)


ALL = "all"

LENGTH_SLICES = {f"about {length} words": length for length in (32, 64, 128, 256)}
"""Nominal words of the length buckets, those of the SaMIA paper. A bucket reaches from its length
over the square root of 2 to its length times that: 23 to 45, 46 to 90, 91 to 181, 182 to 362."""

_MOST_VALUES = 50


def find_slices(labelled: pl.LazyFrame, slice_by: Sequence[str]) -> dict[str, Codes | slice]:
    """Find the rows of each slice: ``all``, each value of some columns, and length buckets.

    Slices of values are called ``column=value``, nulls ``column=null``. Length buckets that hold
    members and non-members follow at the end, where there are at least two of them; a single one
    would repeat ``all``.
    """
    names = labelled.collect_schema().names()
    found: dict[str, Codes | slice] = {ALL: slice(None)}
    for column in slice_by:
        if column not in names:
            raise RequestError(
                f"there is no column {column!r} to slice by; there are {', '.join(names)}"
            )
        values = labelled.select(pl.col(column).cast(pl.String).fill_null("null"))
        of_rows = values.collect(engine="streaming")[column]
        distinct = of_rows.unique().sort()
        if len(distinct) > _MOST_VALUES:
            raise RequestError(
                f"column {column!r} has {len(distinct):,} values, of which each would be a slice; "
                f"slice by a column of at most {_MOST_VALUES}"
            )
        found |= {f"{column}={value}": np.flatnonzero(of_rows == value) for value in distinct}
    if "n_words" not in names:
        return found
    targets, buckets = labelled.select("member", "n_words").collect(engine="streaming"), {}
    words, member = targets["n_words"], targets["member"].to_numpy()
    for name, length in LENGTH_SLICES.items():
        within = words.is_between(length / 2**0.5, length * 2**0.5).fill_null(value=False)
        rows = np.flatnonzero(within)
        if member[rows].any() and not member[rows].all():
            buckets[name] = rows
    return {**found, **buckets} if len(buckets) > 1 else found


def find_clusters(
    scores: pl.LazyFrame, counts: pl.Expr, attacks: Sequence[str]
) -> NDArray[np.int32] | None:
    """Find the cluster of each target that counts, from 0, none left out.

    None where no cluster has two of them that any attack scored.
    """
    scored = pl.any_horizontal(pl.col(attacks).is_finite().fill_null(value=False))
    named = scores.with_columns(cluster=cluster_names(scores)).filter(counts)
    found = named.select("cluster", scored=scored)
    # Names of all targets take much more room than their hashes.
    hashes = found.filter("scored").select(pl.col("cluster").hash()).collect(engine="streaming")
    ordered = np.sort(hashes.to_series().to_numpy())
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    distinct = (
        found.select(pl.col("cluster").unique()).collect(engine="streaming").to_series().sort()
    )
    size = found.select(pl.len()).collect(engine="streaming").item()
    code = pl.col("cluster").cast(pl.Enum(distinct)).to_physical()
    return read_numbers(found, code, size, np.int32)


_LABELLED = pl.col("member").is_not_null()


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Targets whose membership is known."""

    scores: pl.LazyFrame  # their scores
    # scores of labelled texts that choose thresholds, and whether each is a member; None where
    # there is no ``role``
    calibration: tuple[pl.LazyFrame, Flags] | None
    member: Flags  # whether each target is a member
    # code of each target's cluster; None where targets are independent
    cluster: NDArray[np.int32] | None
    slices: dict[str, Codes | slice]  # rows of each slice, ``all`` first

    @classmethod
    def of(cls, scores: pl.LazyFrame, attacks: Sequence[str], slice_by: Sequence[str]) -> Labelled:
        """Find the labelled targets of a scores table; all roles count if there is no ``role``."""
        counts, calibration = _LABELLED, None
        if "role" in scores.collect_schema():
            role = pl.col("role").cast(pl.String)
            counts = _LABELLED & role.is_in(["target", "non_member"])
            chooses = scores.filter(_LABELLED & (role == "calibration"))
            calibration = (chooses, _member(chooses))
        labelled = scores.filter(counts)
        return cls(
            scores=labelled,
            calibration=calibration,
            member=_member(labelled),
            cluster=find_clusters(scores, counts, attacks),
            slices=find_slices(labelled, slice_by),
        )

    def score(self, attack: str) -> Floats:
        """Read an attack's scores; NaN where a target has no finite one."""
        return read_finite(self.scores, attack, self.member.size)

    def classes(self, score: Floats, slice_name: str) -> Classes:
        """Pick the scored targets of a slice."""
        rows = self.slices[slice_name]
        member, score, row = self.member[rows], score[rows], np.arange(self.member.size)[rows]
        cluster = None if self.cluster is None else self.cluster[rows]
        scored = ~np.isnan(score)
        if not scored.all():
            member, score, row = member[scored], score[scored], row[scored]
            cluster = None if cluster is None else cluster[scored]
        n_unscored = scored.size - score.size
        return Classes(member=member, score=score, cluster=cluster, row=row, n_unscored=n_unscored)

    def threshold(self, attack: str) -> float | None:
        """Choose the threshold of the widest gap between TPR and FPR on the calibration texts.

        Flagged if ``score >= threshold``; None where calibration lacks a scored class.
        """
        if self.calibration is None:
            return None
        scores, member = self.calibration
        if not member.size:
            return None
        score = read_finite(scores, attack, member.size)
        scored = ~np.isnan(score)
        member, score = member[scored], score[scored]
        if member.all() or not member.any():
            return None
        return roc_curve(member, score).widest_gap().threshold


def _member(frame: pl.LazyFrame) -> Flags:
    size = frame.select(pl.len()).collect(engine="streaming").item()
    return read_numbers(frame, pl.col("member"), size, np.bool_)


MACRO = "macro"
"""Slice of the averages."""


def macro_averages(
    buckets: Sequence[tuple[Mapping[str, int], Sequence[MetricRow]]], *, clustered: bool
) -> Iterator[tuple[dict[str, int], MetricRow]]:
    """Average each metric over the length buckets that have it.

    Limits of independent buckets are joined by the method of variance estimates recovery. Clusters
    may lie across buckets, so theirs are averaged, which is conservative.

    Zou and Donner (2008), equations 1 and 2; the average: Kaneko et al. (2024), section 3.
    """
    metrics = dict.fromkeys((row.metric, row.fpr) for _, rows in buckets for row in rows)
    for metric in metrics:
        there = [
            (counts, row)
            for counts, rows in buckets
            for row in rows
            if (row.metric, row.fpr) == metric
            and row.metric != "fpr_at_threshold"  # it is said of a figure, and none itself
            and row.value is not None
        ]
        if there:
            counts = {name: sum(one[name] for one, _ in there) for name in there[0][0]}
            yield counts, _average([row for _, row in there], clustered=clustered)


def _average(there: Sequence[MetricRow], *, clustered: bool) -> MetricRow:
    values = np.array([row.value for row in there], float)
    low = np.array([row.low for row in there], float)
    high = np.array([row.high for row in there], float)
    average = replace(there[0], value=float(values.mean()), low=None, high=None, reason=None)
    if np.isnan(low).any():
        reason = next(row.reason for row in there if row.low is None)
        return replace(average, confidence=None, method=None, reason=reason)
    below, above = (
        gaps.mean() if clustered else np.linalg.norm(gaps) / values.size
        for gaps in (values - low, high - values)
    )
    name = "average_conservative" if clustered else "mover"
    limits = float(values.mean() - below), float(values.mean() + above)
    confidence, method = there[0].confidence or 0.95, f"{name} over {values.size}"
    return average.within(Interval(*limits, confidence, method))


def evaluate(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    *,
    preset: Preset,
    slice_by: Sequence[str] = (),
    primary: str | None = None,
    seed: int = 0,
) -> pl.DataFrame:
    """Measure how well each attack separates members from non-members.

    Where two scored targets share a group, or else a document, every figure is clustered: its
    interval, if there is one, takes groups as the units.

    Parameters
    ----------
    scores
        The scores table in its order, or at least ``member`` and the attacks' columns, read one
        attack at a time. Rows of unknown membership are left out, and where there is a ``role``
        those of other roles than ``target`` and ``non_member``. Labelled rows of the role
        ``calibration`` choose the threshold of ``balanced_accuracy``. A score that is not finite
        counts as missing.
    attacks
        Names of the attacks.
    preset
        ``samia`` adds the authors' metrics.
    slice_by
        Columns by whose values the targets are measured apart.
    primary
        Attack to compare with each other one; null for no comparisons.
    seed
        Of the draws of the largest error.

    Returns
    -------
    DataFrame
        The metrics table; empty where no membership is known. Per attack the figures of all
        targets, of each slice, and their average over length buckets (slice ``macro``); then
        differences of AUC, and lower bounds of every AUC that hold all at once. A value that the
        texts cannot support is null and has its reason.

    Raises
    ------
    RequestError
        If a column to slice by is missing or has too many values, or ``primary`` is no attack.
    """
    if primary is not None and primary not in attacks:
        raise RequestError(
            f"the primary attack {primary!r} is not among those scored: {', '.join(attacks)}"
        )
    schema = Metrics.create_empty().schema
    labelled = Labelled.of(scores, attacks, slice_by)
    if labelled.member.size == 0:
        return pl.DataFrame(schema=schema)
    rows: list[_Row] = []
    tried: dict[_Key, AucResult] = {}
    for attack in attacks:
        rows += _rows(labelled, attack, tried, preset=preset)
    if primary is not None:
        first, cluster = labelled.score(primary), labelled.cluster
        for other in (attack for attack in attacks if attack != primary):
            made = auc_difference(labelled.member, first, labelled.score(other), cluster=cluster)
            compared = {"attack": primary, "versus": other, "slice": ALL}
            rows.append(compared | made.row(labelled.member.size))
    for (attack, name), bound in simultaneous_bounds(tried, seed=seed).items():
        one = tried[attack, name]
        row = MetricRow(metric="roc_auc_simultaneous", value=one.estimate.value)
        rows.append(_row(attack, name, one.counts, row.within(bound, one.estimate.lack)))
    return pl.DataFrame(rows, schema=schema)


def _rows(
    labelled: Labelled, attack: str, tried: dict[_Key, AucResult], *, preset: Preset
) -> Iterator[_Row]:
    """Measure an attack on each slice, and add its areas to those that were tried."""
    score, threshold = labelled.score(attack), labelled.threshold(attack)
    buckets = []
    for name in labelled.slices:
        classes = labelled.classes(score, name)
        if not classes.lack:
            tried[attack, name] = classes.area
        found = [
            *metric_rows(classes),
            balanced_accuracy(classes, threshold),
            *(authors_rows(classes) if preset == "samia" else ()),
        ]
        yield from (_row(attack, name, classes.counts, row) for row in found)
        if name in LENGTH_SLICES:
            buckets.append((classes.counts, found))
    for counts, average in macro_averages(buckets, clustered=labelled.cluster is not None):
        yield _row(attack, MACRO, counts, average)


def _row(attack: str, slice_name: str, counts: dict[str, int], row: MetricRow) -> _Row:
    return {"attack": attack, "slice": slice_name, **counts, **asdict(row)}
