"""Scores of a labelled run to its metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.errors import RequestError
from mia_batch.metrics.labels import Labelled
from mia_batch.metrics.macro import MACRO, macro_averages
from mia_batch.metrics.metric_rows import (
    MetricRow,
    authors_rows,
    balanced_accuracy,
    metric_rows,
)
from mia_batch.metrics.slices import ALL, LENGTH_SLICES
from mia_batch.schemas import Metrics
from mia_batch.stats.difference import auc_difference
from mia_batch.stats.simultaneous import AucResult, simultaneous_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mia_batch.targets.plan import Preset

    _Key = tuple[str, str]  # attack and slice
    _Row = dict[str, Any]

__all__ = ["evaluate"]


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
        msg = f"the primary attack {primary!r} is not among those scored: {', '.join(attacks)}"
        raise RequestError(msg)
    schema = Metrics.create_empty().schema
    labelled = Labelled.of(scores, attacks, slice_by)
    if labelled.member.size == 0:
        return pl.DataFrame(schema=schema)
    rows: list[_Row] = []
    tried: dict[_Key, AucResult] = {}
    for attack in attacks:
        rows += _rows(labelled, attack, tried, preset=preset)
    if primary is not None:
        rows += _differences(labelled, attacks, primary)
    rows += _bounds(tried, seed)
    return pl.DataFrame(rows, schema=schema)


def _rows(
    labelled: Labelled,
    attack: str,
    tried: dict[_Key, AucResult],
    *,
    preset: Preset,
) -> Iterator[_Row]:
    """Measure an attack on each slice, and add its areas to those that were tried."""
    score, threshold = labelled.score(attack), labelled.threshold(attack)
    buckets = []
    for name in labelled.slices:
        classes = labelled.classes(score, name)
        if not classes.lack:
            tried[attack, name] = AucResult(
                estimate=classes.estimate,
                errors=classes.errors,
                counts=classes.counts,
            )
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


def _differences(labelled: Labelled, attacks: Sequence[str], primary: str) -> Iterator[_Row]:
    """Compare the primary attack with each other one, on all targets that both scored."""
    first = labelled.score(primary)
    for other in attacks:
        if other == primary:
            continue
        made = auc_difference(
            labelled.member, first, labelled.score(other), cluster=labelled.cluster
        )
        compared = {"attack": primary, "versus": other, "slice": ALL}
        yield compared | made.row(labelled.member.size)


def _bounds(tried: dict[_Key, AucResult], seed: int) -> Iterator[_Row]:
    for (attack, name), bound in simultaneous_bounds(tried, seed=seed).items():
        one = tried[attack, name]
        row = MetricRow(metric="roc_auc_simultaneous", value=one.estimate.value)
        yield _row(attack, name, one.counts, row.within(bound, one.estimate.lack))


def _row(attack: str, slice_name: str, counts: dict[str, int], row: MetricRow) -> _Row:
    return {"attack": attack, "slice": slice_name, **counts, **asdict(row)}
