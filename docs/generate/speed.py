"""Figures of speed: what benches measured from day to day, and curves over models and batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from benches import power_report

from docs.generate.markdown import table
from mia_batch.extras.speed.comparing import read_runs
from mia_batch.extras.speed.showing import build_log_axis, draw_rates, write_repeats
from mia_batch.report.html.plots import Axis, Curve, draw, embed_colours

__all__ = ["curve_picture", "curves", "history", "history_picture"]

_RESULTS = power_report.TABLE.parent
_CURVES = _RESULTS / "speed.jsonl"
_HISTORY = {
    "pairs, beside plain Python (SaMIA, N = 1)": (
        *("kernels", "One core", "plain Python SaMIA, N = 1, with zlib", "ratio"),
    ),
    "pairs, beside rouge-score-rs": (
        *("kernels", "One core", "rouge-score-rs, ROUGE-1..5 and L", "ratio"),
    ),
    "sampling, beside transformers.generate": ("sampling", "ours_to_transformers"),
    "log-probabilities, beside padded batches": (
        *("logprobs", "ours_to", "full batches", "seconds"),
    ),
    "sampling, beside LLM.generate": ("sampling", "ours_to_bare_median"),
    "log-probabilities, beside a bare loop": (
        *("logprobs", "ours_to", "bare loop", "seconds"),
    ),
    "whole tables of pairs, beside the kernels alone": ("features", "ratio_of_cpu"),
}
"""Ratios that were measured within one run, by where they stand in a file of results."""


def _read_history() -> dict[str, dict[date, float]]:
    """Return the median of each day's runs."""
    days_by_name = {}
    for name, (bench, *path) in _HISTORY.items():
        values: dict[date, list[float]] = {}
        lines = (_RESULTS / f"{bench}.jsonl").read_text(encoding="utf-8").splitlines()
        for line in map(json.loads, lines):
            value = _find_value(line, path)
            if value is not None:
                values.setdefault(date.fromisoformat(line["taken"]), []).append(value)
        days_by_name[name] = {day: median(values[day]) for day in sorted(values)}
    return days_by_name


def _find_value(line: Any, path: Sequence[str]) -> float | None:
    """Follow names of fields, and in a list of rows what a row is against."""
    for name in path:
        if isinstance(line, list):
            line = next((row for row in line if row.get("against") == name), {})
        else:
            line = line.get(name, {})
    return line or None


def history_picture() -> str:
    """Draw how many times as fast as others mia-batch was, by day, as SVG."""
    by_name = _read_history()
    days = sorted({day.toordinal() for values in by_name.values() for day in values})
    x = Axis("Month and day", days[0], days[-1], days, _write_day)
    ratios = [ratio for values in by_name.values() for ratio in values.values()]
    y = build_log_axis("Times as fast as the other", ratios)
    lines = [
        Curve(name, [(day.toordinal(), ratio) for day, ratio in values.items()])
        for name, values in by_name.items()
    ]
    return embed_colours(draw(x, y, lines))


def _write_day(number: float) -> str:
    return f"{date.fromordinal(int(number)):%m-%d}"


def history() -> str:
    """Say of each ratio what it was on the first and the last day that it was measured."""
    rows = []
    for name, values in _read_history().items():
        (first, old), *_, (last, new) = values.items()
        rows.append((name, f"{old:.2f}", str(first), f"{new:.2f}", str(last)))
    return table(("what", "first", "on", "last", "on"), rows)


def _read_curves() -> list[dict[str, Any]]:
    return [row for run in read_runs(Path(_CURVES)) for row in run]


def curve_picture() -> str:
    """Draw tokens a second by batch size and model, as SVG."""
    drawn = draw_rates(_read_curves())
    return "" if drawn is None else embed_colours(drawn)


def curves() -> str:
    """Say what was measured at each point of the curves: the mean, the least and the most."""
    cells: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for row in _read_curves():
        if row["figure"] == "tokens_per_second":
            size = f"{row['weights_mb']:,.0f}"
            engine = row["way"].removeprefix("mia-batch by ")
            point = (row["model"], size, engine, str(row["batch_size"]))
            values = cells.setdefault(point, {}).setdefault(row["part"], [])
            values.append(row["value"])
    parts = ("sampling", "log-probabilities")
    lines = [
        (
            *point,
            *(
                write_repeats(values[part]) if part in values else "not measured"
                for part in parts
            ),
        )
        for point, values in cells.items()
    ]
    return table(("model", "MB", "engine", "texts at once", *parts), lines)
