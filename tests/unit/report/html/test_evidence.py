"""Evidence: which windows are shown, and what of them is marked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from mia_batch.report.html.evidence import evidence
from mia_batch.report.html.tables import strips
from mia_batch.schemas import Prompts, Samples
from tests.frames import features, samples, table, target_id, targets
from tests.reports import contents


def joined(pieces):
    return "".join(text for text, _ in pieces)


def test_the_longest_run_comes_first_then_the_highest_scores():
    windows = evidence(contents())
    scores = [window["score"] for window in windows]
    assert scores == [0.9, 0.4, 0.3, 0.2, 0.1]
    assert [window["longest_words"] for window in windows] == [31, None, None, None, None]


def test_the_sample_with_the_longest_run_is_marked_on_both_sides():
    window = evidence(contents(text=" and"))[0]
    assert window["sample_index"] == 1
    assert [text for text, marked in window["true"] if marked] == ["it was the worst of"]
    assert [text for text, marked in window["model"] if marked] == ["it was the worst of"]
    assert joined(window["true"]) == " of times and, it was the worst of times"
    assert joined(window["model"]) == " said: it was the worst of  and"


def test_nothing_is_marked_where_nothing_is_shared():
    of = contents()
    other = samples(*[["nothing alike"]] * 6).lazy()
    window = evidence(replace(of, tables={**of.tables, "samples": other}))[0]
    assert window["true"] == [(" of times, it was the worst of times", False)]


def test_answers_at_points_stand_where_they_were_asked_for():
    text = "Zürich is a town by a lake"
    of = contents()
    asked: list[dict[str, Any]] = [
        {"cut": len("Zürich is".encode()), "text": " a", "view_index": 0},
        {"cut": len("Zürich is a town".encode()), "text": " by", "view_index": 1},
    ]
    said = [{"candidate": " a town", "view_index": 0}, {"candidate": " near", "view_index": 1}]
    key: dict[str, Any] = {"target_id": target_id(0), "model": "target", "view": "probe"}
    rows = [{**key, "sample_index": 0, **each} for each in said]
    hits = [{"leading_words": hit, "view_index": index} for index, hit in enumerate([1, 0])]
    tables = {
        "targets": targets({"target": text}).lazy(),
        "scores": pl.LazyFrame(
            {"target_id": [target_id(0)], "role": ["target"], of.primary: [1.0]}
        ),
        "prompts": table(Prompts, [key | each for each in asked]).lazy(),
        "samples": table(Samples, rows, n_tokens=2, short=False).lazy(),
        "features": features(*(key | {"sample_index": 0} | each for each in hits)).lazy(),
    }
    window = evidence(replace(of, tables=tables))[0]
    assert window["points"] == [
        {"text": "Zürich is "},
        {"text": "a", "said": "a", "hit": True},
        {"text": " town "},
        {"text": "by", "said": "near", "hit": False},
        {"text": " a lake"},
    ]


def test_a_strip_has_a_rectangle_for_each_shade_and_says_what_it_shows():
    drawn = strips(contents())
    assert list(drawn) == ["dune", "emma", "ulysses"]
    assert '<path class="h7" d="M0 0H500V1H0z"/>' in drawn["dune"]
    assert "2 stretches, 1 with a score; highest 0.97, from 0 % of the document on" in drawn["dune"]
