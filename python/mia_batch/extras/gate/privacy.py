"""What the gate asks of `mia-batch privacy`."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.gate.conditions import Condition, judge_areas

__all__ = ["judge_privacy", "scan_metrics"]

_COLUMNS = (
    *("variant", "attack", "versus", "slice", "metric"),
    *("value", "low", "high", "reason"),
)


def scan_metrics(path: Path) -> pl.LazyFrame:
    """Scan the table of attacks, which has to have the columns that are judged."""
    rows = pl.scan_parquet(path, glob=False)
    missing = {*_COLUMNS} - {*rows.collect_schema()}
    if missing:
        raise CorpusError(
            f"{path} lacks the columns {', '.join(sorted(missing))}; give the"
            " folder of mia-batch privacy"
        )
    return rows


def judge_privacy(table: pl.DataFrame, limit: float, variant: str | None) -> Condition:
    """Judge the AUC of every attack on one variant of a tuned model."""
    variants = table["variant"].unique(maintain_order=True).to_list()
    if variant is None and len(variants) > 1:
        raise SettingsError(
            f"the run compares {', '.join(variants)}; say which goes out (--variant)"
        )
    if variant is not None and variant not in variants:
        raise SettingsError(
            f"the run has no variant {variant!r}, only {', '.join(variants)}"
        )
    rows = table.filter(
        pl.col("versus").is_null(),
        variant=variant or variants[0],
        metric="roc_auc",
        slice="all",
    )
    return judge_areas("auc-below", limit, rows)
