"""Sentences about texts of known membership, from rows of metrics and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.report.checks import blind_row, duplicates_sentence, excluded

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["label_sentence", "labelled_sentences"]


def label_sentence(findings: pl.DataFrame) -> Iterator[str]:
    """Say whether labels can be told apart without the model."""
    blind = blind_row(findings, "members")
    if blind is not None:
        yield _blind_warning(blind) or (
            f"These labels could not be told apart without the model: {excluded(blind['high'])}."
        )


def labelled_sentences(
    metrics: pl.DataFrame, findings: pl.DataFrame, primary: str
) -> Iterator[str]:
    """Say what labels show; nothing where labels are not of both classes."""
    blind = blind_row(findings, "members")
    if blind is None:
        return
    warning = _blind_warning(blind)
    figures = metrics.filter(slice="all", attack=primary)
    for row in figures.filter(metric="roc_auc").iter_rows(named=True):
        if row["value"] is not None:
            yield f"{primary}: AUC {_figure(row)}."
    beside = figures.filter(
        pl.col("versus") == pl.lit(blind["strongest"], pl.String), metric="roc_auc_difference"
    )
    for row in beside.iter_rows(named=True):
        if row["value"] is not None:
            strongest = blind["strongest"]
            yield f"{primary} less {strongest}, which never sees the model: {_figure(row)}."
    quintiles = metrics.filter(
        pl.col("slice").str.starts_with("blind quintile"), metric="roc_auc", attack=primary
    )
    if warning and quintiles.height:
        values = ["-" if value is None else f"{value:.2f}" for value in quintiles["value"]]
        yield (
            f"{primary}: AUC within quintiles of the score of {blind['strongest']}: "
            f"{', '.join(values)}."
        )
    yield from _best_of_many(metrics)
    yield from duplicates_sentence(findings, "members", ("members", "non-members"))


def _blind_warning(row: dict[str, Any]) -> str | None:
    end = "attack figures are not evidence of memory"
    if row["verdict"] is None:
        return (
            "Whether these labels can be told apart without the model is unknown "
            f"({row['reason']}): attack figures alone are no evidence of memory."
        )
    if row["verdict"] == "separable":
        return f"These labels can be told apart without the model ({row['found']}): {end}."
    if row["verdict"] == "undecided":
        return (
            "Whether these labels can be told apart without the model is undecided (an AUC up to "
            f"{row['high']:.2f} is not excluded): what an attack is worth is its lead over "
            f"{row['strongest']}, which never sees the model."
        )
    return None


def _figure(row: dict[str, Any]) -> str:
    if row["low"] is None or row["high"] is None:
        return f"{row['value']:.3f}, without an interval ({row['reason']})"
    return f"{row['value']:.3f}, 95 % interval {row['low']:.3f} to {row['high']:.3f}"


def _best_of_many(metrics: pl.DataFrame) -> Iterator[str]:
    bounds = metrics.filter(pl.col("low").is_not_null(), metric="roc_auc_simultaneous")
    if bounds.height < 2:
        return
    best = bounds.sort("low", descending=True).row(0, named=True)
    where = "" if best["slice"] == "all" else f" on {best['slice']}"
    yield (
        f"Of {bounds.height:,} attacks and slices tried, {best['attack']}{where} has the highest "
        f"lower bound that holds for all at once: AUC at least {best['low']:.3f}."
    )
