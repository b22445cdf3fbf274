"""What a tuned model is good for: accuracy, or the loss on texts that it has not learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia_batch.finetuning.recipe import Form
    from mia_batch.privacy.plan import Task
    from mia_batch.privacy.signals import Opened

__all__ = ["utility"]

_NORMAL = 1.959964  # of an interval of 95 %


def utility(
    opened: Opened, texts: pl.DataFrame, task: Task, form: Form, labels: Sequence[str]
) -> pl.DataFrame:
    """Measure a model on the auxiliary texts: one row of ``measure``, ``value``, ``low``, ``high``.

    ``accuracy``: the share of texts of whose labels the right one is likeliest; ``loss``: nats a
    token, lower is better. Intervals of 95 % take groups as the units.
    """
    if task == "classification":
        each = _is_right(opened, texts, form, labels)
    else:
        each = opened.losses(texts["text"].to_list(), texts["target"].to_list()).to_numpy()
    there = texts.select("group", value=pl.Series(each)).drop_nans().drop_nulls("value")
    mean = float(there["value"].mean() or 0.0)  # type: ignore[arg-type]
    off = there.group_by("group").agg((pl.col("value") - mean).sum())["value"].to_numpy()
    n = off.size
    wide = _NORMAL * float(np.sqrt((off**2).sum() * n / max(1, n - 1))) / max(1, there.height)
    measure = "accuracy" if task == "classification" else "loss"
    low, high = max(0.0, mean - wide), mean + wide
    if measure == "accuracy":
        high = min(1.0, high)
    return pl.DataFrame(
        {"measure": measure, "value": mean, "low": low, "high": high, "n": there.height}
    )


def _is_right(opened: Opened, texts: pl.DataFrame, form: Form, labels: Sequence[str]) -> np.ndarray:
    """Whether the label of each text is the likeliest."""
    given = texts["text"].to_list()
    losses = np.stack(
        [opened.sums(given, [label] * len(given)).to_numpy() for label in labels], axis=1
    )
    del form
    chosen = np.array(labels)[losses.argmin(axis=1)]
    return (chosen == texts["target"].to_numpy()).astype(float)
