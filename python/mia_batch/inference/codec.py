"""The share of a set's texts that become less likely after other texts of their kind: CoDeC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mia_batch.attacks.prefix_shots import CODEC
from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.findings import finding_rows
from mia_batch.stats.clusters import effective_number, few, is_enough
from mia_batch.stats.rates import clopper_pearson, independent_number
from mia_batch.tables.numbers import read_finite

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from mia_batch.inference.comparison import ComparisonSets

__all__ = ["codec_findings"]


def codec_findings(scores: pl.LazyFrame) -> pl.DataFrame:
    """Rows of check ``codec``: the ``share`` of the targets, and of the non-members as control.

    Null with a reason where no text of a set has a score. The 95 % interval is Clopper and
    Pearson's; where texts share groups, of their `independent_number`. It has no limits, but a
    reason, where groups are worth fewer than four of one size.

    Zawalski et al. (2025), arXiv:2510.27055, the CoDeC score of a data set.
    """
    sets = read_comparison_sets(scores)
    return finding_rows("codec", _rows(scores, sets))


def _rows(scores: pl.LazyFrame, sets: ComparisonSets) -> Iterator[dict[str, object]]:
    falls = read_finite(scores, CODEC, sets.target_id.len())
    for subject, rows in (("targets", sets.targets), ("non-members", sets.nulls)):
        scored = rows[~np.isnan(falls[rows])]
        row: dict[str, object] = {"subject": subject, "statistic": "share"}
        if not scored.size:
            yield row | {"reason": "no text of the set has a score"}
            continue
        share = float(falls[scored].mean())
        cluster = sets.cluster[scored]
        effective = effective_number(np.unique(cluster, return_counts=True)[1])
        if sets.share_clusters(scored) and not is_enough(effective):
            yield row | {"value": share, "reason": few(effective)}
            continue
        n = independent_number(falls[scored] == 1, cluster)
        interval = clopper_pearson(share * n, n)
        yield row | {"value": share, "low": interval.low, "high": interval.high}
