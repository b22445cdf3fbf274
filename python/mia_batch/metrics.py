"""Figures of a labelled run: each attack on each slice, with an interval or a reason."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.attacks import Attack
from mia_batch.attacks.attack import CONTINUATION, PROBE, matches_views
from mia_batch.attacks.from_logprobs import with_series
from mia_batch.errors import RequestError
from mia_batch.schemas import Curves, Metrics, Scores
from mia_batch.stats import Codes, Flags, Floats
from mia_batch.stats.intervals import (
    CONFIDENCE,
    N_BLOCKS,
    AucResult,
    Interval,
    RocCurve,
    auc_difference,
    clopper_pearson,
    estimate_auc,
    estimate_interval,
    independent_number,
    roc_curve,
    simultaneous_bounds,
    threshold_fpr_interval,
    tpr_interval,
)
from mia_batch.tables import read_finite, read_numbers
from mia_batch.targets import Preset, cluster_names, document_numbers

__all__ = ["evaluate"]


_Row = dict[str, Any]
_Metric = tuple[str, float | None]  # and its FPR


# The SaMIA authors' own metrics, for comparison with their tables: Kaneko et al.
# (2024), arXiv:2404.11262v2.

N_FOLDS, _FOLD_SEED = 5, 0


def tpr_nearest_fpr(
    member: Flags,
    score: Floats,
    fpr: float,
) -> float:
    """Compute the TPR where the FPR is nearest to a given one; it **may exceed** it.

    Of points equally near, the one with the highest threshold counts. Points on
    straight lines between their neighbours are left out, as in the authors' code:
    Kaneko et al., appendix B.
    """
    from sklearn.metrics import roc_curve as sklearn_roc_curve

    rates, tpr, _ = sklearn_roc_curve(member, score)
    return float(tpr[np.argmin(np.abs(rates - fpr))])


def accuracy_5_fold(member: Flags, score: Floats) -> float:
    """Compute the mean accuracy of folds: section 3.5.

    The threshold of a fold is that of the widest gap on the rest.
    """
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=_FOLD_SEED)
    accuracies = []
    for train, test in folds.split(score, member):
        curve = roc_curve(member[train], score[train])
        flagged = score[test] >= curve.widest_gap().threshold
        accuracies.append(np.mean(flagged == member[test]))
    return float(np.mean(accuracies))


# Figures of one attack on one slice, each with its interval, or why it is missing.

FPR_BUDGETS = (0.001, 0.005, 0.01, 0.05, 0.1)
# Non-members times FPR from which a threshold has nearly the FPR that it should
_STABLE = 10
_AUTHORS_FPR = 0.1
FPR_AT_95_TPR = "fpr_at_95_tpr"


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The labelled targets of a slice that an attack scored."""

    member: Flags
    score: Floats  # finite
    # Code of the target's cluster; None where targets are independent
    cluster: NDArray[np.int32] | None
    row: Codes  # the target's number among the labelled ones
    n_unscored: int  # labelled targets without a score

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of members and of non-members."""
        n_members = int(self.member.sum())
        return n_members, self.member.size - n_members

    @property
    def counts(self) -> dict[str, int]:
        """Columns of the metrics table that count targets."""
        n_members, n_nonmembers = self.sizes
        return {
            "n_members": n_members,
            "n_nonmembers": n_nonmembers,
            "n_unscored": self.n_unscored,
        }

    @property
    def reason(self) -> str | None:
        """Why nothing can be measured; None where it can."""
        n_members, n_nonmembers = self.sizes
        if n_members == 0:
            return "there is no scored member"
        return "there is no scored non-member" if n_nonmembers == 0 else None

    @cached_property
    def curve(self) -> RocCurve:
        return roc_curve(self.member, self.score)

    def independent(self, threshold: float) -> tuple[float, float]:
        """Count members and non-members; of clusters as many as are worth as much."""
        if self.cluster is None:
            return self.sizes
        flagged = self.score >= threshold
        member = self.member
        n_members = independent_number(flagged[member], self.cluster[member])
        n_nonmembers = independent_number(flagged[~member], self.cluster[~member])
        return n_members, n_nonmembers

    @cached_property
    def area(self) -> AucResult:
        estimate, influence = estimate_auc(self.member, self.score, self.cluster)
        unit = self.row if self.cluster is None else np.arange(influence.size)
        errors = np.zeros(N_BLOCKS)
        np.add.at(errors, unit % N_BLOCKS, influence)
        return AucResult(estimate, errors, self.counts)


def figure(
    metric: str,
    fpr: float | None,
    value: float | None,
    interval: Interval | None = None,
    reason: str | None = None,
) -> _Row:
    """Build a row of the metrics table; ``reason``: why value or interval is missing."""
    limits = interval._asdict() if interval else {}
    return {"metric": metric, "fpr": fpr, "value": value, "reason": reason, **limits}


def metric_rows(classes: Classes) -> Iterator[_Row]:
    """Compute AUC and TPR at each budget of an attack on a slice."""
    if classes.reason:
        yield figure("roc_auc", None, None, reason=classes.reason)
        for budget in FPR_BUDGETS:
            yield figure("tpr_at_fpr", budget, None, reason=classes.reason)
        yield figure(FPR_AT_95_TPR, None, None, reason=classes.reason)
        return
    area = classes.area.estimate
    yield figure("roc_auc", None, area.value, estimate_interval(area), area.reason)
    for budget in FPR_BUDGETS:
        yield from _tpr_at_fpr(classes, budget)
    yield _fpr_at_95_tpr(classes)


def _fpr_at_95_tpr(classes: Classes) -> _Row:
    """Compute the lowest FPR at which at least 95 % of the members are flagged."""
    # To take members for non-members at a rate of 5 % is a false alarm of the mirrored
    # question, so its TPR is the share of non-members that are not flagged.
    mirrored = replace(classes, member=~classes.member, score=-classes.score)
    row = next(_tpr_at_fpr(mirrored, 0.05, negatives="members"))
    row |= {"metric": FPR_AT_95_TPR, "fpr": None}
    if row["value"] is not None:
        row["value"] = 1 - row["value"]
    if row.get("low") is not None:
        row["low"], row["high"] = 1 - row["high"], 1 - row["low"]
    return row


def _tpr_at_fpr(
    classes: Classes, budget: float, negatives: str = "non-members"
) -> Iterator[_Row]:
    n_needed = round(1 / budget)
    n_nonmembers = classes.sizes[1]
    if n_nonmembers < n_needed:
        reason = (
            f"a rate of {budget:g} needs {n_needed} {negatives}, scored are"
            f" {n_nonmembers}"
        )
        yield figure("tpr_at_fpr", budget, None, reason=reason)
        return
    curve = classes.curve
    area = classes.area.estimate
    point = curve.at_fpr(budget)
    interval = None
    if not area.reason:
        sizes = classes.independent(point.threshold)
        interval = tpr_interval(curve, budget, point.tpr, sizes)
    row = figure("tpr_at_fpr", budget, point.tpr, interval, area.reason)
    effective = area.sizes[1]
    if effective >= _STABLE * n_needed:
        yield row
        return
    unit = negatives if classes.cluster is None else f"groups of {negatives}"
    reason = f"unstable: only about {effective:.0f} independent {unit}"
    yield row | {"reason": row["reason"] or reason}
    true_fpr = threshold_fpr_interval(effective, budget)
    yield figure("fpr_at_threshold", budget, point.fpr, true_fpr)


def balanced_accuracy(classes: Classes, threshold: float | None) -> _Row:
    """Compute the mean of TPR and true-negative rate at a threshold of other texts."""
    # It is the AUC of being flagged, and has that AUC's interval.
    reason = "its threshold needs a calibration set with scored members and non-members"
    if classes.reason or threshold is None:
        reason = classes.reason or reason
        return figure("balanced_accuracy", None, None, reason=reason)
    flagged = (classes.score >= threshold).astype(np.float64)
    area, _ = estimate_auc(classes.member, flagged, classes.cluster)
    interval = estimate_interval(area)
    return figure("balanced_accuracy", None, area.value, interval, area.reason)


def authors_rows(classes: Classes) -> Iterator[_Row]:
    """Compute what the SaMIA authors report, on independent targets with intervals."""
    if classes.reason:
        yield figure("tpr_nearest_fpr", _AUTHORS_FPR, None, reason=classes.reason)
        yield figure("accuracy_5_fold", None, None, reason=classes.reason)
        return
    reason = None
    if classes.cluster is not None:
        reason = (
            "the authors' procedure takes texts as independent; these are clustered"
        )
    curve = classes.curve
    sizes = classes.sizes
    tpr = tpr_nearest_fpr(classes.member, classes.score, _AUTHORS_FPR)
    interval = None
    if not reason:
        rates = curve.fpr[np.isclose(curve.tpr, tpr)]
        nearest = float(rates[np.argmin(np.abs(rates - _AUTHORS_FPR))])
        interval = tpr_interval(curve, nearest, tpr, sizes)
    yield figure("tpr_nearest_fpr", _AUTHORS_FPR, tpr, interval, reason)
    if min(sizes) < N_FOLDS:
        reason = (
            f"{N_FOLDS} folds need {N_FOLDS} scored members and as many non-members"
        )
        yield figure("accuracy_5_fold", None, None, reason=reason)
        return
    accuracy = accuracy_5_fold(classes.member, classes.score)
    interval = None
    if not reason:
        n = sum(sizes)
        interval = clopper_pearson(round(accuracy * n), n)
    yield figure("accuracy_5_fold", None, accuracy, interval, reason)


ALL = "all"  # the slice of all targets
MACRO = "macro"  # that of averages over length buckets
# Nominal words of the length buckets, those of the SaMIA paper. A bucket reaches from
# its length over the square root of 2 to its length times that: 23 to 45, 46 to 90, 91
# to 181, 182 to 362.
LENGTH_SLICES = {f"about {length} words": length for length in (32, 64, 128, 256)}
_MOST_VALUES = 50


def find_slices(
    labelled: pl.LazyFrame, slice_by: Sequence[str]
) -> dict[str, Codes | slice]:
    """Find the rows of each slice: ``all``, values of some columns, and length buckets."""
    names = labelled.collect_schema().names()
    slices: dict[str, Codes | slice] = {ALL: slice(None)}
    for column in slice_by:
        if column not in names:
            raise RequestError(
                f"there is no column {column!r} to slice by; there are"
                f" {', '.join(names)}"
            )
        texts = labelled.select(pl.col(column).cast(pl.String).fill_null("null"))
        values = texts.collect(engine="streaming")[column]
        distinct = values.unique().sort()
        if len(distinct) > _MOST_VALUES:
            raise RequestError(
                f"column {column!r} has {len(distinct):,} values, of which each would"
                f" be a slice; slice by a column of at most {_MOST_VALUES}"
            )
        for value in distinct:
            slices[f"{column}={value}"] = np.flatnonzero(values == value)
    if "n_words" not in names:
        return slices
    targets = labelled.select("member", "n_words").collect(engine="streaming")
    n_words = targets["n_words"]
    member = targets["member"].to_numpy()
    buckets: dict[str, Codes | slice] = {}
    for name, length in LENGTH_SLICES.items():
        is_within = n_words.is_between(length / 2**0.5, length * 2**0.5)
        rows = np.flatnonzero(is_within.fill_null(value=False))
        if member[rows].any() and not member[rows].all():
            buckets[name] = rows
    # A single bucket would repeat ``all``
    if len(buckets) > 1:
        slices |= buckets
    return slices


def find_clusters(
    scores: pl.LazyFrame,
    counts: pl.Expr,
    attacks: Sequence[str],
) -> NDArray[np.int32] | None:
    """Find the cluster of each target that counts, from 0, none left out.

    None where no two scored targets share one.
    """
    is_scored = pl.any_horizontal(pl.col(attacks).is_finite().fill_null(value=False))
    clustered = scores.with_columns(cluster=cluster_names(scores)).filter(counts)
    targets = clustered.select("cluster", is_scored=is_scored)
    # Names of all targets take much more room than their hashes.
    hashes = targets.filter("is_scored").select(pl.col("cluster").hash())
    ordered = np.sort(hashes.collect(engine="streaming").to_series().to_numpy())
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    distinct = targets.select(pl.col("cluster").unique()).collect(engine="streaming")
    size = targets.select(pl.len()).collect(engine="streaming").item()
    names = distinct.to_series().sort()
    code = pl.col("cluster").cast(pl.Enum(names)).to_physical()
    return read_numbers(targets, code, size, np.int32)


class Labelled:
    """Labelled targets; rows of all roles count if there is no ``role``."""

    def __init__(
        self,
        scores: pl.LazyFrame,
        attacks: Sequence[str],
        slice_by: Sequence[str],
    ) -> None:
        is_labelled = pl.col("member").is_not_null()
        counts = is_labelled
        self._calibration: pl.LazyFrame | None = None  # texts that choose thresholds
        if "role" in scores.collect_schema():
            role = pl.col("role").cast(pl.String)
            counts = is_labelled & role.is_in(["target", "non_member"])
            self._calibration = scores.filter(is_labelled & (role == "calibration"))
            self._calibration_member = _read_member(self._calibration)
        self._scores = scores.filter(counts)
        self.member = _read_member(self._scores)
        self.cluster = find_clusters(scores, counts, attacks)
        self.slices = find_slices(self._scores, slice_by)

    def score(self, attack: str) -> Floats:
        """Read the scores of an attack; NaN where there is none."""
        return read_finite(self._scores, attack, self.member.size)

    def classes(self, score: Floats, slice_name: str) -> Classes:
        """Select the scored targets of a slice."""
        rows = self.slices[slice_name]
        score = score[rows]
        member = self.member[rows]
        row = np.arange(self.member.size)[rows]
        cluster = None if self.cluster is None else self.cluster[rows]
        is_scored = ~np.isnan(score)
        if not is_scored.all():  # else views are enough
            score = score[is_scored]
            member = member[is_scored]
            row = row[is_scored]
            cluster = None if cluster is None else cluster[is_scored]
        return Classes(
            member=member,
            score=score,
            row=row,
            cluster=cluster,
            n_unscored=is_scored.size - score.size,
        )

    def threshold(self, attack: str) -> float | None:
        """Choose the threshold of the widest gap on the calibration texts."""
        if self._calibration is None or not self._calibration_member.size:
            return None
        member = self._calibration_member
        score = read_finite(self._calibration, attack, member.size)
        is_scored = ~np.isnan(score)
        member = member[is_scored]
        if member.all() or not member.any():
            return None
        return roc_curve(member, score[is_scored]).widest_gap().threshold


def _read_member(frame: pl.LazyFrame) -> Flags:
    size = frame.select(pl.len()).collect(engine="streaming").item()
    return read_numbers(frame, pl.col("member"), size, np.bool_)


def macro_averages(
    buckets: Sequence[tuple[Mapping[str, int], Sequence[_Row]]], *, clustered: bool
) -> Iterator[tuple[dict[str, int], _Row]]:
    """Average each metric over the length buckets that have it: Kaneko et al., section 3.

    Limits of independent buckets are joined as by Zou and Donner (2008), equations 1
    and 2. Clusters may lie across buckets, so theirs are averaged, which is
    conservative.
    """
    figures_of_metric: dict[_Metric, list[tuple[Mapping[str, int], _Row]]] = {}
    for counts, rows in buckets:
        for row in rows:
            metric = (row["metric"], row["fpr"])
            figures = figures_of_metric.setdefault(metric, [])
            if row["value"] is not None:
                figures.append((counts, row))
    for (name, _), figures in figures_of_metric.items():
        # The FPR of a threshold belongs to another figure
        if not figures or name == "fpr_at_threshold":
            continue
        sums = dict.fromkeys(figures[0][0], 0)
        for counts, _ in figures:
            for column in sums:
                sums[column] += counts[column]
        yield sums, _average([row for _, row in figures], clustered=clustered)


def _average(figures: Sequence[_Row], *, clustered: bool) -> _Row:
    metric, fpr = figures[0]["metric"], figures[0]["fpr"]
    value, low, high = (
        np.array([row.get(name) for row in figures], float)
        for name in ("value", "low", "high")
    )
    mean = float(value.mean())
    if np.isnan(low).any():
        reason = next(row["reason"] for row in figures if row.get("low") is None)
        return figure(metric, fpr, mean, None, reason)
    if clustered:
        below = (value - low).mean()
        above = (high - value).mean()
        method = f"average_conservative over {value.size}"
    else:
        below = np.linalg.norm(value - low) / value.size
        above = np.linalg.norm(high - value) / value.size
        method = f"mover over {value.size}"
    limits = Interval(float(mean - below), float(mean + above), CONFIDENCE, method)
    return figure(metric, fpr, mean, limits)


def evaluate(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    *,
    preset: Preset,
    slice_by: Sequence[str] = (),
    primary: str | None = None,
    seed: int = 0,
    later: Collection[str] = (),
) -> pl.DataFrame:
    """Measure how well each attack separates members from non-members.

    Where two scored targets share a group, or else a document, every figure is
    clustered: its interval, if there is one, takes groups as the units.

    Parameters
    ----------
    scores
        The scores table in its order, or at least ``member`` and the attacks' columns,
        read one attack at a time. Rows of unknown membership are left out, and where
        there is a ``role`` those of other roles than ``target`` and ``non_member``.
        Labelled rows of the role ``calibration`` choose the threshold of
        ``balanced_accuracy``. A score that is not finite counts as missing.
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
    later
        Attacks that were added to those that were planned: no bound holds for them.

    Returns
    -------
    DataFrame
        The metrics table; empty where no membership is known. Per attack the figures of
        all targets, of each slice, and their average over length buckets (slice
        ``macro``); then differences of AUC, and lower bounds of every AUC that hold all
        at once. A value that the texts cannot support is null and has its reason.

    Raises
    ------
    RequestError
        If a column to slice by is missing or has too many values, or ``primary`` is no
        attack.
    """
    if primary is not None and primary not in attacks:
        raise RequestError(
            f"the primary attack {primary!r} is not among those scored:"
            f" {', '.join(attacks)}"
        )
    labelled = Labelled(scores, attacks, slice_by)
    if labelled.member.size == 0:
        return Metrics.create_empty()
    rows: list[_Row] = []
    areas: dict[tuple[str, str], AucResult] = {}
    for attack in attacks:
        rows += _attack_rows(labelled, attack, areas, preset)
    if primary is not None:
        primary_score = labelled.score(primary)
        for attack in attacks:
            if attack == primary:
                continue
            difference = auc_difference(
                labelled.member,
                primary_score,
                labelled.score(attack),
                cluster=labelled.cluster,
            )
            compared = {"attack": primary, "versus": attack, "slice": ALL}
            rows.append(compared | difference.row(labelled.member.size))
    planned = {key: area for key, area in areas.items() if key[0] not in later}
    bounds = simultaneous_bounds(planned, seed=seed)
    for (attack, name), bound in bounds.items():
        result = planned[attack, name]
        area = result.estimate
        row = figure("roc_auc_simultaneous", None, area.value, bound, area.reason)
        rows.append({"attack": attack, "slice": name, **result.counts, **row})
    return pl.DataFrame(rows, schema=Metrics.create_empty().schema)


def _attack_rows(
    labelled: Labelled,
    attack: str,
    areas: dict[tuple[str, str], AucResult],
    preset: Preset,
) -> Iterator[_Row]:
    """Build the rows of an attack, and add its AUC on each slice to ``areas``."""
    score = labelled.score(attack)
    threshold = labelled.threshold(attack)
    buckets = []
    for name in labelled.slices:
        classes = labelled.classes(score, name)
        if not classes.reason:
            areas[attack, name] = classes.area
        rows = [*metric_rows(classes), balanced_accuracy(classes, threshold)]
        if preset == "samia":
            rows += authors_rows(classes)
        for row in rows:
            yield {"attack": attack, "slice": name, **classes.counts, **row}
        if name in LENGTH_SLICES:
            buckets.append((classes.counts, rows))
    is_clustered = labelled.cluster is not None
    for counts, average in macro_averages(buckets, clustered=is_clustered):
        yield {"attack": attack, "slice": MACRO, **counts, **average}


# A labelled run: attacks next to classifiers without the model, growth with samples,
# curves.

_N_QUINTILES = 5


def measure(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    *,
    blind_scores: pl.LazyFrame,
    blind_metrics: pl.DataFrame,
    preset: Preset,
    slice_by: Sequence[str],
    primary: str,
    seed: int,
    later: Collection[str] = (),
) -> pl.DataFrame:
    """Measure attacks, and classifiers that never see the model, on the same labels."""
    is_target = pl.col("role").is_in(["target", "non_member"])
    counts = is_target & pl.col("member").is_not_null()
    if not scores.select(counts.any()).collect(engine="streaming").item():
        return Metrics.create_empty()
    metrics = evaluate(
        scores,
        attacks,
        preset=preset,
        slice_by=slice_by,
        primary=primary,
        seed=seed,
        later=later,
    )
    rows = _rows_versus_blind(scores, attacks, blind_scores, blind_metrics)
    versus_blind = pl.DataFrame([*rows], schema=metrics.schema)
    return pl.concat([metrics, blind_metrics, versus_blind])


def _rows_versus_blind(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    blind_scores: pl.LazyFrame,
    blind_metrics: pl.DataFrame,
) -> Iterator[_Row]:
    """Compare each attack with the strongest blind classifier, on the texts of both."""
    ranked = blind_metrics.drop_nulls("value").sort(
        "value", descending=True, maintain_order=True
    )
    if ranked.is_empty():
        return
    strongest = ranked["attack"][0]
    blind_texts = blind_scores.select("target_id", blind=strongest).drop_nulls("blind")
    schema = scores.collect_schema()
    keys = [name for name in Scores.column_names() if name in schema]
    # Named while all rows are there: a document without a name begins with its first
    # window.
    grouped = scores.with_columns(group=cluster_names(scores)).select(*keys, *attacks)
    joined = grouped.join(blind_texts, on="target_id", maintain_order="left")
    texts = joined.collect(engine="streaming")
    member = texts["member"].to_numpy()
    blind = texts["blind"].to_numpy()
    cluster = find_clusters(texts.lazy(), pl.lit(value=True), attacks)
    for attack in attacks:
        score = texts[attack].fill_null(float("nan")).to_numpy()
        difference = auc_difference(member, score, blind, cluster=cluster)
        compared = {"attack": attack, "versus": strongest, "slice": ALL}
        yield compared | difference.row(texts.height)
        for row in quintile_rows(member, score, blind, cluster):
            yield {"attack": attack, **row}


def quintile_rows(
    member: Flags,
    score: Floats,
    blind: Floats,
    cluster: NDArray[np.int32] | None,
) -> Iterator[_Row]:
    """Measure an attack within quintiles of the blind score, where ties stay together.

    Little is left of an attack that only repeats what the text alone shows.
    """
    limits = np.quantile(blind, np.arange(1, _N_QUINTILES) / _N_QUINTILES)
    quintile = limits.searchsorted(blind, side="right")
    is_scored = ~np.isnan(score)
    for number in range(_N_QUINTILES):
        is_within = quintile == number
        rows = np.flatnonzero(is_within & is_scored)
        classes = Classes(
            member=member[rows],
            score=score[rows],
            cluster=None if cluster is None else cluster[rows],
            row=rows,
            n_unscored=int(np.count_nonzero(is_within & ~is_scored)),
        )
        row = next(metric_rows(classes))
        if classes.reason:
            row["reason"] = f"{classes.reason} in this quintile"
        yield {"slice": f"blind quintile {number + 1}", **classes.counts, **row}


# How well attacks separate members from non-members with fewer samples, or points.

_TEXTS_PER_CLASS = 10_000
# What can be fewer: the view that is asked in, and the column that counts it.
_KINDS = {
    "samples": (CONTINUATION[1], "sample_index"),
    "points": (PROBE[1], "view_index"),
}
_KEY = ["target_id", "model", "view", "view_index", "sample_index"]


def growth(
    scores: pl.LazyFrame,
    evidence: Mapping[str, pl.LazyFrame],
    attacks: Sequence[Attack],
) -> Iterator[pl.DataFrame]:
    """Compute AUC ``y`` over the first ``x`` samples or points of each text.

    Of samples and of points for one attack: the first that reads nothing else.
    """
    is_target = pl.col("role").cast(pl.String).is_in(["target", "non_member"])
    labelled = scores.filter(is_target, pl.col("member").is_not_null())
    texts = labelled.select("target_id", "member")
    classes = [
        texts.filter(member=member).bottom_k(_TEXTS_PER_CLASS, by="target_id")
        for member in (0, 1)
    ]
    labels = pl.concat(classes).collect(engine="streaming")
    if labels["member"].n_unique() < 2:
        return
    from_evidence = [
        attack
        for attack in attacks
        if attack.evidence in evidence and not attack.logprobs
    ]
    for kind, (view, index) in _KINDS.items():
        readers = [
            attack
            for attack in from_evidence
            if {read_view for _, read_view in attack.reads} == {view}
        ]
        for attack in readers[:1]:
            table = with_series(evidence[attack.evidence], [attack])
            rows = _read_rows(table, attack, labels)
            points = pl.DataFrame(
                [*_points(rows, attack, index)],
                schema=["x", "y", "n"],
                orient="row",
            )
            yield points.with_columns(attack=pl.lit(attack.name), subject=pl.lit(kind))


def _read_rows(
    evidence: pl.LazyFrame,
    attack: Attack,
    labels: pl.DataFrame,
) -> pl.DataFrame:
    """Read an attack's evidence of some texts, in its order, with their ``member``."""
    columns = evidence.collect_schema().names()
    key = [name for name in _KEY if name in columns]
    rows = evidence.filter(matches_views(attack.reads))
    if attack.evidence == "samples":
        rows = rows.filter(pl.col("words_candidate").is_not_null())
    further = sorted({*attack.columns} - {*key})
    labelled = rows.select(*key, *further).join(labels.lazy(), on="target_id")
    return labelled.sort(key).collect(engine="streaming")


def _points(
    rows: pl.DataFrame,
    attack: Attack,
    index: str,
) -> Iterator[tuple[float, float, int]]:
    """Compute the AUC over the first 1, 2, 4, ... and over all; none of a single one."""
    n = int(rows.select(pl.col(index).max().fill_null(0)).item()) + 1
    if n == 1:
        return
    powers = range((n - 1).bit_length())
    for k in [*(1 << power for power in powers), n]:
        value = pl.col("value").cast(pl.Float64)
        scored = (
            rows.lazy()
            .filter(pl.col(index) < k)
            .group_by("target_id", maintain_order=True)
            .agg(pl.col("member").first(), value=attack.expr)
            .filter(value.is_finite())
            .select("member", value)
            .collect()
        )
        member = scored["member"].to_numpy()
        if member.any() and not np.all(member):
            curve = roc_curve(member, scored["value"].to_numpy())
            yield float(k), curve.area, scored.height


# Pictures of scores as points: ROC curves, distributions, strips of documents.

_ROC_STEPS = 200
_BINS = 40
_STRETCHES = 60
_TYPES = Curves.create_empty().schema


def curves(
    targets: pl.LazyFrame,
    scores: pl.LazyFrame,
    attacks: Sequence[Attack],
    primary: str,
    evidence: Mapping[str, pl.LazyFrame],
) -> Iterator[pl.DataFrame]:
    """Generate the curves table, at least one frame."""
    # ``targets`` and ``scores`` have their rows in one order. Memory: some 250 bytes a
    # target.
    yield Curves.create_empty()
    size = int(scores.select(pl.len()).collect(engine="streaming").item())
    role = pl.col("role").cast(pl.String)
    is_target = role.is_in(["target", "non_member"])
    is_asked = read_numbers(scores, role == "target", size, np.bool_)
    counts = read_numbers(scores, is_target, size, np.bool_)
    is_calibration = read_numbers(scores, role == "calibration", size, np.bool_)
    # 1 of members, 0 of non-members, NaN where nobody knows
    label = read_numbers(scores, pl.col("member").cast(pl.Float64), size, np.float64)
    is_outside = is_asked & (label == 0) | counts & ~is_asked
    for attack in attacks:
        score = read_finite(scores, attack.name, size)
        is_labelled = counts & ~np.isnan(label) & ~np.isnan(score)
        yield _roc(attack.name, label[is_labelled] == 1, score[is_labelled])
    primary_first = sorted(attacks, key=lambda attack: attack.name != primary)
    for points in growth(scores, evidence, primary_first):
        yield _curve_rows("growth", points)
    score = read_finite(scores, primary, size)
    is_scored = ~np.isnan(score)
    sets = {
        "members": (is_asked | is_calibration) & (label == 1),
        "non-members": is_outside | is_calibration & (label == 0),
        "targets": is_asked & np.isnan(label),
    }
    scores_of_set = {name: score[rows & is_scored] for name, rows in sets.items()}
    yield _distributions(primary, scores_of_set)
    yield _strips(targets, primary, score, counts, is_outside & is_scored)


def _curve_rows(
    curve: str,
    points: pl.DataFrame,
    attack: str | None = None,
) -> pl.DataFrame:
    """Build rows of the curves table from points, which may have attack and subject."""
    defaults = {"curve": curve, "attack": attack, "subject": None}
    missing = {
        name: pl.lit(value)
        for name, value in defaults.items()
        if name not in points.columns
    }
    rows = points.with_columns(**missing)
    return rows.select(pl.col(name).cast(dtype) for name, dtype in _TYPES.items())


def _roc(
    attack: str,
    member: Flags,
    score: Floats,
) -> pl.DataFrame:
    """Draw a ROC curve in at most 201 points."""
    # Of more, points 1/100 apart along both axes together stand for all: no point of
    # the curve is further than 1/400 from the line between them, along either axis.
    if member.all() or not member.any():
        return Curves.create_empty()
    curve = roc_curve(member, score)
    x, y = curve.fpr, curve.tpr
    if x.size > _ROC_STEPS + 1:
        way = x + y
        steps = np.linspace(0, 2, _ROC_STEPS + 1)
        x = np.interp(steps, way, x)
        y = np.interp(steps, way, y)
    points = pl.DataFrame({"x": x, "y": y, "n": np.full(x.size, score.size)})
    return _curve_rows("roc", points, attack)


def _distributions(attack: str, scores_of_set: Mapping[str, Floats]) -> pl.DataFrame:
    """Draw the histogram of the scores of each set, as shares."""
    present = {name: scores for name, scores in scores_of_set.items() if scores.size}
    if not present:
        return Curves.create_empty()
    edges = _bin_edges(np.concatenate([*present.values()]))
    middle = (edges[:-1] + edges[1:]) / 2
    histograms = []
    for name, scores in present.items():
        share = np.histogram(scores, edges)[0] / scores.size
        columns = {"x": middle, "y": share, "n": scores.size, "subject": name}
        histograms.append(pl.DataFrame(columns))
    return _curve_rows("distribution", pl.concat(histograms), attack)


def _bin_edges(scores: Floats) -> Floats:
    """Cut the range of scores in equal bins; one that is too narrow for that is widened."""
    low, high = scores.min(), scores.max()
    narrowest = _BINS * np.spacing(max(abs(low), abs(high)))
    if high - low < narrowest:
        margin = max(0.5, narrowest)
        low -= margin
        high += margin
    return np.linspace(low, high, _BINS + 1)


def _strips(
    targets: pl.LazyFrame,
    attack: str,
    score: Floats,
    is_target: Flags,
    is_outside: Flags,
) -> pl.DataFrame:
    """Draw the mean share of outside texts that score lower, along each document.

    A point is a stretch of the document. Where windows were left out, a point without
    value begins at the end of the last one before.
    """
    size = score.size
    n_windows = read_numbers(targets, pl.col("n_windows"), size, np.uint32)
    if not (is_target & (n_windows > 1)).any():
        return Curves.create_empty()
    # Where nothing is outside, all are compared.
    compared = is_outside if is_outside.any() else is_target & ~np.isnan(score)
    compared_scores = np.sort(score[compared])
    scored = pl.DataFrame(
        {
            "n_windows": n_windows,
            "is_target": is_target,
            "is_outside": is_outside,
            "n_lower": compared_scores.searchsorted(score),
            "y": pl.Series(score, nan_to_null=True),
        }
    )
    windows = pl.concat([_read_windows(targets, size), scored], how="horizontal")
    # A document outside is compared with the others alone: its own windows would
    # flatter it.
    own_score = pl.when("is_outside").then("y")
    n_own_lower = (own_score.rank("min").over("document") - 1).fill_null(0)
    n_lower = pl.col("n_lower") - n_own_lower
    n_compared = compared_scores.size - own_score.count().over("document")
    has_share = pl.col("y").is_not_null() & (n_compared > 0)
    shares = (
        windows.lazy()
        .filter("is_target", pl.col("n_windows") > 1)
        .with_columns(y=pl.when(has_share).then(n_lower / n_compared))
    )
    points = _stretch_points(shares)
    subject = targets.select(subject=pl.coalesce("document_id", "target_id"))
    has_points = pl.col("first").is_in(points["first"].unique().implode())
    names = subject.with_row_index("first").filter(has_points)
    named_points = points.join(
        names.collect(engine="streaming"), on="first", maintain_order="left"
    )
    return _curve_rows("strip", named_points, attack)


def _read_windows(targets: pl.LazyFrame, size: int) -> pl.DataFrame:
    """Read document, window, start and end of each target."""
    length = pl.col("target").str.len_chars().cast(pl.Float64)
    start = read_numbers(targets, pl.col("start").cast(pl.Float64), size, np.float64)
    return pl.DataFrame(
        {
            "document": document_numbers(targets),
            "window": read_numbers(targets, pl.col("window_index"), size, np.uint32),
            "start": start,
            "end": start + read_numbers(targets, length, size, np.float64),
        }
    ).with_row_index("row")


def _stretch_points(windows: pl.LazyFrame) -> pl.DataFrame:
    """Average ``y`` over stretches of each document, and add points for gaps."""
    n_stretches = pl.min_horizontal("n_windows", _STRETCHES).cast(pl.UInt64)
    stretch = pl.col("window") * n_stretches // pl.col("n_windows")
    y = pl.col("y")
    stretches = windows.group_by(
        "document", stretch.alias("stretch"), maintain_order=True
    ).agg(
        pl.col("row", "start").first(),
        pl.col("end").max(),
        y=y.mean(),
        n=y.count(),
    )
    following = pl.col("stretch", "start").shift(-1).over("document")
    points = stretches.with_columns(
        following.name.prefix("next_"),
        first=pl.col("row").first().over("document"),
        whole=pl.col("end").max().over("document"),
    ).collect()
    gaps = points.filter(
        pl.col("next_stretch") > pl.col("stretch") + 1,
        pl.col("end") < pl.col("next_start"),
    ).with_columns(
        start="end",
        y=pl.lit(None, pl.Float64),
        n=pl.lit(0, points.schema["n"]),
    )
    ordered = pl.concat([points, gaps]).sort("document", "start")
    return ordered.with_columns(x=pl.col("start") / pl.col("whole"))
