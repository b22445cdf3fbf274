"""A picture of how runs of one corpus differ."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    import altair as alt

__all__ = ["draw_differences"]

_COLOUR = "#2a6f97"


def draw_differences(comparisons: pl.DataFrame) -> str:
    """Draw the mean difference of each run to the first, by set, with its interval, as SVG."""
    rows = comparisons.filter(statistic="mean_difference", level="set").select(
        pl.col("set").cast(pl.String).str.replace("_", "-"),
        "run",
        pl.col("value", "low", "high").round(6),
    )
    versus = comparisons["versus"].drop_nulls()[0]
    title = f"mean difference of {comparisons['attack'][0]} to {versus}"
    drawn = StringIO()
    _chart(rows, title).save(drawn, format="svg")
    return drawn.getvalue()


def _chart(rows: pl.DataFrame, title: str) -> alt.FacetChart:
    import altair as alt

    whole = alt.Chart(rows)
    run = alt.Y("run:N", title=None, sort=None, axis=alt.Axis(labelLimit=300))
    zero = whole.mark_rule(color="#888", strokeDash=[4, 3]).encode(x=alt.datum(0))
    interval = whole.mark_rule(color=_COLOUR, strokeWidth=2).encode(
        alt.X("low:Q", title=title), alt.X2("high:Q"), run
    )
    value = whole.mark_point(color=_COLOUR, filled=True, size=60, opacity=1).encode(
        alt.X("value:Q"), run
    )
    layers = alt.layer(zero, interval, value).properties(width=480, height=alt.Step(28))
    return layers.facet(row=alt.Row("set:N", title=None, sort=None))
