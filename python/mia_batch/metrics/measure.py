"""A labelled run: attacks next to classifiers without the model, growth with samples, curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.attacks import Attack
from mia_batch.attacks.attack import CONTINUATION, PROBE, among
from mia_batch.attacks.from_logprobs import with_series
from mia_batch.metrics.evaluate import Classes, evaluate, find_clusters, metric_rows
from mia_batch.schemas import Curves, Metrics, Scores
from mia_batch.stats import Flags, Floats
from mia_batch.stats.differences import auc_difference
from mia_batch.stats.intervals import roc_curve
from mia_batch.tables import read_finite, read_numbers
from mia_batch.targets import Preset, cluster_names, document_numbers

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
) -> pl.DataFrame:
    """Measure attacks, and classifiers that never see the model, on the same labels.

    The metrics of attacks; then of blind classifiers, of each attack less the strongest of them
    (``versus``), and of each attack within quintiles of its score.
    """
    counts = pl.col("role").is_in(["target", "non_member"]) & pl.col("member").is_not_null()
    if not scores.select(counts.any()).collect(engine="streaming").item():
        return Metrics.create_empty()
    metrics = evaluate(
        scores, attacks, preset=preset, slice_by=slice_by, primary=primary, seed=seed
    )
    rows = _rows_versus_blind(scores, attacks, blind_scores, blind_metrics)
    return pl.concat([metrics, blind_metrics, pl.DataFrame([*rows], schema=metrics.schema)])


def _rows_versus_blind(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    blind_scores: pl.LazyFrame,
    blind_metrics: pl.DataFrame,
) -> Iterator[dict[str, Any]]:
    """Compare each attack with the strongest blind classifier, on the texts that this one saw."""
    ranked = blind_metrics.drop_nulls("value").sort("value", descending=True, maintain_order=True)
    if ranked.is_empty():
        return
    strongest = ranked["attack"][0]
    seen = blind_scores.select("target_id", blind=strongest).drop_nulls("blind")
    keys = [name for name in Scores.column_names() if name in scores.collect_schema()]
    # Named while all rows are there: a document without a name begins with its first window.
    own = scores.with_columns(group=cluster_names(scores)).select(*keys, *attacks)
    both = own.join(seen, on="target_id", maintain_order="left").collect(engine="streaming")
    member, blind = both["member"].to_numpy(), both["blind"].to_numpy()
    cluster = find_clusters(both.lazy(), pl.lit(value=True), attacks)
    for attack in attacks:
        score = both[attack].fill_null(float("nan")).to_numpy()
        made = auc_difference(member, score, blind, cluster=cluster)
        compared = {"attack": attack, "versus": strongest, "slice": "all"}
        yield compared | made.row(both.height)
        for row in quintile_rows(member, score, blind, cluster):
            yield {"attack": attack, **row}


def quintile_rows(
    member: Flags, score: Floats, blind: Floats, cluster: NDArray[np.int32] | None
) -> Iterator[dict[str, Any]]:
    """Measure an attack within quintiles of the blind score; equal blind scores stay together.

    Where an attack only repeats what the text alone tells, little is left within quintiles.
    """
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


# How well attacks tell members from non-members with fewer samples, or points, than there are.

_MOST = 10_000  # texts of each class
# What can be fewer: the view that is asked in, and what counts it.
_KINDS = {"samples": (CONTINUATION[1], "sample_index"), "points": (PROBE[1], "view_index")}
_KEY = ["target_id", "model", "view", "view_index", "sample_index"]


def growth(
    scores: pl.LazyFrame, evidence: Mapping[str, pl.LazyFrame], attacks: Sequence[Attack]
) -> Iterator[pl.DataFrame]:
    """Yield AUC ``y`` over the first ``x`` samples or points of each text, for one attack of each.

    It is the first of ``attacks`` that reads nothing else.
    """
    own = pl.col("role").cast(pl.String).is_in(["target", "non_member"])
    known = scores.filter(own, pl.col("member").is_not_null()).select("target_id", "member")
    classes = [known.filter(member=member).bottom_k(_MOST, by="target_id") for member in (0, 1)]
    labels = pl.concat(classes).collect(engine="streaming")
    if labels["member"].n_unique() < 2:
        return
    for kind, (view, index) in _KINDS.items():
        reading = [
            attack
            for attack in attacks
            if not attack.logprobs
            and {of for _, of in attack.reads} == {view}
            and attack.evidence in evidence
        ]
        for attack in reading[:1]:
            rows = _rows(with_series(evidence[attack.evidence], [attack]), attack, labels)
            points = [*_points(rows, attack, index)]
            made = pl.DataFrame(points, schema=["x", "y", "n"], orient="row")
            yield made.with_columns(attack=pl.lit(attack.name), subject=pl.lit(kind))


def _rows(evidence: pl.LazyFrame, attack: Attack, labels: pl.DataFrame) -> pl.DataFrame:
    """Read what an attack reads of some texts, in its order, with their ``member``."""
    there = evidence.collect_schema().names()
    key = [name for name in _KEY if name in there]
    answered = [pl.col("words_candidate").is_not_null()] if attack.evidence == "samples" else []
    rows = evidence.filter(among(attack.reads), *answered)
    rows = rows.select(*key, *sorted({*attack.columns} - {*key}))
    return rows.join(labels.lazy(), on="target_id").sort(key).collect(engine="streaming")


def _points(rows: pl.DataFrame, attack: Attack, index: str) -> Iterator[tuple[float, float, int]]:
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
            yield float(k), roc_curve(member, scored["value"].to_numpy()).area, scored.height


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
    """Yield the curves table, at least one frame.

    ``targets`` and ``scores`` have their rows in one order. The ROC curve of each attack over the
    labelled texts, and what `growth` finds in the ``evidence``. Then, of the primary attack, the
    distribution of members, non-members and texts of unknown membership over 40 bins of equal
    width, and the strips of documents of role ``target`` with at least two windows. Memory: some
    250 bytes a target.
    """
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
    yield _distributions(primary, {name: score[rows & scored] for name, rows in sets.items()})
    compared = score[scored & (outside if (outside & scored).any() else is_asked)]
    yield _strips(targets, primary, score, np.sort(compared))


def _curve_rows(curve: str, points: pl.DataFrame, attack: str | None = None) -> pl.DataFrame:
    same = {"curve": curve, "attack": attack, "subject": None}
    missing = {name: pl.lit(same[name]) for name in same if name not in points.columns}
    made = points.with_columns(**missing)
    return made.select(pl.col(name).cast(dtype) for name, dtype in _TYPES.items())


def _roc(attack: str, member: Flags, score: Floats) -> pl.DataFrame:
    """Draw a ROC curve in at most 201 points.

    Of more, points 1/100 apart along both axes together stand for all: no point of the curve is
    further than 1/400 from the line between them, along either axis.
    """
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
    edges = np.histogram_bin_edges(np.concatenate([*present.values()]), _BINS)
    drawn = [
        pl.DataFrame(
            {
                "x": (edges[:-1] + edges[1:]) / 2,
                "y": np.histogram(scores, edges)[0] / scores.size,
                "n": np.full(_BINS, scores.size),
            }
        ).with_columns(subject=pl.lit(name))
        for name, scores in present.items()
    ]
    return _curve_rows("distribution", pl.concat(drawn), attack)


def _strips(targets: pl.LazyFrame, attack: str, score: Floats, compared: Floats) -> pl.DataFrame:
    """Draw the mean share of compared texts that score lower over stretches of each document.

    A stretch is one of 60 equal runs of the document's windows, or a window where there are fewer.
    Where windows were left out, a point without value begins at the end of the last one before.
    """
    size = score.size
    length = pl.col("target").str.len_chars()
    beaten = compared.searchsorted(score) / max(compared.size, 1)
    start = read_numbers(targets, pl.col("start").cast(pl.Float64), size, np.float64)
    windows = pl.DataFrame(
        {
            "document": document_numbers(targets),
            "is_asked": read_numbers(targets, pl.col("role") == "target", size, np.bool_),
            "window": read_numbers(targets, pl.col("window_index"), size, np.uint32),
            "n_windows": read_numbers(targets, pl.col("n_windows"), size, np.uint32),
            "start": start,
            "end": start + read_numbers(targets, length.cast(pl.Float64), size, np.float64),
            "y": pl.Series(np.where(np.isnan(score), np.nan, beaten), nan_to_null=True),
        }
    ).with_row_index("row")
    several = windows.lazy().filter("is_asked", pl.col("n_windows") > 1)
    n = pl.min_horizontal("n_windows", _STRETCHES).cast(pl.UInt64)
    stretches = several.group_by(
        "document", stretch=pl.col("window") * n // pl.col("n_windows"), maintain_order=True
    ).agg(
        pl.col("row", "start").first(),
        pl.col("end").max(),
        y=pl.col("y").mean(),
        n=pl.col("y").count(),
    )
    following = pl.col("stretch", "start").shift(-1).over("document").name.prefix("next_")
    points = stretches.with_columns(
        following,
        first=pl.col("row").first().over("document"),
        whole=pl.col("end").max().over("document"),
    ).collect()
    gaps = points.filter(
        pl.col("next_stretch") > pl.col("stretch") + 1, pl.col("end") < pl.col("next_start")
    ).with_columns(start="end", y=pl.lit(None, pl.Float64), n=pl.lit(0, points.schema["n"]))
    drawn = (
        pl.concat([points, gaps])
        .sort("document", "start")
        .with_columns(x=pl.col("start") / pl.col("whole"))
    )
    subject = targets.select(subject=pl.coalesce("document_id", "target_id"))
    own = pl.col("first").is_in(drawn["first"].unique().implode())
    names = subject.with_row_index("first").filter(own).collect(engine="streaming")
    return _curve_rows("strip", drawn.join(names, on="first", maintain_order="left"), attack)
