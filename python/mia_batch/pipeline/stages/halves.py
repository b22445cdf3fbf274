"""Which texts a run tunes its shadow models on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from mia_batch.finetuning.halves import in_half
from mia_batch.prompts.view import SHADOW
from mia_batch.targets.clusters import cluster_name

if TYPE_CHECKING:
    from mia_batch.pipeline.context import Audit

__all__ = ["LEARNT", "halves", "number_of", "trained_on"]

LEARNT = ("target", "non_member", "calibration")
"""Roles of the texts that shadow models may learn."""


def trained_on(audit: Audit, model: str) -> pl.DataFrame | None:
    """Say of each text whether the run tunes a model on it; None where it tunes on others."""
    if not model.startswith(SHADOW):
        return None
    return halves(audit, model).select("target_id", "trained")


def number_of(model: str) -> int:
    """Tell the number of a shadow model; 0 of others."""
    return int(model.removeprefix(SHADOW)) if model.startswith(SHADOW) else 0


def halves(audit: Audit, model: str) -> pl.DataFrame:
    """Deal out the texts: windows of a document go together, and so do texts that are the same.

    Others, such as canaries, are ``learnt`` by no model, so that each is new to all of them unless
    it is the same as a text that is. A window that several documents have is learnt where one of
    them is: it may be in more than half of the models.
    """
    document = pl.format("document {}", cluster_name(["target_id", "window_index", "document_id"]))
    name = pl.when(pl.col("n_windows") > 1).then(document).otherwise(pl.format("{}", "target"))
    rows = (
        audit.run.scan("targets")
        .filter(pl.col("target").is_not_null())
        .select("target_id", "target", name=name, learnt=pl.col("role").is_in(LEARNT))
        .collect(engine="streaming")
    )
    own = in_half(rows["name"].to_list(), number_of(model), audit.settings.seed)
    return rows.with_columns(
        trained=pl.Series(own, dtype=pl.Boolean) & pl.col("learnt").any().over("name")
    ).with_columns(pl.col("trained").any().over("target"))
