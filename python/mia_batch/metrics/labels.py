"""The labelled targets of a scores table, read one attack at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.metrics.clusters import find_clusters
from mia_batch.metrics.metric_rows import Classes
from mia_batch.metrics.slices import find_slices
from mia_batch.stats.roc import roc_curve
from mia_batch.tables.numbers import read_finite, read_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Labelled"]

_LABELLED = pl.col("member").is_not_null()


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Targets whose membership is known.

    Attributes
    ----------
    scores
        Their scores.
    calibration
        Scores of labelled texts that choose thresholds, and whether each is a member; None where
        there is no ``role``.
    member
        Whether each target is a member.
    cluster
        Code of each target's cluster; None where targets are independent.
    slices
        Rows of each slice, ``all`` first.
    """

    scores: pl.LazyFrame
    calibration: tuple[pl.LazyFrame, NDArray[np.bool_]] | None
    member: NDArray[np.bool_]
    cluster: NDArray[np.int32] | None
    slices: dict[str, NDArray[np.intp] | slice]

    @classmethod
    def of(cls, scores: pl.LazyFrame, attacks: Sequence[str], slice_by: Sequence[str]) -> Labelled:
        """Find the labelled targets of a scores table.

        All roles count where there is no ``role``.
        """
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

    def score(self, attack: str) -> NDArray[np.float64]:
        """Read an attack's scores.

        Float64, NaN where a target has no finite score.
        """
        return read_finite(self.scores, attack, self.member.size)

    def classes(self, score: NDArray[np.float64], slice_name: str) -> Classes:
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


def _member(frame: pl.LazyFrame) -> NDArray[np.bool_]:
    size = frame.select(pl.len()).collect(engine="streaming").item()
    return read_numbers(frame, pl.col("member"), size, np.bool_)
