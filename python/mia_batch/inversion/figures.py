"""Figures over all texts under attack, with intervals that respect groups."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from mia_batch.inversion.overlap import UNITS
from mia_batch.schemas import Inversion
from mia_batch.stats.ratios import ratio_difference, ratio_of_sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mia_batch.stats.ratios import Ratio

__all__ = ["figures"]

_HAS = pl.col("true") > 0
_METRICS = {
    "precision": (pl.col("shared"), pl.col("recovered")),
    "recall": (pl.col("shared"), pl.col("true")),
    "f1": (2 * pl.col("shared"), pl.col("true") + pl.col("recovered")),
    "exact": (pl.col("exact") & _HAS, _HAS),
}
"""Numerator and denominator of each text: the figure is the ratio of their sums over texts."""

_VERSUS = (("inverter", "nearest"), ("inverter", "shuffled"), ("shuffled", "unconditional"))


def figures(found: Mapping[str, pl.DataFrame], cluster: pl.Series, n_unscored: int) -> pl.DataFrame:
    r"""Make the table `Inversion` of what each method shares with the texts (see `overlaps`).

    Of \(t_i\) true, \(r_i\) recovered and \(s_i\) shared units of text i, micro precision is
    \(\sum s_i / \sum r_i\), micro recall \(\sum s_i / \sum t_i\), and micro F1, their harmonic
    mean, \(2 \sum s_i / \sum (t_i + r_i)\). Exact matches are a share of the texts that have such
    a unit.

    PrivLM-Bench, Li et al. 2024 (arXiv:2311.04044), appendix B.3.
    """
    codes = cluster.rank("dense").to_numpy().astype(np.intp) - 1
    rows = []
    for unit, (metric, parts) in product(UNITS, _METRICS.items()):
        sums = {
            method: np.stack(
                [frame[unit].struct.unnest().select(each).to_series() for each in parts]
            ).astype(np.float64)
            for method, frame in found.items()
        }
        pairs: list[tuple[str, str | None]] = [*((method, None) for method in found), *_VERSUS]
        for method, versus in pairs:
            one, other = sums[method], None if versus is None else sums[versus]
            counts = (one[1] > 0) | (other is not None and other[1] > 0)
            _, some = np.unique(codes[counts], return_inverse=True)
            if other is None:
                ratio = ratio_of_sums(one[:, counts], some)
            else:
                ratio = ratio_difference(one[:, counts], other[:, counts], some)
            rows.append(
                {
                    "method": method,
                    "versus": versus,
                    "unit": unit,
                    "metric": metric,
                    "n_texts": int(counts.sum()),
                    "n_clusters": int(some.max(initial=-1)) + 1,
                    "n_unscored": n_unscored,
                    **_row(ratio),
                }
            )
    return pl.DataFrame(rows, schema=Inversion.create_empty().schema)


def _row(ratio: Ratio) -> dict[str, Any]:
    found = asdict(ratio)
    interval = found.pop("interval") or {}
    return found | {
        "method_of_interval" if name == "method" else name: each for name, each in interval.items()
    }
