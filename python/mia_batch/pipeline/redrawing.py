"""How far scores and answers depend on the samples that were drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch import tables
from mia_batch.attacks import score_by
from mia_batch.inference.second_draw import flip_rate, score_errors
from mia_batch.schemas import Features, Scores
from mia_batch.targets.clusters import cluster_name

if TYPE_CHECKING:
    from mia_batch.attacks import Attack
    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = ["sampling_error"]

_MOST_ROWS = 20_000
"""Targets and non-members that draws are simulated for; of more, the first by ``target_id``."""


def sampling_error(
    settings: Settings, attack: Attack, plan: VerdictPlan, run: Run
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Measure the sampling error of the primary attack.

    Parameters
    ----------
    settings
        Number of samples, and whether there is a second draw.
    attack
        The primary attack, which reads samples.
    plan
        How p-values are made.
    run
        The run, held, with scores.

    Returns
    -------
    tuple of DataFrame and DataFrame
        ``target_id`` and ``standard_error`` of those targets and non-members that were looked at,
        and one row of the verdicts table with the share of answers that would flip.
    """
    of_tests = pl.col("role").is_in(["target", "non_member"])
    table = tables.scan(run.scores_path, Scores)
    scores = (
        table.with_columns(group=cluster_name(table.collect_schema().names()))
        .filter(of_tests)  # from here on, windows may lack the first of their document
        .select(*Scores.column_names(), score=attack.name)
        .bottom_k(_MOST_ROWS, by="target_id")
        .collect(engine="streaming")
        .sort("target_id")
    )
    features = tables.scan(run.features_folder, Features).filter(
        pl.col("target_id").is_in(scores["target_id"].implode())
    )
    number = pl.col("sample_index")
    first = features.filter(number < settings.samples)
    alone = score_by(first, attack, "target_id", "sample_index").sort("target_id", "sample_index")
    values = alone.collect(engine="streaming")
    second = None
    if settings.second_draw:
        again = score_by(features.filter(number >= settings.samples), attack, "target_id")
        drawn = again.collect(engine="streaming")
        second = scores.join(drawn, on="target_id", how="left", maintain_order="left")["value"]
    return score_errors(values, scores), flip_rate(scores, plan, values=values, second=second)
