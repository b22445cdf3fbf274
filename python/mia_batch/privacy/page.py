"""The report of an audit of privacy: one page, and the sentences that it begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.report.html.page import environment
from mia_batch.report.html.plots import line, quantity, series, svg
from mia_batch.report.html.text import NO_VALUE, interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from markupsafe import Markup

    from mia_batch.privacy.plan import Plan

__all__ = ["conclusions", "page_of"]

_WHOLE = 0.5  # of guessing


def page_of(base: str, data: str, plan: Plan, tables: Mapping[str, pl.DataFrame]) -> str:
    """Write the page: one file that asks nothing of any network."""
    exposures = tables.get("exposures")
    return (
        environment()
        .get_template("privacy.html.jinja")
        .render(
            base=base,
            data=data,
            plan=plan.described(),
            rows=tables["summary"].to_dicts(),
            conclusions=[*conclusions(tables["summary"])],
            interval=interval,
            plot=None if exposures is None else _plot(exposures),
        )
    )


def conclusions(summary: pl.DataFrame) -> Iterator[str]:
    """Yield what may be concluded; a privacy that was not kept comes first."""
    rows = summary.to_dicts()
    for row in rows:
        if row["is_contradicted"]:
            shown = max(row["epsilon_bound"] or 0, row["epsilon_bound_by_rates"] or 0)
            yield (
                f"{row['variant']}: the training says epsilon {row['epsilon']:.2f}, and an attack "
                f"shows at least {shown:.2f}: it does not keep the privacy that it says."
            )
    for row in rows:
        yield f"{row['variant']}: {_of(row)}"


def _of(row: dict[str, Any]) -> str:
    parts = []
    if row["auc"] is None:
        parts.append("how well members are told cannot be said from so few texts")
    else:
        told = (
            "are"
            if row["auc_low"] is not None and row["auc_low"] > _WHOLE
            else "are not shown to be"
        )
        low, high = (
            NO_VALUE if each is None else f"{each:.3f}"
            for each in (row["auc_low"], row["auc_high"])
        )
        parts.append(f"members {told} told from others (AUC {row['auc']:.3f}, {low} to {high})")
    if row["mean_exposure"] is not None:
        parts.append(
            f"canaries have a mean exposure of {row['mean_exposure']:.2f} bits, "
            f"{row['unlearnt_exposure']:.2f} without any memory"
        )
    if row["epsilon_reason"] is not None:
        parts.append(f"no epsilon is given: {row['epsilon_reason']}")
    elif row["epsilon"] is not None and row["epsilon_bound"] is not None:
        parts.append(
            f"its accountant says epsilon {row['epsilon']:.2f}, attacks show at least "
            f"{row['epsilon_bound']:.2f} and could have shown {row['epsilon_ceiling']:.2f} at most"
        )
    return "; ".join(parts) + "."


def _plot(exposures: pl.DataFrame) -> Markup:
    """Mean exposure over repetitions, with the spread over formats, of each variant."""
    points = (
        exposures.drop_nulls("exposure")
        .group_by("variant", "repetitions", maintain_order=True)
        .agg(
            mean=pl.col("exposure").mean(),
            half=1.96 * pl.col("exposure").std().fill_null(0) / pl.len().sqrt(),
        )
        .with_columns(low=pl.col("mean") - pl.col("half"), high=pl.col("mean") + pl.col("half"))
        .sort("variant", "repetitions")
    )
    x = {"x": quantity("repetitions", "Times that a canary was learnt")}
    y = {"y": quantity("mean", "Exposure, bits")}
    band = {"y": quantity("low", "Exposure, bits"), "y2": {"field": "high"}}
    unlearnt = exposures.select("repetitions", mean="unlearnt_exposure").unique()
    return svg(
        line(points, x | band | series("variant"), type="area", opacity=0.15),
        line(points, x | y | series("variant"), strokeWidth=2),
        line(unlearnt.sort("repetitions"), x | y, strokeDash=[1, 4], stroke="currentColor"),
    )
