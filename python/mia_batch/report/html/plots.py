"""Pictures as SVG, written here: a renderer loads for a second and reserves memory.

Colours are those of the page, so that pictures follow its dark and printed forms; a
saved picture has colours of its own. Series differ by dashes, too, and have numbers on
their lines.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from itertools import chain, islice
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
from markupsafe import Markup

from mia_batch.report.html.columns import cut, interval, number, plain, share
from mia_batch.schemas import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mia_batch.report.html.contents import Contents

    Point = tuple[float, float]
    Points = Sequence[Point]
    Picture = dict[str, Any]

MOST_CURVES = 8
_MOST_ROCS = 2  # that of the primary attack, and the best of the others
_ROUNDING = 1e-12  # of rates that are 0, where a curve stands for more points
_LEAST_FOR_LOG = 100  # non-members; below, a logarithmic axis shows steps
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
_DASHES = (
    "",
    "7 3",
    "2 2",
    "9 2 2 2",
    "4 4",
    "14 4",
    "12 3 3 3",
    "6 2 1 2 1 2",
)
_LINE, _GROUND = "var(--line, #d4d9e0)", "var(--ground, #fff)"
_WIDTH = 548
_LEFT = 64
_RIGHT = 524
_TOP = 14
_BOTTOM = 310
_NAME_HEIGHT = 20
_DOT = 8  # across
_HIGHEST_HEAP = 72
_LONGEST_NAME = 60  # characters
_MOST_LABELLED = 300  # dots of a lane
_HALO = {
    "paint_order": "stroke",
    "stroke": _GROUND,
    "stroke_width": 4,
}
_DOTTED = {
    "stroke": "currentColor",
    "stroke_dasharray": "1 5",
    "stroke_linecap": "round",
}
_DASHED = {"stroke": "currentColor", "stroke_dasharray": "6 4"}
_TITLE = {"text_anchor": "middle", "font_size": 13}


class Axis(NamedTuple):
    """Where values stand along an axis, and what is written next to it."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    write: Callable[[float], str] = "{:g}".format
    log: bool = False

    def place(
        self,
        value: float,
        start: float = _LEFT,
        end: float = _RIGHT,
    ) -> float:
        """Place a value between two ends; those outside the axis stand at its ends."""
        value = min(max(value, self.low), self.high)
        low = self.low
        high = self.high
        if self.log:
            value = log10(value)
            low = log10(low)
            high = log10(high)
        place = start + (end - start) * (value - low) / (high - low)
        return round(place, 1)


def round_axis(
    title: str,
    values: Iterable[float],
    most_ticks: int = 6,
) -> Axis:
    """Build an axis from one round number to another, which holds all values."""
    values = [*values]
    low = min(values)
    high = max(values)
    span = (high - low) or abs(low) or 1.0
    power = 10.0 ** floor(log10(span / most_ticks))
    steps = [power * k for k in (1, 2, 5, 10, 20)]
    step = next(step for step in steps if span / step <= most_ticks)
    end = high if high > low else low + span
    steps_of_axis = range(floor(low / step), ceil(end / step) + 1)
    ticks = [round(step * k, 12) for k in steps_of_axis]
    return Axis(title, ticks[0], ticks[-1], ticks)


class Curve(NamedTuple):
    """A named line, with a band of low and high limits where these are known."""

    name: str
    points: Points
    band: Sequence[tuple[float, float, float]] = ()


class Lane(NamedTuple):
    """Values of one kind on a line of their own, or one value with its limits."""

    name: str
    values: Sequence[float]
    limits: Point | None = None
    hollow: bool = False
    labels: Sequence[str] = ()  # of the values, to be seen at their dots


def draw(
    x: Axis,
    y: Axis,
    curves: Sequence[Curve],
    chance: Points = (),
) -> Markup:
    """Draw curves with their names below, numbered on the lines, and the line of chance."""

    def place(points: Iterable[Point]) -> list[Point]:
        return [(x.place(a), y.place(b, _BOTTOM, _TOP)) for a, b in points]

    bands = []
    lines = []
    names = []
    for index, curve in enumerate(curves):
        if curve.band:
            edge = [(a, high) for a, _, high in curve.band]
            edge += [(a, low) for a, low, _ in reversed(curve.band)]
            band = _path(place(edge), fill=_colour(index), fill_opacity=0.15)
            bands.append(band)
        points = place(curve.points)
        lines.append(_path(points, **_stroke(index)))
        bottom = _BOTTOM + 66 + _NAME_HEIGHT * index
        middle = bottom - 4
        sample = _line(_LEFT, middle, _LEFT + 44, middle, **_stroke(index))
        names.append(sample)
        name = _shorten(curve.name)
        if len(curves) > 1:
            names.append(_number_line(points, index, len(curves)))
            name = f"{index + 1}  {name}"
        names.append(_text(name, _LEFT + 54, bottom))
    if chance:
        (start, first), (end, last) = place(chance)
        bands.append(_line(start, first, end, last, **_DOTTED, stroke_width=2))
        below = (first + last) / 2 + (16 if first > last else -6)
        names.append(_text("chance", (start + end) / 2 + 8, below))
    return _svg(
        [
            *_draw_bottom_axis(x, _BOTTOM),
            *_draw_left_axis(y),
            *bands,
            *lines,
            *names,
        ],
        height=_BOTTOM + 56 + _NAME_HEIGHT * len(curves),
    )


def _number_line(points: Points, index: int, n_lines: int) -> Markup:
    """Write the number of a line on it, apart from the numbers of the other lines."""
    place = _LEFT + (_RIGHT - _LEFT) * (index + 1) / (n_lines + 1)
    x, y = min(points, key=lambda point: abs(point[0] - place))
    return _text(
        str(index + 1),
        x,
        y + 4,
        font_weight="bold",
        text_anchor="middle",
        fill=_colour(index),
        **_HALO,
    )


def draw_lanes(
    x: Axis,
    lanes: Sequence[Lane],
    rule: tuple[float, str] | None = None,
) -> Markup:
    """Draw each lane's values as dots along one axis, those that meet on top of each other."""
    parts = []
    names = []
    top = 18.0
    for lane in lanes:
        width = _DOT if len(lane.values) > 1 else 0.1
        places = [x.place(value) / width for value in lane.values]
        heaps = Counter(round(width * round(place), 1) for place in places)
        n_highest = max(heaps.values())
        step = min(_DOT, _HIGHEST_HEAP / n_highest)
        bottom = top + 26 + step * n_highest
        names.append(_text(_shorten(lane.name), _LEFT, top + 14, **_HALO))
        if lane.limits:
            low, high = map(x.place, lane.limits)
            middle = bottom - 4
            parts.append(_line(low, middle, high, middle, **_stroke(0)))
        dots = ""
        for place, n in heaps.items():
            for k in range(n):
                height = bottom - _DOT / 2 - step * k
                dots += f"M{place:g} {height:.4g}h0"
        heap = {"d": dots, "stroke_linecap": "round"}
        parts.append(_tag("path", **heap, stroke=_colour(0), stroke_width=_DOT))
        if lane.hollow:
            parts.append(_tag("path", **heap, stroke=_GROUND, stroke_width=_DOT - 3))
        if lane.labels:
            rounded = [round(width * round(place), 1) for place in places]
            parts += _label_dots(lane.labels, rounded, bottom, step)
        top = bottom + 6
    if rule:
        value, label = rule
        place = x.place(value)
        anchor = "end" if place > _WIDTH / 2 else "start"
        parts.append(_line(place, 16, place, top, **_DASHED, stroke_width=1.5))
        parts.append(_text(label, place, 11, text_anchor=anchor))
    return _svg([*_draw_bottom_axis(x, top), *parts, *names], top + 46)


def _label_dots(
    labels: Sequence[str], places: Sequence[float], bottom: float, step: float
) -> Iterator[Markup]:
    """Lay a circle that has a label over each dot, as high as it stands in its heap."""
    heights: Counter[float] = Counter()
    for label, place in zip(labels, places, strict=True):
        middle = bottom - _DOT / 2 - step * heights[place]
        heights[place] += 1
        circle = {"cx": f"{place:g}", "cy": f"{middle:.4g}", "r": _DOT / 2}
        title = _tag("title", _shorten(label))
        yield _tag("circle", title, class_="dot", fill="transparent", **circle)


def _draw_bottom_axis(x: Axis, bottom: float) -> Iterator[Markup]:
    for value in x.ticks:
        place = x.place(value)
        yield _line(place, _TOP, place, bottom, stroke=_LINE)
        yield _text(x.write(value), place, bottom + 17, text_anchor="middle")
    yield _line(_LEFT, bottom, _RIGHT, bottom, stroke="currentColor")
    middle = (_LEFT + _RIGHT) / 2
    yield _text(_shorten(x.title), middle, bottom + 38, **_TITLE)


def _draw_left_axis(y: Axis) -> Iterator[Markup]:
    for value in y.ticks:
        place = y.place(value, _BOTTOM, _TOP)
        yield _line(_LEFT, place, _RIGHT, place, stroke=_LINE)
        yield _text(y.write(value), _LEFT - 6, place + 4, text_anchor="end")
    yield _line(_LEFT, _TOP, _LEFT, _BOTTOM, stroke="currentColor")
    turned = {"transform": "rotate(-90)", **_TITLE}
    yield _text(y.title, -(_TOP + _BOTTOM) / 2, 14, **turned)


def _shorten(name: str) -> str:
    return plain(cut(name, _LONGEST_NAME)[0])


def _colour(index: int) -> str:
    return f"var(--series-{index + 1}, {_COLOURS[index]})"


def _stroke(index: int) -> dict[str, Any]:
    return {
        "stroke": _colour(index),
        "stroke_width": 2,
        "stroke_dasharray": _DASHES[index] or "none",
    }


def _path(points: Iterable[Point], **style: Any) -> Markup:
    line = "L".join(f"{x:g} {y:g}" for x, y in points)
    return _tag("path", d=f"M{line}", **style)


def _line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    **style: Any,
) -> Markup:
    return _path([(x1, y1), (x2, y2)], **style)


def _text(text: str, x: float, y: float, **style: Any) -> Markup:
    place = {"x": f"{x:g}", "y": f"{y:g}", "fill": "currentColor"}
    return _tag("text", text, **(place | style))


def _tag(name: str, content: str = "", **attributes: Any) -> Markup:
    """Write an element; all that is no mark-up yet is escaped."""
    pairs = Markup().join(
        Markup(' {}="{}"').format(attribute.rstrip("_").replace("_", "-"), value)
        for attribute, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, pairs, content)


def _svg(parts: Iterable[Markup], height: float) -> Markup:
    return _tag(
        "svg",
        Markup().join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {height:g}",
        width=_WIDTH,
        height=f"{height:g}",
        font_family="sans-serif",
        font_size=12,
        fill="none",
    )


def embed_colours(svg: Markup) -> str:
    """Put colours in place of the page's, for a file that has no page around it."""
    coloured = re.sub(r"var\(--[\w-]+, (#\w+)\)", r"\1", svg)
    coloured = coloured.replace("currentColor", "#1b1f24")
    ground = '<rect width="100%" height="100%" fill="#fff"></rect>'
    return coloured.replace(">", f">{ground}", 1)


# The pictures of a run.

_BUDGETS = (0.001, 0.01, 0.1)  # false-positive rates of the table below a ROC


def plots(contents: Contents) -> Iterator[Picture]:
    """Draw each picture whose points the run has, with what it shows and its numbers."""
    curve = pl.col("curve").cast(pl.String)
    is_drawn = curve.is_in(["roc", "growth", "distribution"])
    curves = contents.read_rows("curves", is_drawn)
    if curves.is_empty():
        return
    yield from _draw_roc(contents, curves.filter(curve="roc"))
    yield from _draw_growth(curves.filter(curve="growth"))
    yield from _draw_distribution(
        curves.filter(curve="distribution", attack=contents.primary)
    )


def picture(
    name: str,
    svg: Markup,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    **words: str,
) -> Picture:
    """Return a picture with its ``title``, ``note`` and ``source``, its numbers and its link."""
    # The link's address holds the picture itself, to save it without a script.
    content = b64encode(embed_colours(svg).encode()).decode()
    return {
        "name": name,
        "svg": svg,
        "link": f"data:image/svg+xml;base64,{content}",
        "head": head,
        "rows": rows,
        **words,
    }


def _group_points(points: pl.DataFrame, column: str) -> dict[str, list[Point]]:
    groups = points.partition_by(column, as_dict=True, maintain_order=True)
    return {
        str(name): [*rows.select("x", "y").iter_rows()]
        for (name,), rows in groups.items()
    }


def _draw_roc(contents: Contents, points: pl.DataFrame) -> Iterator[Picture]:
    """Draw both rates, on logarithmic axes where there are texts enough for low ones."""
    rates = points.filter(pl.col("x") > _ROUNDING)["x"]
    if rates.is_empty():
        return
    # All rates are 1 where scores are equal
    low = min(10.0 ** floor(log10(min(rates))), 0.1)
    figures = _read_figures(contents)
    areas = figures.filter(metric="roc_auc").select("attack", "value")
    aucs = dict(areas.iter_rows())
    primary = contents.primary
    curves = _group_points(points, "attack")
    ranked = sorted(
        curves, key=lambda name: (name != primary, -aucs.get(name, 0), name)
    )
    shaded = left_out = ""
    band = _read_band(figures.filter(attack=primary), low)
    if band:
        shaded = f" Shaded: 95 % interval of {primary}, where it is known."
    if ranked[_MOST_ROCS:]:
        left_out = f" In the table only: {', '.join(ranked[_MOST_ROCS:])}."
    budgets = [budget for budget in _BUDGETS if budget >= low]
    rows = []
    for name in ranked:
        reached = [share(_reach(curves[name], budget)) for budget in budgets]
        rows.append([name, *reached])
    is_log = _has_many_non_members(figures)
    axes = "Both axes are logarithmic: on the left few accusations are false. "
    lines = [
        Curve(name, curves[name], band if name == primary else ())
        for name in ranked[:_MOST_ROCS]
    ]
    yield picture(
        "roc",
        _draw_log_rates(lines, low) if is_log else _draw_rates(lines),
        ["Attack", *(f"TPR at {share(budget)} FPR" for budget in budgets)],
        rows,
        title="How well scores tell members from non-members",
        note=(f"{axes if is_log else ''}The dotted line is chance.{shaded}{left_out}"),
        source="curves.parquet: x, y of curve = roc; metrics.parquet: tpr_at_fpr",
    )


_RATES = (
    "False-positive rate (non-members accused)",
    "True-positive rate (members found)",
)


def _has_many_non_members(figures: pl.DataFrame) -> bool:
    """Return whether an axis of low rates shows more than the steps of a few texts."""
    n = figures["n_nonmembers"].drop_nulls()
    return n.is_empty() or max(n) >= _LEAST_FOR_LOG


def _draw_rates(curves: Sequence[Curve]) -> Markup:
    x, y = (Axis(title, 0, 1, [k / 5 for k in range(6)], share) for title in _RATES)
    return draw(x, y, curves, [(0, 0), (1, 1)])


def _draw_log_rates(curves: Sequence[Curve], low: float) -> Markup:
    ticks = [low * 10**power for power in range(round(-log10(low)) + 1)]
    x, y = (Axis(title, low, 1, ticks, share, log=True) for title in _RATES)
    lines = [curve._replace(points=_on_axis(curve.points, low)) for curve in curves]
    return draw(x, y, lines, [(low, low), (1, 1)])


def _read_figures(contents: Contents) -> pl.DataFrame:
    metrics = contents.tables.get("metrics", Metrics.create_empty().lazy())
    has_value = pl.col("value").is_not_null()
    is_alone = pl.col("versus").is_null()
    return metrics.filter(has_value, is_alone, slice="all").collect(engine="streaming")


def _read_band(
    figures: pl.DataFrame, lowest: float
) -> list[tuple[float, float, float]]:
    """Return the limits of the true-positive rates that have any, by false-positive rate."""
    limits = figures.filter(
        pl.col("fpr") >= lowest,
        pl.col("low").is_not_null(),
        pl.col("high").is_not_null(),
        metric="tpr_at_fpr",
    ).sort("fpr")
    return [
        (fpr, max(low, lowest), high)
        for fpr, low, high in limits.select("fpr", "low", "high").iter_rows()
    ]


def _on_axis(points: Points, low: float) -> list[Point]:
    """Begin a curve at the left end of a logarithmic axis, with what was found by then."""
    first = (low, max(_reach(points, low), low))
    return [first, *((x, y) for x, y in points if x > low and y >= low)]


def _reach(points: Points, budget: float) -> float:
    return max((y for x, y in points if x <= budget), default=0.0)


def _draw_growth(points: pl.DataFrame) -> Iterator[Picture]:
    if points.is_empty():
        return
    name = pl.format("{} by {}", "attack", "subject")
    curves = _group_points(points.with_columns(name=name), "name")
    ticks = sorted({*points["x"]})
    lowest = 0.5 if min(points["y"]) >= 0.5 else 0.0
    title = "Samples or points"
    if len(ticks) == 1:
        x = round_axis(title, [0, ticks[0]])
    else:
        x = Axis(title, ticks[0], ticks[-1], ticks, log=True)
    y_ticks = [lowest + (1 - lowest) * k / 5 for k in range(6)]
    y = Axis("AUC", lowest, 1, y_ticks)
    lines = [Curve(*curve) for curve in islice(curves.items(), MOST_CURVES)]
    rows = []
    for label, curve in curves.items():
        aucs = dict(curve)
        rows.append([label, *(number(aucs.get(tick)) for tick in ticks)])
    yield picture(
        "growth",
        draw(x, y, lines, [(x.low, 0.5), (x.high, 0.5)]),
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


def _draw_distribution(points: pl.DataFrame) -> Iterator[Picture]:
    if points.is_empty():
        return
    sets = _group_points(points, "subject")
    attack = points["attack"][0]
    x = round_axis(f"Score: {attack}", points["x"])
    y = round_axis("Share of texts", [0, max(points["y"])])
    y = y._replace(write=share)
    rows = []
    for name, bins in sets.items():
        rows += [[name, number(score), share(part)] for score, part in bins if part]
    yield picture(
        "distribution",
        draw(x, y, [Curve(*curve) for curve in sets.items()]),
        ["Texts", "Score, middle of the bin", "Share of them"],
        rows,
        title=f"Distribution of {attack}",
        note=(
            "Share of the texts of each set, by score, in 40 bins. Higher: more likely"
            " a member."
        ),
        source="curves.parquet: x, y of curve = distribution",
    )


def compared_books(books: pl.DataFrame, attack: str) -> Picture | None:
    """Draw the mean score of each audited document, or group, over those outside.

    ``books`` are rows of the rollup. None where there is nothing to compare with.
    """
    words = pl.col("level", "verdict").cast(pl.String)
    books = books.drop_nulls("mean").with_columns(words)
    is_outside = pl.col("level") == "outside"
    if "member" in books.columns:
        is_outside |= ~pl.col("member").fill_null(True)
    outside = books.filter(is_outside)
    audited = books.filter(~is_outside)
    level = "document" if "document" in audited["level"] else "group"
    audited = audited.filter(level=level)
    if outside.is_empty() or audited.is_empty():
        return None
    is_strong = pl.col("verdict").is_in(["known_better", "comes_out", "above_all"])
    any_out = not audited.filter(verdict="comes_out").is_empty()
    ending = ", or that come out" if any_out else ""
    kinds = {
        f"audited {level}s above the comparison{ending}": audited.filter(is_strong),
        f"other audited {level}s": audited.filter(~is_strong),
        "comparison: known to be outside the training data": outside,
    }
    lanes = []
    table = []
    for name, rows in kinds.items():
        if rows.is_empty():
            continue
        labels = _label_means(rows) if rows.height <= _MOST_LABELLED else ()
        means = rows["mean"].to_list()
        lanes.append(Lane(name, means, hollow=rows is outside, labels=labels))
        highest = rows.sort("mean", descending=True).head(100)
        for row in highest.iter_rows(named=True):
            mean = interval(row["mean"], row["mean_low"], row["mean_high"])
            table.append([name, row["key"], mean])
    x = round_axis(f"Mean score: {attack}", books["mean"])
    rule = (max(outside["mean"]), "highest comparison")
    return picture(
        "compared",
        draw_lanes(x, lanes, rule),
        ["What it is", "Key", "Mean score (95 % interval)"],
        table,
        title=f"Each audited {level} against the comparison",
        note=(
            "A dot is the mean score of one; left of the dashed line it is no higher than"
            " that of a text the model did not see. At most 100 of each kind are in the"
            " table."
        ),
        source="rollup.parquet: mean, mean_low, mean_high, verdict, level",
    )


def _label_means(rows: pl.DataFrame) -> list[str]:
    names = rows.select(pl.coalesce(pl.col("^title$"), "key").cast(pl.String))
    pairs = zip(names.to_series(), rows["mean"], strict=True)
    return [f"{name}: {number(mean)}" for name, mean in pairs]


def draw_differences(comparisons: pl.DataFrame) -> str:
    """Draw the mean difference of each run to the first, by set, with its interval, as SVG."""
    rows = comparisons.filter(statistic="mean_difference", level="set")
    rows = rows.drop_nulls("value")
    versus = comparisons["versus"].drop_nulls()[0]
    title = f"mean difference of {comparisons['attack'][0]} to {versus}"
    lanes = []
    for row in rows.iter_rows(named=True):
        limits = None
        if row["low"] is not None and row["high"] is not None:
            limits = (row["low"], row["high"])
        name = f"{row['run']}: {row['set'].replace('_', '-')}"
        lanes.append(Lane(name, [row["value"]], limits))
    ends = chain.from_iterable(rows.select("value", "low", "high").iter_rows())
    values = [end for end in ends if end is not None]
    x = round_axis(title, [0.0, *values])
    return embed_colours(draw_lanes(x, lanes, (0.0, "no difference")))
