"""Figures of a labelled run: each attack on each slice, with an interval or a reason for none."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
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


# The SaMIA authors' own metrics, for comparison with their tables: Kaneko et al.
# (2024), arXiv:2404.11262v2.

N_FOLDS, _FOLD_SEED = 5, 0


def tpr_nearest_fpr(member: Flags, score: Floats, fpr: float) -> float:
    """TPR at the ROC point whose FPR is nearest to the given one; it **may exceed** it.

    Of points equally near, the one with the highest threshold counts. Points on
    straight lines between their neighbours are left out, as in the authors' code:
    Kaneko et al., appendix B.
    """
    from sklearn.metrics import roc_curve as sklearn_roc_curve

    rates, tpr, _ = sklearn_roc_curve(member, score)
    return float(tpr[np.argmin(np.abs(rates - fpr))])


def accuracy_5_fold(member: Flags, score: Floats) -> float:
    """Mean accuracy of folds at the threshold of the widest gap on the others: section 3.5."""
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=_FOLD_SEED)
    accuracies = []
    for train, test in folds.split(score, member):
        threshold = roc_curve(member[train], score[train]).widest_gap().threshold
        accuracies.append(np.mean((score[test] >= threshold) == member[test]))
    return float(np.mean(accuracies))


# What is said of one attack on one slice: each figure with its interval, or why it is
# missing.

FPR_BUDGETS = (0.001, 0.005, 0.01, 0.05, 0.1)
_STABLE = (
    10  # non-members times FPR from which a threshold has nearly the FPR that it should
)
_AUTHORS_FPR = 0.1


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The labelled targets of a slice that an attack scored."""

    member: Flags  # whether each is a member
    score: Floats  # its score, finite
    # Code of its cluster; None where targets are independent
    cluster: NDArray[np.int32] | None
    row: Codes  # its number among the labelled targets
    n_unscored: int  # labelled targets without a score

    @property
    def sizes(self) -> tuple[int, int]:
        n_members = int(self.member.sum())
        return n_members, self.member.size - n_members

    @property
    def counts(self) -> dict[str, int]:
        n_members, n_nonmembers = self.sizes
        unscored = {"n_unscored": self.n_unscored}
        return {"n_members": n_members, "n_nonmembers": n_nonmembers} | unscored

    @property
    def lack(self) -> str | None:
        n_members, n_nonmembers = self.sizes
        if n_members == 0:
            return "there is no scored member"
        return "there is no scored non-member" if n_nonmembers == 0 else None

    @cached_property
    def curve(self) -> RocCurve:
        return roc_curve(self.member, self.score)

    def independent(self, threshold: float) -> tuple[float, float]:
        """Members and non-members; where they are clustered, as many as tell as much of rates."""
        if self.cluster is None:
            return self.sizes
        members, others = (
            independent_number(self.score[rows] >= threshold, self.cluster[rows])
            for rows in (self.member, ~self.member)
        )
        return members, others

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
    lack: str | None = None,
) -> _Row:
    """One row of the metrics table; without a value or an interval it has the reason."""
    limits = interval._asdict() if interval else {}
    return {"metric": metric, "fpr": fpr, "value": value, "reason": lack, **limits}


def metric_rows(classes: Classes) -> Iterator[_Row]:
    if classes.lack:
        yield figure("roc_auc", None, None, lack=classes.lack)
        for budget in FPR_BUDGETS:
            yield figure("tpr_at_fpr", budget, None, lack=classes.lack)
        return
    area = classes.area.estimate
    yield figure("roc_auc", None, area.value, estimate_interval(area), area.lack)
    for budget in FPR_BUDGETS:
        yield from _tpr_at_fpr(classes, budget)


def _tpr_at_fpr(classes: Classes, budget: float) -> Iterator[_Row]:
    needed, n = round(1 / budget), classes.sizes[1]
    if n < needed:
        reason = f"a rate of {budget:g} needs {needed} non-members, scored are {n}"
        yield figure("tpr_at_fpr", budget, None, lack=reason)
        return
    curve, area = classes.curve, classes.area.estimate
    point, interval = curve.at_fpr(budget), None
    if not area.lack:
        interval = tpr_interval(
            curve, budget, point.tpr, classes.independent(point.threshold)
        )
    row = figure("tpr_at_fpr", budget, point.tpr, interval, area.lack)
    effective = area.sizes[1]
    if effective >= _STABLE * needed:
        yield row
        return
    unit = "non-members" if classes.cluster is None else "groups of non-members"
    reason = f"unstable: only about {effective:.0f} independent {unit}"
    yield row | {"reason": row["reason"] or reason}
    true_fpr = threshold_fpr_interval(effective, budget)
    yield figure("fpr_at_threshold", budget, point.fpr, true_fpr)


def balanced_accuracy(classes: Classes, threshold: float | None) -> _Row:
    """Mean of TPR and true-negative rate at a threshold that was chosen on other texts."""
    # It is the AUC of being flagged, and has that AUC's interval.
    reason = "its threshold needs a calibration set with scored members and non-members"
    if classes.lack or threshold is None:
        return figure("balanced_accuracy", None, None, lack=classes.lack or reason)
    flagged = classes.score >= threshold
    area, _ = estimate_auc(classes.member, flagged.astype(np.float64), classes.cluster)
    return figure(
        "balanced_accuracy", None, area.value, estimate_interval(area), area.lack
    )


def authors_rows(classes: Classes) -> Iterator[_Row]:
    """Measure what the SaMIA authors report, on independent targets with intervals."""
    if classes.lack:
        yield figure("tpr_nearest_fpr", _AUTHORS_FPR, None, lack=classes.lack)
        yield figure("accuracy_5_fold", None, None, lack=classes.lack)
        return
    lack, curve, sizes = None, classes.curve, classes.sizes
    if classes.cluster is not None:
        lack = "the authors' procedure takes texts as independent; these are clustered"
    value, interval = tpr_nearest_fpr(classes.member, classes.score, _AUTHORS_FPR), None
    if not lack:
        # At which the curve has this TPR
        rates = curve.fpr[np.isclose(curve.tpr, value)]
        nearest = float(rates[np.argmin(np.abs(rates - _AUTHORS_FPR))])
        interval = tpr_interval(curve, nearest, value, sizes)
    yield figure("tpr_nearest_fpr", _AUTHORS_FPR, value, interval, lack)
    if min(sizes) < N_FOLDS:
        reason = (
            f"{N_FOLDS} folds need {N_FOLDS} scored members and as many non-members"
        )
        yield figure("accuracy_5_fold", None, None, lack=reason)
        return
    value = accuracy_5_fold(classes.member, classes.score)
    right = None if lack else clopper_pearson(round(value * sum(sizes)), sum(sizes))
    yield figure("accuracy_5_fold", None, value, right, lack)


# Slices of all targets, and of averages over length buckets
ALL, MACRO = (
    "all",
    "macro",
)
# Nominal words of the length buckets, those of the SaMIA paper. A bucket reaches from
# its length over the square root of 2 to its length times that: 23 to 45, 46 to 90, 91
# to 181, 182 to 362.
LENGTH_SLICES = {f"about {length} words": length for length in (32, 64, 128, 256)}
_MOST_VALUES = 50


def find_slices(
    labelled: pl.LazyFrame, slice_by: Sequence[str]
) -> dict[str, Codes | slice]:
    """Find the rows of each slice: ``all``, each value of some columns, and length buckets."""
    # Length buckets follow where there are at least two: a single one would repeat
    # ``all``.
    names = labelled.collect_schema().names()
    found: dict[str, Codes | slice] = {ALL: slice(None)}
    for column in slice_by:
        if column not in names:
            raise RequestError(
                f"there is no column {column!r} to slice by; there are"
                f" {', '.join(names)}"
            )
        values = labelled.select(pl.col(column).cast(pl.String).fill_null("null"))
        of_rows = values.collect(engine="streaming")[column]
        distinct = of_rows.unique().sort()
        if len(distinct) > _MOST_VALUES:
            raise RequestError(
                f"column {column!r} has {len(distinct):,} values, of which each would"
                f" be a slice; slice by a column of at most {_MOST_VALUES}"
            )
        found |= {
            f"{column}={value}": np.flatnonzero(of_rows == value) for value in distinct
        }
    if "n_words" not in names:
        return found
    targets, buckets = (
        labelled.select("member", "n_words").collect(engine="streaming"),
        {},
    )
    words, member = targets["n_words"], targets["member"].to_numpy()
    for name, length in LENGTH_SLICES.items():
        within = words.is_between(length / 2**0.5, length * 2**0.5).fill_null(
            value=False
        )
        rows = np.flatnonzero(within)
        if member[rows].any() and not member[rows].all():
            buckets[name] = rows
    return {**found, **buckets} if len(buckets) > 1 else found


def find_clusters(
    scores: pl.LazyFrame, counts: pl.Expr, attacks: Sequence[str]
) -> NDArray[np.int32] | None:
    """Find the cluster of each target that counts, from 0, none left out."""
    scored = pl.any_horizontal(pl.col(attacks).is_finite().fill_null(value=False))
    named = scores.with_columns(cluster=cluster_names(scores)).filter(counts)
    found = named.select("cluster", scored=scored)
    # Names of all targets take much more room than their hashes.
    hashes = (
        found.filter("scored")
        .select(pl.col("cluster").hash())
        .collect(engine="streaming")
    )
    ordered = np.sort(hashes.to_series().to_numpy())
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    names = (
        found.select(pl.col("cluster").unique()).collect(engine="streaming").to_series()
    )
    size = found.select(pl.len()).collect(engine="streaming").item()
    code = pl.col("cluster").cast(pl.Enum(names.sort())).to_physical()
    return read_numbers(found, code, size, np.int32)


class Labelled:
    """Targets whose membership is known; all roles count if there is no ``role``."""

    def __init__(
        self, scores: pl.LazyFrame, attacks: Sequence[str], slice_by: Sequence[str]
    ) -> None:
        counts = known = pl.col("member").is_not_null()
        self._calibration: pl.LazyFrame | None = None  # texts that choose thresholds
        if "role" in scores.collect_schema():
            role = pl.col("role").cast(pl.String)
            counts = known & role.is_in(["target", "non_member"])
            self._calibration = scores.filter(known & (role == "calibration"))
            self._taught = _member(self._calibration)
        self._scores = scores.filter(counts)
        self.member = _member(self._scores)
        self.cluster = find_clusters(scores, counts, attacks)
        self.slices = find_slices(self._scores, slice_by)

    def score(self, attack: str) -> Floats:
        return read_finite(self._scores, attack, self.member.size)

    def classes(self, score: Floats, slice_name: str) -> Classes:
        rows = self.slices[slice_name]
        kept: list[Any] = [
            self.member[rows],
            score[rows],
            np.arange(self.member.size)[rows],
        ]
        kept += [] if self.cluster is None else [self.cluster[rows]]
        scored = ~np.isnan(kept[1])
        if not scored.all():  # else views of what is there are enough
            kept = [column[scored] for column in kept]
        return Classes(
            member=kept[0],
            score=kept[1],
            row=kept[2],
            cluster=kept[3] if len(kept) > 3 else None,
            n_unscored=scored.size - kept[0].size,
        )

    def threshold(self, attack: str) -> float | None:
        """Choose the threshold of the widest gap between TPR and FPR on the calibration texts."""
        if self._calibration is None or not self._taught.size:
            return None
        score = read_finite(self._calibration, attack, self._taught.size)
        scored = ~np.isnan(score)
        member, score = self._taught[scored], score[scored]
        if member.all() or not member.any():
            return None
        return roc_curve(member, score).widest_gap().threshold


def _member(frame: pl.LazyFrame) -> Flags:
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
    metrics = dict.fromkeys(
        (row["metric"], row["fpr"]) for _, rows in buckets for row in rows
    )
    for metric in metrics:
        there = [
            (counts, row)
            for counts, rows in buckets
            for row in rows
            if (row["metric"], row["fpr"]) == metric and row["value"] is not None
        ]
        # It is said of a figure, and none itself
        if there and metric[0] != "fpr_at_threshold":
            counts = {name: sum(one[name] for one, _ in there) for name in there[0][0]}
            yield counts, _average([row for _, row in there], clustered=clustered)


def _average(there: Sequence[_Row], *, clustered: bool) -> _Row:
    metric, fpr = there[0]["metric"], there[0]["fpr"]
    value, low, high = (
        np.array([row.get(name) for row in there], float)
        for name in ("value", "low", "high")
    )
    mean = float(value.mean())
    if np.isnan(low).any():
        reason = next(row["reason"] for row in there if row.get("low") is None)
        return figure(metric, fpr, mean, None, reason)
    below, above = (
        gaps.mean() if clustered else np.linalg.norm(gaps) / value.size
        for gaps in (value - low, high - value)
    )
    method = f"{'average_conservative' if clustered else 'mover'} over {value.size}"
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
    tried: dict[tuple[str, str], AucResult] = {}
    for attack in attacks:
        rows += _rows(labelled, attack, tried, preset)
    if primary is not None:
        first, cluster = labelled.score(primary), labelled.cluster
        for other in (attack for attack in attacks if attack != primary):
            made = auc_difference(
                labelled.member, first, labelled.score(other), cluster=cluster
            )
            compared = {"attack": primary, "versus": other, "slice": ALL}
            rows.append(compared | made.row(labelled.member.size))
    tried = {key: area for key, area in tried.items() if key[0] not in later}
    for (attack, name), bound in simultaneous_bounds(tried, seed=seed).items():
        area = tried[attack, name].estimate
        row = figure("roc_auc_simultaneous", None, area.value, bound, area.lack)
        rows.append(
            {"attack": attack, "slice": name, **tried[attack, name].counts, **row}
        )
    return pl.DataFrame(rows, schema=Metrics.create_empty().schema)


def _rows(
    labelled: Labelled,
    attack: str,
    tried: dict[tuple[str, str], AucResult],
    preset: Preset,
) -> Iterator[_Row]:
    score, threshold = labelled.score(attack), labelled.threshold(attack)
    buckets = []
    for name in labelled.slices:
        classes = labelled.classes(score, name)
        if not classes.lack:
            tried[attack, name] = classes.area
        found = [*metric_rows(classes), balanced_accuracy(classes, threshold)]
        if preset == "samia":
            found += authors_rows(classes)
        yield from (
            {"attack": attack, "slice": name, **classes.counts, **row} for row in found
        )
        if name in LENGTH_SLICES:
            buckets.append((classes.counts, found))
    for counts, average in macro_averages(
        buckets, clustered=labelled.cluster is not None
    ):
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
    counts = (
        pl.col("role").is_in(["target", "non_member"]) & pl.col("member").is_not_null()
    )
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
    return pl.concat(
        [metrics, blind_metrics, pl.DataFrame([*rows], schema=metrics.schema)]
    )


def _rows_versus_blind(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    blind_scores: pl.LazyFrame,
    blind_metrics: pl.DataFrame,
) -> Iterator[dict[str, Any]]:
    """Compare each attack with the strongest blind classifier, on the texts that this one saw."""
    ranked = blind_metrics.drop_nulls("value").sort(
        "value", descending=True, maintain_order=True
    )
    if ranked.is_empty():
        return
    strongest = ranked["attack"][0]
    seen = blind_scores.select("target_id", blind=strongest).drop_nulls("blind")
    keys = [name for name in Scores.column_names() if name in scores.collect_schema()]
    # Named while all rows are there: a document without a name begins with its first
    # window.
    own = scores.with_columns(group=cluster_names(scores)).select(*keys, *attacks)
    both = own.join(seen, on="target_id", maintain_order="left").collect(
        engine="streaming"
    )
    member, blind = both["member"].to_numpy(), both["blind"].to_numpy()
    cluster = find_clusters(both.lazy(), pl.lit(value=True), attacks)
    for attack in attacks:
        score = both[attack].fill_null(float("nan")).to_numpy()
        made = auc_difference(member, score, blind, cluster=cluster)
        compared = {"attack": attack, "versus": strongest, "slice": ALL}
        yield compared | made.row(both.height)
        for row in quintile_rows(member, score, blind, cluster):
            yield {"attack": attack, **row}


def quintile_rows(
    member: Flags, score: Floats, blind: Floats, cluster: NDArray[np.int32] | None
) -> Iterator[dict[str, Any]]:
    """Measure an attack within quintiles of the blind score; equal blind scores stay together."""
    # Where an attack only repeats what the text alone tells, little is left within
    # quintiles.
    limits = np.quantile(blind, np.arange(1, _N_QUINTILES) / _N_QUINTILES)
    quintile, scored = limits.searchsorted(blind, side="right"), ~np.isnan(score)
    for place in range(_N_QUINTILES):
        rows = np.flatnonzero((quintile == place) & scored)
        classes = Classes(
            member=member[rows],
            score=score[rows],
            cluster=None if cluster is None else cluster[rows],
            row=rows,
            n_unscored=int(np.count_nonzero((quintile == place) & ~scored)),
        )
        row = next(metric_rows(classes))
        if classes.lack:
            row["reason"] = f"{classes.lack} in this quintile"
        yield {"slice": f"blind quintile {place + 1}", **classes.counts, **row}


# How well attacks tell members from non-members with fewer samples, or points, than
# there are.

_MOST = 10_000  # texts of each class
# What can be fewer: the view that is asked in, and what counts it.
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
    """AUC ``y`` over the first ``x`` samples or points of each text, for one attack of each."""
    own = pl.col("role").cast(pl.String).is_in(["target", "non_member"])
    known = scores.filter(own, pl.col("member").is_not_null()).select(
        "target_id", "member"
    )
    classes = [
        known.filter(member=member).bottom_k(_MOST, by="target_id") for member in (0, 1)
    ]
    labels = pl.concat(classes).collect(engine="streaming")
    if labels["member"].n_unique() < 2:
        return
    alone = [
        each for each in attacks if each.evidence in evidence and not each.logprobs
    ]
    for kind, (view, index) in _KINDS.items():
        reading = (each for each in alone if {of for _, of in each.reads} == {view})
        for attack in islice(reading, 1):
            rows = _measure_rows(
                with_series(evidence[attack.evidence], [attack]), attack, labels
            )
            points = [*_points(rows, attack, index)]
            made = pl.DataFrame(points, schema=["x", "y", "n"], orient="row")
            yield made.with_columns(attack=pl.lit(attack.name), subject=pl.lit(kind))


def _measure_rows(
    evidence: pl.LazyFrame, attack: Attack, labels: pl.DataFrame
) -> pl.DataFrame:
    """Read what an attack reads of some texts, in its order, with their ``member``."""
    there = evidence.collect_schema().names()
    key = [name for name in _KEY if name in there]
    answered = (
        [pl.col("words_candidate").is_not_null()]
        if attack.evidence == "samples"
        else []
    )
    rows = evidence.filter(matches_views(attack.reads), *answered)
    rows = rows.select(*key, *sorted({*attack.columns} - {*key}))
    return (
        rows.join(labels.lazy(), on="target_id").sort(key).collect(engine="streaming")
    )


def _points(
    rows: pl.DataFrame, attack: Attack, index: str
) -> Iterator[tuple[float, float, int]]:
    most = int(rows.select(pl.col(index).max().fill_null(0)).item()) + 1
    steps = [*(1 << power for power in range((most - 1).bit_length())), most]
    for k in steps if most > 1 else ():
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
            yield (
                float(k),
                roc_curve(member, scored["value"].to_numpy()).area,
                scored.height,
            )


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
    """Yield the curves table, at least one frame."""
    # ``targets`` and ``scores`` have their rows in one order. Memory: some 250 bytes a
    # target.
    yield Curves.create_empty()
    size = int(scores.select(pl.len()).collect(engine="streaming").item())
    role, member = pl.col("role").cast(pl.String), pl.col("member")
    is_asked = read_numbers(scores, role == "target", size, np.bool_)
    counts = read_numbers(scores, role.is_in(["target", "non_member"]), size, np.bool_)
    helps = read_numbers(scores, role == "calibration", size, np.bool_)
    label = read_numbers(scores, member.cast(pl.Float64), size, np.float64)
    outside = is_asked & (label == 0) | counts & ~is_asked
    for attack in attacks:
        score = read_finite(scores, attack.name, size)
        scored = ~np.isnan(score)
        known = counts & ~np.isnan(label) & scored
        yield _roc(attack.name, label[known] == 1, score[known])
    primary_first = sorted(attacks, key=lambda attack: attack.name != primary)
    for points in growth(scores, evidence, primary_first):
        yield _curve_rows("growth", points)
    score = read_finite(scores, primary, size)
    scored = ~np.isnan(score)
    sets = {
        "members": (is_asked | helps) & (label == 1),
        "non-members": outside | helps & (label == 0),
        "targets": is_asked & np.isnan(label),
    }
    yield _distributions(
        primary, {name: score[rows & scored] for name, rows in sets.items()}
    )
    yield _strips(targets, primary, score, counts, outside & scored)


def _curve_rows(
    curve: str, points: pl.DataFrame, attack: str | None = None
) -> pl.DataFrame:
    same = {"curve": curve, "attack": attack, "subject": None}
    missing = {name: pl.lit(same[name]) for name in same if name not in points.columns}
    made = points.with_columns(**missing)
    return made.select(pl.col(name).cast(dtype) for name, dtype in _TYPES.items())


def _roc(attack: str, member: Flags, score: Floats) -> pl.DataFrame:
    """Draw a ROC curve in at most 201 points."""
    # Of more, points 1/100 apart along both axes together stand for all: no point of
    # the curve is further than 1/400 from the line between them, along either axis.
    if member.all() or not member.any():
        return Curves.create_empty()
    curve = roc_curve(member, score)
    x, y = curve.fpr, curve.tpr
    if x.size > _ROC_STEPS + 1:
        walked = np.linspace(0, 2, _ROC_STEPS + 1)
        x, y = (np.interp(walked, x + y, axis) for axis in (x, y))
    points = pl.DataFrame({"x": x, "y": y, "n": np.full(x.size, score.size)})
    return _curve_rows("roc", points, attack)


def _distributions(attack: str, sets: Mapping[str, Floats]) -> pl.DataFrame:
    present = {name: scores for name, scores in sets.items() if scores.size}
    if not present:
        return Curves.create_empty()
    edges = _bin_edges(np.concatenate([*present.values()]))
    middle, drawn = (edges[:-1] + edges[1:]) / 2, []
    for name, scores in present.items():
        share = np.histogram(scores, edges)[0] / scores.size
        drawn.append(
            pl.DataFrame({"x": middle, "y": share, "n": scores.size, "subject": name})
        )
    return _curve_rows("distribution", pl.concat(drawn), attack)


def _bin_edges(scores: Floats) -> Floats:
    """Cut the range of scores in equal bins; one that is too narrow for that is widened."""
    low, high = scores.min(), scores.max()
    narrowest = _BINS * np.spacing(max(abs(low), abs(high)))
    if high - low < narrowest:
        margin = max(0.5, narrowest)
        low, high = low - margin, high + margin
    return np.linspace(low, high, _BINS + 1)


def _strips(
    targets: pl.LazyFrame, attack: str, score: Floats, asked: Flags, outside: Flags
) -> pl.DataFrame:
    """Draw the mean share of texts outside that score lower over stretches of each document."""
    # A document outside is compared with the others alone: its own windows would
    # flatter it. Where nothing is outside, all are compared. Where windows were left
    # out, a point without value begins at the end of the last one before.
    size = score.size
    n_windows = read_numbers(targets, pl.col("n_windows"), size, np.uint32)
    if not (asked & (n_windows > 1)).any():
        return Curves.create_empty()
    length = pl.col("target").str.len_chars()
    compared = np.sort(score[outside if outside.any() else asked & ~np.isnan(score)])
    start = read_numbers(targets, pl.col("start").cast(pl.Float64), size, np.float64)
    windows = pl.DataFrame(
        {
            "document": document_numbers(targets),
            "asked": asked,
            "outside": outside,
            "n_lower": compared.searchsorted(score),
            "window": read_numbers(targets, pl.col("window_index"), size, np.uint32),
            "n_windows": n_windows,
            "start": start,
            "end": (
                start + read_numbers(targets, length.cast(pl.Float64), size, np.float64)
            ),
            "y": pl.Series(score, nan_to_null=True),
        }
    ).with_row_index("row")
    mine = pl.when("outside").then("y")
    n_lower = pl.col("n_lower") - (mine.rank("min").over("document") - 1).fill_null(0)
    n_others = compared.size - mine.count().over("document")
    share = pl.when(pl.col("y").is_not_null(), n_others > 0).then(n_lower / n_others)
    several = (
        windows.lazy().filter("asked", pl.col("n_windows") > 1).with_columns(y=share)
    )
    n = pl.min_horizontal("n_windows", _STRETCHES).cast(pl.UInt64)
    stretch = (pl.col("window") * n // pl.col("n_windows")).alias("stretch")
    starts, y = pl.col("row", "start").first(), pl.col("y")
    stretches = several.group_by("document", stretch, maintain_order=True).agg(
        starts, pl.col("end").max(), y=y.mean(), n=y.count()
    )
    following = (
        pl.col("stretch", "start").shift(-1).over("document").name.prefix("next_")
    )
    points = stretches.with_columns(
        following,
        first=pl.col("row").first().over("document"),
        whole=pl.col("end").max().over("document"),
    ).collect()
    gaps = points.filter(
        pl.col("next_stretch") > pl.col("stretch") + 1,
        pl.col("end") < pl.col("next_start"),
    ).with_columns(
        start="end", y=pl.lit(None, pl.Float64), n=pl.lit(0, points.schema["n"])
    )
    ordered = pl.concat([points, gaps]).sort("document", "start")
    drawn = ordered.with_columns(x=pl.col("start") / pl.col("whole"))
    subject = targets.select(subject=pl.coalesce("document_id", "target_id"))
    own = pl.col("first").is_in(drawn["first"].unique().implode())
    names = subject.with_row_index("first").filter(own).collect(engine="streaming")
    return _curve_rows(
        "strip", drawn.join(names, on="first", maintain_order="left"), attack
    )
