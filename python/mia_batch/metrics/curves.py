"""Pictures of scores as points: ROC curves, distributions, strips of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.metrics.growth import growth
from mia_batch.schemas import Curves
from mia_batch.stats.roc import roc_curve
from mia_batch.tables.numbers import read_finite, read_numbers
from mia_batch.targets.clusters import document_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mia_batch.attacks import Attack

__all__ = ["curves"]

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
    labelled texts of roles ``target`` and ``non_member``, where both classes have scores, and the
    area under it as samples or points of the ``evidence`` grow, see `growth`. Then, of the primary
    attack, the distribution of members, non-members (calibration data included) and texts of
    unknown membership over 40 bins of equal width, and the strips of documents of role ``target``
    with at least two windows. A score that is no finite number counts as missing. Memory: some 250
    bytes a target.
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
        yield _rows("growth", points)
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


def _rows(curve: str, points: pl.DataFrame, attack: str | None = None) -> pl.DataFrame:
    """Complete the points to rows of the table."""
    made = points.with_columns(curve=pl.lit(curve))
    if attack is not None:
        made = made.with_columns(attack=pl.lit(attack))
    if "subject" not in made.columns:
        made = made.with_columns(subject=None)
    return made.select(pl.col(name).cast(dtype) for name, dtype in _TYPES.items())


def _roc(attack: str, member: NDArray[np.bool_], score: NDArray[np.float64]) -> pl.DataFrame:
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
    return _rows("roc", points, attack)


def _distributions(attack: str, sets: Mapping[str, NDArray[np.float64]]) -> pl.DataFrame:
    """Draw what share of each set's texts lies in each bin, over the range of all sets."""
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
    return _rows("distribution", pl.concat(drawn), attack)


def _strips(
    targets: pl.LazyFrame,
    attack: str,
    score: NDArray[np.float64],
    compared: NDArray[np.float64],
) -> pl.DataFrame:
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
    names = _names(targets, drawn["first"].unique())
    return _rows("strip", drawn.join(names, on="first", maintain_order="left"), attack)


def _names(targets: pl.LazyFrame, rows: pl.Series) -> pl.DataFrame:
    subject = targets.select(subject=pl.coalesce("document_id", "target_id"))
    found = subject.with_row_index("first").filter(pl.col("first").is_in(rows.implode()))
    return found.collect(engine="streaming")
