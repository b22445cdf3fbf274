"""A labelled run: what attacks tell of the labels, and what can be told without the model."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from mia_batch.metrics.clusters import find_clusters
from mia_batch.metrics.evaluate import evaluate
from mia_batch.metrics.metric_rows import Classes, metric_rows
from mia_batch.schemas import Metrics, Scores
from mia_batch.stats.difference import auc_difference
from mia_batch.targets.clusters import cluster_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mia_batch.targets.plan import Preset

__all__ = ["measure", "quintile_rows"]

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
    rows = _rows_beside_blind(scores, attacks, blind_scores, blind_metrics)
    return pl.concat([metrics, blind_metrics, pl.DataFrame([*rows], schema=metrics.schema)])


def _rows_beside_blind(
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
    member, told = both["member"].to_numpy(), both["blind"].to_numpy()
    cluster = find_clusters(both.lazy(), pl.lit(value=True), attacks)
    for attack in attacks:
        score = both[attack].fill_null(float("nan")).to_numpy()
        made = auc_difference(member, score, told, cluster=cluster)
        compared = {"attack": attack, "versus": strongest, "slice": "all"}
        yield compared | made.row(both.height)
        for row in quintile_rows(member, score, told, cluster):
            yield {"attack": attack, **row}


def quintile_rows(
    member: NDArray[np.bool_],
    score: NDArray[np.float64],
    blind: NDArray[np.float64],
    cluster: NDArray[np.int32] | None,
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
            row = replace(row, reason=f"{classes.lack} in this quintile")
        yield {"slice": f"blind quintile {place + 1}", **classes.counts, **asdict(row)}
