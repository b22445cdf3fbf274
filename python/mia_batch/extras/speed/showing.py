"""What a bench prints, and the picture of its curves."""

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from markupsafe import Markup
from rich.console import Console

from mia_batch.cli.options import build_table, limits, plain
from mia_batch.extras.speed.comparing import (
    Figure,
    Ratio,
    compare_figure,
    compute_mean,
    describe_differences,
    group_values,
    identify,
)
from mia_batch.extras.speed.ways import Row
from mia_batch.report.html.plots import MOST_CURVES, Axis, Curve, draw

_MOST_NAMED = 3
_AXES = {
    "batch_size": "Texts at once (batch size)",
    "tensor_parallel_size": "GPUs",
    "weights_mb": "Weights of the model, MB",
}
"""What a curve can run over, the first that differs between its points."""


def show_figures(rows: Sequence[Row], console: Console) -> None:
    """Print a table a part: of each figure the mean of its repeats, and their spread."""
    first = rows[0]
    machine = ", ".join([first["cpu"], f"{first['cores']} cores", *first["gpus"]])
    models = [*dict.fromkeys(row["model"] for row in rows)]
    subject = f"models {', '.join(models)}" if models[1:] else f"model {models[0]}"
    if models == ["toy"]:
        subject = "a toy with random weights, whose speed says nothing about your model"
    console.print(plain(f"{machine}; {subject}; {first['texts']:,} texts"))
    values = group_values(rows)
    intervals = {
        (row["way"], row["figure"]): row for row in rows if row["low"] is not None
    }
    for part in dict.fromkeys(row["part"] for row in rows):
        cells: dict[str, dict[str, str]] = {}  # by label and heading
        for figure, repeats in values.items():
            if figure.part == part:
                interval = intervals.get((figure.way, figure.figure))
                heading = figure.figure.replace("_", " ")
                cell = write_repeats(repeats, interval)
                cells.setdefault(figure.label, {})[heading] = cell
        _show_part(part, cells, console)
        for reason in _list_reasons(rows, part):
            console.print(plain(reason), soft_wrap=True)
        console.print()
    if max(row["repeat"] for row in rows) > 1:
        of_auc = "; of an AUC they hold its 95 % interval" if intervals else ""
        console.print(
            "Repeated figures are means, with the least and the most in brackets"
            f"{of_auc}.",
            soft_wrap=True,
        )


def _show_part(part: str, cells: dict[str, dict[str, str]], console: Console) -> None:
    headings = [*dict.fromkeys(chain.from_iterable(cells.values()))]
    lines = [
        (label, *(label_cells.get(heading, "") for heading in headings))
        for label, label_cells in cells.items()
    ]
    if lines:
        console.print(build_table(part, *headings, right=headings, rows=lines))


def _list_reasons(rows: Sequence[Row], part: str) -> list[str]:
    """Say once each why something of a part was not measured, and what."""
    # By figure and reason, in order
    labels: dict[tuple[str, str], dict[str, None]] = {}
    for row, figure in zip(rows, identify(rows), strict=True):
        if row["part"] == part and row["value"] is None:
            key = figure.figure, row["reason"]
            labels.setdefault(key, {})[figure.label] = None
    sentences = []
    for (figure_name, reason), names in labels.items():
        what = figure_name.replace("_", " ")
        if not what:
            sentences += [f"{part}: {name}: not measured: {reason}" for name in names]
            continue
        named = _name_some([*names])
        sentences.append(f"{part}: {what} of {named}: not measured: {reason}")
    return sentences


def _name_some(names: Sequence[str]) -> str:
    n_others = len(names) - _MOST_NAMED
    others = f" and {n_others} more" if n_others > 0 else ""
    return "; ".join(names[:_MOST_NAMED]) + others


def write_repeats(values: Sequence[float], interval: Row | None = None) -> str:
    text = write_value(compute_mean(values))
    if interval is not None:
        return f"{text} ({limits(interval)})"
    if len(values) > 1:
        text += f" ({write_value(min(values))} to {write_value(max(values))})"
    return text


def write_value(value: float) -> str:
    if 0 < abs(value) < 1:
        return f"{value:.2g}"
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def show_comparison(
    new_rows: Sequence[Row], runs: Sequence[Sequence[Row]], path: Path, console: Console
) -> None:
    """Print ratios to the last run of a file, after what differs between the two."""
    old_rows = runs[-1]
    taken = old_rows[0]["taken"]
    console.print(plain(f"Beside {path}, measured {taken}:"))
    if len(runs) > 1:
        console.print(
            plain(f"the last of its {len(runs)} runs; the others are not compared")
        )
    for sentence in describe_differences(new_rows[-1], old_rows[-1]):
        console.print(plain(sentence), soft_wrap=True)
    console.print()
    new, old = group_values(new_rows), group_values(old_rows)
    ratios = {
        figure: compare_figure(figure.figure, values, old[figure])
        for figure, values in new.items()
        if figure in old
    }
    lines = [
        (
            figure.part,
            figure.label,
            figure.figure.replace("_", " "),
            write_value(compute_mean(old[figure])),
            write_value(compute_mean(new[figure])),
            _write_ratio(ratio),
        )
        for figure, ratio in ratios.items()
    ]
    headings = ("part", "way", "figure", "before", "now", "now / before")
    if lines:
        table = build_table(*headings, right=headings[3:], rows=lines)
        console.print(table)
    by_reason: dict[str, list[str]] = {}
    for figure, ratio in ratios.items():
        if ratio.reason is not None:
            by_reason.setdefault(ratio.reason, []).append(_name_figure(figure))
    for reason, names in by_reason.items():
        console.print(plain(f"{reason}: {_name_some(names)}"), soft_wrap=True)
    for when, figures in {"now": new.keys() - old, "before": old.keys() - new}.items():
        names = sorted(map(_name_figure, figures))
        if names:
            text = f"measured only {when}: {_name_some(names)}"
            console.print(plain(text), soft_wrap=True)
    if any(ratio.low is not None for ratio in ratios.values()):
        console.print(
            "In brackets: 95 % intervals over the repeats of both runs. One in twenty"
            " leaves 1 out by chance, and what changes from hour to hour is not in them.",
            soft_wrap=True,
        )


def _name_figure(figure: Figure) -> str:
    return f"{figure.part}, {figure.label}, {figure.figure.replace('_', ' ')}"


def _write_ratio(ratio: Ratio) -> str:
    if ratio.value is None:
        return "-"
    text = f"{ratio.value:.3f}"
    return (
        text if ratio.low is None else f"{text} ({ratio.low:.3f} to {ratio.high:.3f})"
    )


def draw_rates(rows: Sequence[Row]) -> Markup | None:
    """Draw tokens a second over what differs first between points; None where nothing does."""
    rates = [row for row in rows if row["figure"] == "tokens_per_second"]
    levels = {name: {row[name] for row in rates} - {None} for name in _AXES}
    name = next((name for name in _AXES if len(levels[name]) > 1), None)
    if name is None:
        return None
    repeats: dict[str, dict[float, list[float]]] = {}  # by line and place on the axis
    for row in rates:
        if row[name] is not None:
            places = repeats.setdefault(_name_line(row, name, levels), {})
            places.setdefault(row[name], []).append(row["value"])
    curves = []
    for line, values in repeats.items():
        in_order = sorted(values.items())
        points = [(place, compute_mean(rates_here)) for place, rates_here in in_order]
        band = [
            (place, min(rates_here), max(rates_here)) for place, rates_here in in_order
        ]
        curves.append(Curve(line, points, band))
    x = build_log_axis(_AXES[name], [*levels[name]])
    y = build_log_axis("Tokens a second", [row["value"] for row in rates])
    return draw(x, y, curves[:MOST_CURVES])


def _name_line(row: Row, axis: str, levels: dict[str, set[float]]) -> str:
    words = [row["part"]]
    if axis != "weights_mb":
        words.append(row["model"])
    if axis == "batch_size" and len(levels["tensor_parallel_size"]) > 1:
        words.append(f"{row['tensor_parallel_size']} GPUs")
    return ", ".join(words)


def build_log_axis(title: str, values: Sequence[float]) -> Axis:
    """Build a logarithmic axis between numbers that begin with 1, 2 or 5."""
    powers = range(
        math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1
    )
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    low = max(tick for tick in ticks if tick <= min(values))
    high = min(tick for tick in ticks if tick >= max(values))
    if low == high:
        high = 2 * low
    return Axis(
        title,
        low,
        high,
        [tick for tick in ticks if low <= tick <= high],
        "{:,g}".format,
        log=True,
    )
