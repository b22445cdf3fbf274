"""Prompts that give a target's prefix and are about its reference."""

from __future__ import annotations

import polars as pl

__all__ = ["continuation", "extraction"]


def continuation(targets: pl.DataFrame) -> pl.DataFrame:
    """Ask for what follows the prefix; a target that cannot be split says why."""
    return targets.select("target_id", "reason")


def extraction(targets: pl.DataFrame) -> pl.DataFrame:
    """Put the prefix before the reference, a space between where they do not join to the target."""
    joins = pl.col("prefix") + pl.col("reference") == pl.col("target")
    apart = pl.when(pl.col("reason").is_null(), ~joins)
    return targets.select("target_id", "reason", text=apart.then(" " + pl.col("reference")))
