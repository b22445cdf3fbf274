"""Pictures as SVG, written here: a renderer would load for a second and reserve address space.

Colours are those of the page, so that pictures follow its dark and printed forms; a
saved picture has colours of its own. Series differ by dashes, too, and have numbers on
their lines.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
from markupsafe import Markup

from mia_batch.report.html.columns import cut, interval, number, plain, share
from mia_batch.schemas import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mia_batch.report.html.contents import Contents

MOST_CURVES = 8
_COLOURS = (
    "#0b57b5",
    "#b5390b",
    "#2d7d46",
    "#7b3fa0",
    "#8a6d00",
    "#4a5563",
    "#a0245e",
    "#00727a",
)
_DASHES = ("", "7 3", "2 2", "9 2 2 2", "4 4", "14 4", "12 3 3 3", "6 2 1 2 1 2")
_LINE, _GROUND = "var(--line, #d4d9e0)", "var(--ground, #fff)"
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 548, 64, 524, 14, 310
_ROW = 20  # of a name
_DOT = 8  # across
_HIGHEST = 72  # a heap of dots
_NAME = 60  # characters of a name that are written
_HALO = {"paint_order": "stroke", "stroke": _GROUND, "stroke_width": 4}


class Axis(NamedTuple):
    """Where values stand along an axis, and what is written next to it."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    write: Callable[[float], str] = "{:g}".format
    log: bool = False

    def at(self, value: float, start: float = _LEFT, end: float = _RIGHT) -> float:
        """Place a value between two ends; those outside the axis stand at its ends."""
        value, low, high = min(max(value, self.low), self.high), self.low, self.high
        if self.log:
            value, low, high = log10(value), log10(low), log10(high)
        return round(start + (end - start) * (value - low) / (high - low), 1)


def round_axis(title: str, values: Iterable[float], most: int = 6) -> Axis:
    """Make an axis from one round number to another, which holds all values."""
    low, high = min(values := [*values]), max(values)
    span = (high - low) or abs(low) or 1.0
    power = 10.0 ** floor(log10(span / most))
    step = next(power * k for k in (1, 2, 5, 10, 20) if span / (power * k) <= most)
    first, last = floor(low / step), ceil((high if high > low else low + span) / step)
    ticks = [round(step * k, 12) for k in range(first, last + 1)]
    return Axis(title, ticks[0], ticks[-1], ticks)


class Curve(NamedTuple):
    """A named line, with a band of low and high limits where these are known."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()


class Lane(NamedTuple):
    """Values of one kind on a line of their own, or one value with its limits."""

    name: str
    values: Sequence[float]
    limits: tuple[float, float] | None = None
    hollow: bool = False


def draw(
    x: Axis,
    y: Axis,
    curves: Sequence[Curve],
    chance: Sequence[tuple[float, float]] = (),
) -> Markup:
    """Draw curves with their names below, numbered on the lines, and the dotted line of chance."""

    def placed(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(x.at(a), y.at(b, _BOTTOM, _TOP)) for a, b in points]

    bands, lines, names = [], [], []
    for at, curve in enumerate(curves):
        if curve.band:
            edge = [(a, high) for a, _, high in curve.band]
            edge += [(a, low) for a, low, _ in reversed(curve.band)]
            bands.append(_path(placed(edge), fill=_colour(at), fill_opacity=0.15))
        points, bottom = placed(curve.points), _BOTTOM + 66 + _ROW * at
        lines.append(_path(points, **_stroke(at)))
        names.append(
            _path([(_LEFT, bottom - 4), (_LEFT + 44, bottom - 4)], **_stroke(at))
        )
        name = _named(curve.name)
        if len(curves) > 1:
            wanted = _LEFT + (_RIGHT - _LEFT) * (at + 1) / (len(curves) + 1)
            a, b = min(points, key=lambda point: abs(point[0] - wanted))
            mark = {"font_weight": "bold", "text_anchor": "middle", "fill": _colour(at)}
            names.append(_text(str(at + 1), a, b + 4, **mark, **_HALO))
            name = f"{at + 1}  {name}"
        names.append(_text(name, _LEFT + 54, bottom))
    if chance:
        how = {
            "stroke": "currentColor",
            "stroke_dasharray": "1 5",
            "stroke_linecap": "round",
        }
        (a, b), (c, d) = placed(chance)
        bands.append(_path([(a, b), (c, d)], **how, stroke_width=2))
        names.append(
            _text("chance", (a + c) / 2 + 8, (b + d) / 2 + (16 if b > d else -6))
        )
    parts = [*_below(x, _BOTTOM), *_left(y), *bands, *lines, *names]
    return _svg(parts, _BOTTOM + 56 + _ROW * len(curves))


def draw_lanes(
    x: Axis, lanes: Sequence[Lane], rule: tuple[float, str] | None = None
) -> Markup:
    """Draw each lane's values as dots along one axis, those that meet on top of each other."""
    parts, names, top = [], [], 18.0
    for lane in lanes:
        width = _DOT if len(lane.values) > 1 else 0.1
        heaps = Counter(
            round(width * round(x.at(value) / width), 1) for value in lane.values
        )
        step = min(_DOT, _HIGHEST / max(heaps.values()))
        bottom = top + 26 + step * max(heaps.values())
        names.append(_text(_named(lane.name), _LEFT, top + 14, **_HALO))
        if lane.limits:
            low, high = map(x.at, lane.limits)
            parts.append(_path([(low, bottom - 4), (high, bottom - 4)], **_stroke(0)))
        places = (
            (a, bottom - _DOT / 2 - step * k)
            for a, n in heaps.items()
            for k in range(n)
        )
        dots = {
            "d": "".join(f"M{a:g} {b:.4g}h0" for a, b in places),
            "stroke_linecap": "round",
        }
        parts.append(_tag("path", **dots, stroke=_colour(0), stroke_width=_DOT))
        if lane.hollow:
            parts.append(_tag("path", **dots, stroke=_GROUND, stroke_width=_DOT - 3))
        top = bottom + 6
    if rule:
        at, how = x.at(rule[0]), {"stroke": "currentColor", "stroke_dasharray": "6 4"}
        parts.append(_path([(at, 16), (at, top)], **how, stroke_width=1.5))
        parts.append(
            _text(rule[1], at, 11, text_anchor="end" if at > _WIDTH / 2 else "start")
        )
    return _svg([*_below(x, top), *parts, *names], top + 46)


def _below(x: Axis, bottom: float) -> Iterator[Markup]:
    for at, value in ((x.at(value), value) for value in x.ticks):
        yield _path([(at, _TOP), (at, bottom)], stroke=_LINE)
        yield _text(x.write(value), at, bottom + 17, text_anchor="middle")
    yield _path([(_LEFT, bottom), (_RIGHT, bottom)], stroke="currentColor")
    how = {"text_anchor": "middle", "font_size": 13}
    yield _text(_named(x.title), (_LEFT + _RIGHT) / 2, bottom + 38, **how)


def _left(y: Axis) -> Iterator[Markup]:
    for at, value in ((y.at(value, _BOTTOM, _TOP), value) for value in y.ticks):
        yield _path([(_LEFT, at), (_RIGHT, at)], stroke=_LINE)
        yield _text(y.write(value), _LEFT - 6, at + 4, text_anchor="end")
    yield _path([(_LEFT, _TOP), (_LEFT, _BOTTOM)], stroke="currentColor")
    turned = {"transform": "rotate(-90)", "text_anchor": "middle", "font_size": 13}
    yield _text(y.title, -(_TOP + _BOTTOM) / 2, 14, **turned)


def _named(text: str) -> str:
    return plain(cut(text, _NAME)[0])


def _colour(at: int) -> str:
    return f"var(--series-{at + 1}, {_COLOURS[at]})"


def _stroke(at: int) -> dict[str, Any]:
    return {
        "stroke": _colour(at),
        "stroke_width": 2,
        "stroke_dasharray": _DASHES[at] or "none",
    }


def _path(points: Iterable[tuple[float, float]], **how: Any) -> Markup:
    return _tag("path", d="M" + "L".join(f"{a:g} {b:g}" for a, b in points), **how)


def _text(text: str, x: float, y: float, **how: Any) -> Markup:
    return _tag(
        "text", text, **{"x": f"{x:g}", "y": f"{y:g}", "fill": "currentColor"} | how
    )


def _tag(name: str, inside: str = "", **attributes: Any) -> Markup:
    """Write an element; all that is no mark-up yet is escaped."""
    pairs = ((each.replace("_", "-"), value) for each, value in attributes.items())
    written = Markup().join(Markup(' {}="{}"').format(*pair) for pair in pairs)
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, inside)


def _svg(parts: Iterable[Markup], height: float) -> Markup:
    size = {
        "viewBox": f"0 0 {_WIDTH} {height:g}",
        "width": _WIDTH,
        "height": f"{height:g}",
    }
    how = {"font_family": "sans-serif", "font_size": 12, "fill": "none"}
    return _tag(
        "svg", Markup().join(parts), xmlns="http://www.w3.org/2000/svg", **size, **how
    )


def saved(svg: Markup) -> str:
    """Give a picture colours of its own, for a file that has no page around it."""
    coloured = re.sub(r"var\(--[\w-]+, (#\w+)\)", r"\1", svg).replace(
        "currentColor", "#1b1f24"
    )
    return coloured.replace(
        ">", '><rect width="100%" height="100%" fill="#fff"></rect>', 1
    )


# The pictures of a run.

_BUDGETS = (0.001, 0.01, 0.1)  # false-positive rates of the table below a ROC


def plots(contents: Contents) -> Iterator[dict[str, Any]]:
    """Yield each picture whose points the run has, with what it shows and its numbers."""
    drawn = pl.col("curve").cast(pl.String).is_in(["roc", "growth", "distribution"])
    curves = contents.frame("curves", drawn)
    if curves.is_empty():
        return
    yield from _roc(contents, curves.filter(curve="roc"))
    yield from _growth(curves.filter(curve="growth"))
    yield from _distribution(
        curves.filter(curve="distribution", attack=contents.primary)
    )


def picture(
    name: str,
    svg: Markup,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    **words: str,
) -> dict[str, Any]:
    """Return a picture with its ``title``, ``note`` and ``source``, its numbers and its link."""
    # The link's address holds the picture itself, to save it without a script.
    link = f"data:image/svg+xml;base64,{b64encode(saved(svg).encode()).decode()}"
    return {"name": name, "svg": svg, "link": link, "head": head, "rows": rows, **words}


def _by(points: pl.DataFrame, name: str) -> dict[str, list[tuple[float, float]]]:
    parts = points.partition_by(name, as_dict=True, maintain_order=True).items()
    return {str(key[0]): [*part.select("x", "y").iter_rows()] for key, part in parts}


def _roc(contents: Contents, points: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Draw both rates on logarithmic axes, as few false accusations are what matters."""
    rates = points.filter(pl.col("x") > 0)["x"]
    if rates.is_empty():
        return
    known = pl.col("value").is_not_null() & pl.col("versus").is_null()
    metrics = contents.tables.get("metrics", Metrics.create_empty().lazy())
    figures = metrics.filter(known, slice="all").collect(engine="streaming")
    area = dict(figures.filter(metric="roc_auc").select("attack", "value").iter_rows())
    of = _by(points, "attack")
    best = sorted(
        of, key=lambda name: (name != contents.primary, -area.get(name, 0), name)
    )
    # All rates are 1 where scores are equal
    low = min(10.0 ** floor(log10(min(rates))), 0.1)
    ticks = [low * 10**power for power in range(round(-log10(low)) + 1)]
    at = pl.col("fpr") >= low, pl.col("low").is_not_null(), pl.col("high").is_not_null()
    limits = figures.filter(*at, metric="tpr_at_fpr", attack=contents.primary)
    band = [*limits.sort("fpr").select("fpr", "low", "high").iter_rows()]
    band = [(fpr, max(a, low), b) for fpr, a, b in band]
    bands = {contents.primary: band}
    shown = [Curve(name, _on_axis(of[name], low), bands.get(name, ())) for name in best]
    x = Axis(
        "False-positive rate (non-members accused)", low, 1, ticks, share, log=True
    )
    y = Axis("True-positive rate (members found)", low, 1, ticks, share, log=True)
    left_out = (
        f" In the table only: {', '.join(best[MOST_CURVES:])}."
        if best[MOST_CURVES:]
        else ""
    )
    interval_ = (
        f" Shaded: 95 % interval of {contents.primary}, where it is known."
        if band
        else ""
    )
    budgets = [budget for budget in _BUDGETS if budget >= low]
    yield picture(
        "roc",
        draw(x, y, shown[:MOST_CURVES], [(low, low), (1, 1)]),
        ["Attack", *(f"TPR at {share(budget)} FPR" for budget in budgets)],
        [
            [name, *(share(_reached(of[name], budget)) for budget in budgets)]
            for name in best
        ],
        title="How well scores tell members from non-members",
        note=(
            "Both axes are logarithmic: on the left few accusations are false. The"
            f" dotted line is chance.{interval_}{left_out}"
        ),
        source="curves.parquet: x, y of curve = roc; metrics.parquet: tpr_at_fpr",
    )


def _on_axis(
    points: Sequence[tuple[float, float]], low: float
) -> list[tuple[float, float]]:
    """Begin a curve at the left end of a logarithmic axis, with what was found up to there."""
    shown = [(a, b) for a, b in points if a > low and b >= low]
    return [(low, max(_reached(points, low), low)), *shown]


def _reached(points: Sequence[tuple[float, float]], budget: float) -> float:
    return max((b for a, b in points if a <= budget), default=0.0)


def _growth(points: pl.DataFrame) -> Iterator[dict[str, Any]]:
    if points.is_empty():
        return
    of = _by(
        points.with_columns(name=pl.format("{} by {}", "attack", "subject")), "name"
    )
    ticks, lowest = sorted({*points["x"]}), 0.5 if min(points["y"]) >= 0.5 else 0.0
    x = Axis("Samples or points", ticks[0], ticks[-1], ticks, log=True)
    x = x if len(ticks) > 1 else round_axis(x.title, [0, ticks[0]])
    y = Axis("AUC", lowest, 1, [lowest + (1 - lowest) * k / 5 for k in range(6)])
    shown = [Curve(*each) for each in [*of.items()][:MOST_CURVES]]
    at = {name: dict(found) for name, found in of.items()}
    rows = [
        [name, *(number(found.get(tick)) for tick in ticks)]
        for name, found in at.items()
    ]
    yield picture(
        "growth",
        draw(x, y, shown, [(x.low, 0.5), (x.high, 0.5)]),
        ["AUC of", *map("{:g}".format, ticks)],
        rows,
        title="How well they do with fewer samples or points",
        note=(
            "AUC if only the first samples, or points, of each text counted. The axis"
            f" below is logarithmic, the axis on the left begins at {lowest:g}; 0.5 is"
            " chance."
        ),
        source="curves.parquet: x, y of curve = growth",
    )


def _distribution(points: pl.DataFrame) -> Iterator[dict[str, Any]]:
    if points.is_empty():
        return
    of, attack = _by(points, "subject"), points["attack"][0]
    x = round_axis(f"Score: {attack}", points["x"])
    y = round_axis("Share of texts", [0, max(points["y"])])
    y = Axis(y.title, y.low, y.high, y.ticks, share)
    rows = [
        [name, number(a), share(b)] for name, found in of.items() for a, b in found if b
    ]
    yield picture(
        "distribution",
        draw(x, y, [Curve(*each) for each in of.items()]),
        ["Texts", "Score, middle of the bin", "Share of them"],
        rows,
        title=f"Distribution of {attack}",
        note=(
            "Share of the texts of each set, by score, in 40 bins. Higher: more likely"
            " a member."
        ),
        source="curves.parquet: x, y of curve = distribution",
    )


def compared_books(books: pl.DataFrame, attack: str) -> dict[str, Any] | None:
    """Draw the mean score of each audited document, or group, over those that it is compared with.

    ``books`` are rows of the rollup. None where there is nothing to compare with.
    """
    known = books.drop_nulls("mean").with_columns(
        pl.col("level", "verdict").cast(pl.String)
    )
    is_outside = pl.col("level") == "outside"
    if "member" in known.columns:
        is_outside |= ~pl.col("member").fill_null(True)
    outside, audited = known.filter(is_outside), known.filter(~is_outside)
    level = "document" if "document" in audited["level"] else "group"
    audited = audited.filter(level=level)
    if outside.is_empty() or audited.is_empty():
        return None
    is_named = pl.col("verdict").is_in(["known_better", "comes_out", "above_all"])
    lanes = [
        (
            f"audited {level}s that stand out or come out",
            audited.filter(is_named),
            False,
        ),
        (f"other audited {level}s", audited.filter(~is_named), False),
        ("known to be outside the training data", outside, True),
    ]
    lanes = [each for each in lanes if each[1].height]
    x = round_axis(f"Mean score: {attack}", known["mean"])
    rows = [
        [name, row["key"], interval(row["mean"], row["mean_low"], row["mean_high"])]
        for name, of, _ in lanes
        for row in of.sort("mean", descending=True).head(100).iter_rows(named=True)
    ]
    drawn = [
        Lane(name, of["mean"].to_list(), hollow=hollow) for name, of, hollow in lanes
    ]
    return picture(
        "compared",
        draw_lanes(
            x, drawn, (max(outside["mean"]), "highest outside the training data")
        ),
        ["What it is", "Key", "Mean score (95 % interval)"],
        rows,
        title=f"Each audited {level} against those outside the training data",
        note=(
            "A dot is the mean score of one. The dashed line is the highest of those"
            " outside the training data: a mean left of it is no higher than that of a"
            " text the model did not see. The axis begins and ends where scores do. At"
            " most 100 of each kind are in the table."
        ),
        source="rollup.parquet: mean, mean_low, mean_high, verdict, level",
    )


def draw_differences(comparisons: pl.DataFrame) -> str:
    """Draw the mean difference of each run to the first, by set, with its interval, as SVG."""
    rows = comparisons.filter(statistic="mean_difference", level="set").drop_nulls(
        "value"
    )
    versus = comparisons["versus"].drop_nulls()[0]
    title = f"mean difference of {comparisons['attack'][0]} to {versus}"
    lanes = []
    for row in rows.iter_rows(named=True):
        limits = (
            None if None in (row["low"], row["high"]) else (row["low"], row["high"])
        )
        name = f"{row['run']}: {row['set'].replace('_', '-')}"
        lanes.append(Lane(name, [row["value"]], limits))
    ends = (
        rows.select(pl.concat_list("value", "low", "high").explode())
        .to_series()
        .drop_nulls()
    )
    return saved(
        draw_lanes(round_axis(title, [0.0, *ends]), lanes, (0.0, "no difference"))
    )
