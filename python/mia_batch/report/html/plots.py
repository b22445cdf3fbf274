"""Plots as inline SVG: their colours are those of the page, also in the dark and on paper."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import polars as pl
from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.report.html.page import Contents


_MOST_ATTACKS = 6  # as many colours as can be told apart, also by the colour-blind with dashes
_ROLES = re.compile(r' (?:role|aria-[a-z]+)="[^"]*"')  # a plot is one picture with one name
_SIZE: dict[str, Any] = {"width": 420, "height": 300}
_COLOURS = [f"var(--series-{number})" for number in range(1, _MOST_ATTACKS + 1)]
_COLOUR = "#2a6f97"  # of a file of its own, which has no page around it
_DASHES = [[1, 0], [7, 3], [2, 2], [9, 2, 2, 2], [4, 4], [1, 3]]
_CONFIG = {
    "background": "transparent",
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domainColor": "currentColor",
        "gridColor": "var(--line)",
        "labelColor": "currentColor",
        "tickColor": "currentColor",
        "titleColor": "currentColor",
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 13,
    },
    "legend": {
        "labelColor": "currentColor",
        "labelFontSize": 12,
        "labelLimit": 300,
        "columns": 1,
        "orient": "bottom",
        "symbolSize": 400,
        "title": None,
    },
}


def plots(contents: Contents) -> Iterator[dict[str, Any]]:
    """Yield title, drawing and note of each plot whose points the run has."""
    curves = contents.frame("curves", pl.col("curve") != "strip")
    if curves.is_empty():
        return
    roc = curves.filter(pl.col("x") > 0, curve="roc")
    names = sorted(roc["attack"].unique(), key=lambda name: (name != contents.primary, name))
    shown, left_out = names[:_MOST_ATTACKS], names[_MOST_ATTACKS:]
    in_table = f" In the table only: {', '.join(left_out)}." if left_out else ""
    for curve, points, draw, title, note in (
        (
            "roc",
            roc.filter(pl.col("attack").is_in(shown)) if left_out else roc,
            _roc,
            "How well scores tell members from non-members",
            "True-positive rate over false-positive rate, whose axis is logarithmic: its left end "
            f"is where few accusations are false. The dotted line is guessing.{in_table}",
        ),
        (
            "growth",
            curves.filter(curve="growth"),
            _growth,
            "How well they do with fewer samples or points",
            "AUC if only the first samples, or points, of each text counted; the axis below is "
            "logarithmic. At 0.5 lies guessing.",
        ),
        (
            "distribution",
            curves.filter(curve="distribution", attack=contents.primary),
            _distribution,
            f"Distribution of {contents.primary}",
            "Share of the texts of each set, by score. Higher: more likely a member.",
        ),
    ):
        if points.height:
            source = f"curves.parquet: x, y of curve = {curve}"
            yield {"title": title, "svg": draw(points), "note": note, "source": source}


def _roc(points: pl.DataFrame) -> Markup:
    smallest = float(points["x"].min())  # type: ignore[arg-type]
    powers = [10.0**-power for power in range(10) if 10.0**-power >= smallest]
    axis = {"values": powers, "format": "~g"}
    scale = {"type": "log", "domain": [smallest, 1]}
    both = {
        "x": quantity("x", "False-positive rate", axis=axis, scale=scale),
        "y": quantity("y", "True-positive rate", scale={"domain": [0, 1]}),
    }
    grid = pl.DataFrame({"x": [smallest ** (i / 40) for i in range(41)]}).with_columns(y="x")
    guess = line(grid, both, strokeDash=[1, 4], stroke="currentColor")
    return svg(guess, line(points, both | series("attack"), strokeWidth=2))


def _growth(points: pl.DataFrame) -> Markup:
    named = points.with_columns(series=pl.format("{} by {}", "attack", "subject"))
    axis = {"values": sorted(named["x"].unique()), "format": "d"}
    both = {
        "x": quantity("x", "Samples or points", axis=axis, scale={"type": "log", "base": 2}),
        "y": quantity("y", "AUC", scale={"zero": False}),
    }
    return svg(line(named, both | series("series"), strokeWidth=2))


def _distribution(points: pl.DataFrame) -> Markup:
    both = {
        "x": quantity("x", points["attack"][0], scale={"zero": False}),
        "y": quantity("y", "Share of texts"),
    }
    return svg(line(points, both | series("subject"), interpolate="step"))


def quantity(field: str, title: str, **how: object) -> dict[str, Any]:
    """Draw a number along an axis."""
    return {"field": field, "type": "quantitative", "title": title, **how}


def series(field: str) -> dict[str, Any]:
    """Tell series apart by colour and by dashes."""
    of = {"field": field, "type": "nominal", "sort": None}
    ranges = {"color": _COLOURS, "strokeDash": _DASHES}
    return {name: of | {"scale": {"range": values}} for name, values in ranges.items()}


def line(points: pl.DataFrame, encoding: dict[str, Any], **mark: object) -> dict[str, Any]:
    """Draw points as one layer."""
    fields = [channel["field"] for channel in encoding.values()]
    values = points.select(pl.col(*dict.fromkeys(fields))).to_dicts()
    mark = {"type": "line"} | mark
    return {"data": {"values": values}, "mark": mark, "encoding": encoding}


def svg(*layers: dict[str, Any]) -> Markup:
    """Draw layers as Vega-Lite does; altair would take a second to load and write the same."""
    import vl_convert

    chart = {**_SIZE, "config": _CONFIG, "layer": list(layers)}
    return Markup(_ROLES.sub("", vl_convert.vegalite_to_svg(chart)))


def draw_differences(comparisons: pl.DataFrame) -> str:
    """Draw the mean difference of each run to the first, by set, with its interval, as SVG."""
    from vl_convert import vegalite_to_svg

    rows = comparisons.filter(statistic="mean_difference", level="set").select(
        pl.col("set").cast(pl.String).str.replace("_", "-"),
        "run",
        pl.col("value", "low", "high").round(6),
    )
    versus = comparisons["versus"].drop_nulls()[0]
    title = f"mean difference of {comparisons['attack'][0]} to {versus}"
    nominal = {"type": "nominal", "title": None, "sort": None}
    number = {"type": "quantitative"}
    run = {"field": "run", "axis": {"labelLimit": 300}, **nominal}
    zero = {"type": "rule", "color": "#888", "strokeDash": [4, 3]}
    between = {"type": "rule", "color": _COLOUR, "strokeWidth": 2}
    point = {"type": "point", "color": _COLOUR, "filled": True, "size": 60, "opacity": 1}
    limits = {"x": {"field": "low", "title": title, **number}, "x2": {"field": "high"}, "y": run}
    value = {"x": {"field": "value", **number}, "y": run}
    layers = ((zero, {"x": {"datum": 0}}), (between, limits), (point, value))
    drawn = [{"mark": mark, "encoding": encoding} for mark, encoding in layers]
    chart = {
        "data": {"values": rows.to_dicts()},
        "facet": {"row": {"field": "set", **nominal}},
        "spec": {"layer": drawn, "width": 480, "height": {"step": 28}},
    }
    return vegalite_to_svg(chart)
