"""Pictures: where values stand, what is written next to them, and what a file of one holds."""

import base64
import xml.etree.ElementTree as ET
from dataclasses import replace

import polars as pl
import pytest

from mia_batch.report.html.plots import (
    MOST_CURVES,
    Axis,
    Lane,
    compared_books,
    draw_lanes,
    plots,
    round_axis,
)
from mia_batch.schemas import Curves, Metrics, Rollup
from tests.frames import table
from tests.reports import ATTACK, HOSTILE, contents


def pictures(page_contents):
    return {plot["name"]: plot for plot in plots(page_contents)}


def texts(svg):
    return [element.text for element in ET.fromstring(svg).iter() if element.text]


@pytest.mark.parametrize(
    ("axis", "value", "place"),
    [
        (Axis("x", 0.0, 2.0, ()), 0.5, 25.0),
        (Axis("x", 0.0, 2.0, ()), 7.0, 100.0),  # those outside stand at the end
        (Axis("x", 0.001, 1.0, (), log=True), 0.01, 33.3),
        (Axis("x", 0.001, 1.0, (), log=True), 0.0, 0.0),
    ],
)
def test_values_stand_where_the_axis_says(axis, value, place):
    assert axis.place(value, 0, 100) == place


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.0, 1.0], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ([-3.1, 12.0], [-5.0, 0.0, 5.0, 10.0, 15.0]),
        ([0.31, 0.34], [0.31, 0.32, 0.33, 0.34]),
        ([7.0, 7.0], [6.0, 8.0, 10.0, 12.0, 14.0]),
    ],
)
def test_axes_go_from_one_round_number_to_another(values, ticks):
    axis = round_axis("x", values)
    assert axis.ticks == ticks
    assert (axis.low, axis.high) == (ticks[0], ticks[-1])


def test_axes_are_named_and_that_of_areas_begins_at_chance_or_at_0():
    limits = {"metric": "tpr_at_fpr", "fpr": 0.1, "value": 0.5, "low": 0.3, "high": 0.7}
    counts = {
        "attack": ATTACK,
        "slice": "all",
        "n_members": 3,
        "n_nonmembers": 3,
        "n_unscored": 0,
    }
    metrics = table(Metrics, [limits], **counts)
    page_contents = contents()
    few_plot = pictures(
        replace(
            page_contents, tables={**page_contents.tables, "metrics": metrics.lazy()}
        )
    )["roc"]
    assert {"0 %", "20 %", "80 %", "100 %"} <= {*texts(few_plot["svg"])}
    assert "logarithmic" not in few_plot["note"]
    many_metrics = metrics.with_columns(n_nonmembers=pl.lit(100, pl.UInt32)).lazy()
    roc = pictures(
        replace(page_contents, tables={**page_contents.tables, "metrics": many_metrics})
    )["roc"]
    assert "Both axes are logarithmic" in roc["note"]
    assert {"1 %", "10 %", "100 %", "chance", ATTACK} <= {*texts(roc["svg"])}
    assert roc["head"] == ["Attack", "TPR at 1 % FPR", "TPR at 10 % FPR"]
    assert roc["rows"] == [[ATTACK, "20 %", "50 %"]]
    assert f"95 % interval of {ATTACK}" in roc["note"]
    growth = pictures(contents())["growth"]
    assert {"0.5", "0.6", "0.7", "0.8", "0.9", "1"} <= {*texts(growth["svg"])}
    assert "0.4" not in texts(growth["svg"])
    assert "begins at 0.5" in growth["note"]
    points = [
        {"curve": "growth", "subject": "samples", "x": x, "y": 0.4} for x in (1.0, 2.0)
    ]
    worse = {"curves": table(Curves, points, attack=ATTACK, n=2).lazy()}
    assert (
        "begins at 0;" in pictures(replace(contents(), tables=worse))["growth"]["note"]
    )


def test_the_rounding_of_a_rate_of_0_is_no_end_of_an_axis():
    rates = ((0.0, 0.0), (1.1e-16, 0.95), (0.05, 0.95), (1.0, 1.0))
    points = [{"curve": "roc", "attack": ATTACK, "x": x, "y": y} for x, y in rates]
    tables = {"curves": table(Curves, points, n=240).lazy()}
    roc = pictures(replace(contents(), tables=tables))["roc"]
    assert "Both axes are logarithmic" in roc["note"]
    percent = [text for text in texts(roc["svg"]) if text.endswith("%")]
    assert percent == ["1 %", "10 %", "100 %"] * 2


def test_scores_that_are_all_equal_have_a_roc():
    equal = [{"curve": "roc", "attack": ATTACK, "x": x, "y": x} for x in (0.0, 1.0)]
    roc = pictures(
        replace(contents(), tables={"curves": table(Curves, equal, n=2).lazy()})
    )["roc"]
    assert (roc["head"], roc["rows"]) == (
        ["Attack", "TPR at 10 % FPR"],
        [[ATTACK, "0 %"]],
    )


def test_curves_that_are_too_many_are_named_and_stand_in_the_table():
    names = [f"attack_{number}" for number in range(MOST_CURVES + 2)]
    points = [
        {"curve": "roc", "attack": n, "x": x, "y": x} for n in names for x in (0.1, 1.0)
    ]
    curves = table(Curves, points, n=2).lazy()
    roc = pictures(replace(contents(), tables={"curves": curves}))["roc"]
    assert "In the table only: attack_2, attack_3, attack_4," in roc["note"]
    assert [row[0] for row in roc["rows"]] == names
    assert "2  attack_1" in texts(roc["svg"])


def test_a_saved_picture_stands_alone_and_obeys_no_name():
    name = HOSTILE[:50]
    points = [{"curve": "roc", "attack": name, "x": x, "y": x} for x in (0.1, 1.0)]
    curves = table(Curves, points, n=2).lazy()
    roc = pictures(replace(contents(), tables={"curves": curves}))["roc"]
    kind, encoded = roc["link"].split(",")
    assert kind == "data:image/svg+xml;base64"
    saved = base64.b64decode(encoded).decode()
    assert "var(" not in saved
    assert "currentColor" not in saved
    assert name in texts(saved)
    assert {
        element.tag.rpartition("}")[2] for element in ET.fromstring(saved).iter()
    } == {*("svg", "rect", "path", "text")}


def test_books_are_drawn_over_those_outside_the_training_data():
    row = {"attack": ATTACK, "n_windows": 2, "n_asked": 2, "n_scored": 2}
    rows = [
        {"level": level, "key": key, "mean": mean, "verdict": verdict}
        for level, key, mean, verdict in (
            ("document", "dune", 0.9, "known_better"),
            ("document", "emma", 0.2, "nothing_found"),
            ("outside", "new", 0.3, "cannot_tell"),
            ("outside", "newer", 0.1, "cannot_tell"),
        )
    ]
    rollup = table(Rollup, rows, **row)
    chart = compared_books(rollup, ATTACK)
    assert chart is not None
    assert [row[:2] for row in chart["rows"]] == [
        ["audited documents above the comparison", "dune"],
        ["other audited documents", "emma"],
        ["comparison: known to be outside the training data", "new"],
        ["comparison: known to be outside the training data", "newer"],
    ]
    assert compared_books(rollup.filter(pl.col("level") != "outside"), ATTACK) is None


def test_dots_that_meet_stand_on_top_of_each_other():
    svg = draw_lanes(round_axis("x", [0, 1]), [Lane("books", [0.5, 0.5, 0.9])])
    dots = ET.fromstring(svg).findall(".//*[@stroke-linecap]")
    assert [dot.get("d") for dot in dots] == ["M296 56h0M296 48h0M480 56h0"]
