"""What a tuned model is good for: accuracy, or the loss on texts that it has not learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from mia_batch.stats.paired import cluster_means
from mia_batch.stats.ratios import ratio_of_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mia_batch.privacy.plan import Task
    from mia_batch.privacy.signals import Opened

__all__ = ["utility"]


def utility(opened: Opened, texts: pl.DataFrame, task: Task, labels: Sequence[str]) -> pl.DataFrame:
    """Measure a model on the auxiliary texts: one row of ``measure``, ``value``, ``low``, ``high``.

    ``accuracy``: the share of texts of whose labels the right one is likeliest; ``loss``: nats a
    token, lower is better. Intervals of 95 % take groups as the units; null where they are too few.
    """
    if task == "classification":
        each = _is_right(opened, texts, labels)
    else:
        each = opened.losses(texts["text"].to_list(), texts["target"].to_list()).to_numpy()
    there = texts.select("group", value=pl.Series(each)).drop_nans().drop_nulls("value")
    n = there.height
    cluster = there["group"].rank("dense").to_numpy().astype(np.intp) - 1
    row: dict[str, Any] = {"measure": "loss", "value": None, "low": None, "high": None, "n": n}
    if task == "classification":
        found = ratio_of_sums(np.stack([there["value"].to_numpy(), np.ones(n)]), cluster)
        row |= {"measure": "accuracy", "value": found.value}
        if found.interval is not None:
            row |= {"low": found.interval.low, "high": found.interval.high}
    elif n:
        means = cluster_means(there.select("value").to_numpy(), np.zeros(n, np.intp), cluster)
        mean, half = float(means.value[0, 0]), float(means.half_widths()[0, 0])
        row["value"] = mean
        if np.isfinite(half):
            row |= {"low": max(0.0, mean - half), "high": mean + half}
    return pl.DataFrame([row], schema_overrides=dict.fromkeys(("value", "low", "high"), pl.Float64))


def _is_right(opened: Opened, texts: pl.DataFrame, labels: Sequence[str]) -> NDArray[np.float64]:
    """Whether the label of each text is the likeliest."""
    given = texts["text"].to_list()
    losses = np.stack(
        [opened.sums(given, [label] * len(given)).to_numpy() for label in labels], axis=1
    )
    chosen = np.array(labels)[losses.argmin(axis=1)]
    is_right: NDArray[np.bool_] = chosen == texts["target"].to_numpy()
    return is_right.astype(np.float64)
