"""Which targets lack evidence that could have been had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.evidence.parts import scan_logprobs, scan_samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mia_batch.pipeline.run import Run

__all__ = ["count_failures"]


def count_failures(run: Run, targets: Mapping[str, int]) -> dict[str, Any]:
    """Count the targets with a failed sample, or a text without log-probabilities.

    Parameters
    ----------
    run
        The run, held.
    targets
        ``total``, and by reason how many targets cannot be sampled.

    Returns
    -------
    dict
        ``targets`` with a failure, ``of`` those that could be sampled, and ``reasons``: how
        many targets have each, the most frequent first.
    """
    asked = pl.col("n_bytes").is_not_null()
    kinds = (scan_samples(run.samples_folder), scan_logprobs(run.logprobs_folder).filter(asked))
    failed = (
        pl.concat([kind.select("target_id", "reason") for kind in kinds])
        .filter(pl.col("reason").is_not_null())
        .unique()
        .collect(engine="streaming")
    )
    reasons = failed.group_by("reason").len().sort("len", "reason", descending=[True, False])
    return {
        "targets": failed["target_id"].n_unique(),
        "of": 2 * targets["total"] - sum(targets.values()),
        "reasons": dict(reasons.iter_rows()),
    }
