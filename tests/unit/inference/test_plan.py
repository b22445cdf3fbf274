from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from mia_batch.errors import SettingsError
from mia_batch.inference.findings import VerdictPlan, preregister

PLAN = VerdictPlan(primary="a_v1", level="group", null_set="file 1f: written after the model")


def test_the_digest_is_that_of_canonical_json():
    content = {
        "primary": "a_v1",
        "level": "group",
        "null_set": "file 1f: written after the model",
        "q": 0.05,
        "adjustment": "bh",
        "ties": "conservative",
        "statistic": "mean",
        "windows_per_group": None,
        "length_edges": [],
        "fpr": 0.05,
        "seed": 0,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert PLAN.digest() == sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"primary": "b_v1"},
        {"level": "target"},
        {"null_set": "another"},
        {"q": 0.1},
        {"adjustment": "by"},
        {"ties": "random"},
        {"statistic": "median"},
        {"windows_per_group": 5},
        {"length_edges": (50,)},
        {"fpr": 0.01},
        {"seed": 1},
    ],
)
def test_every_field_changes_the_digest(change):
    assert replace(PLAN, **change).digest() != PLAN.digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": 0}, "q must lie between 0 and 1"),
        ({"q": 1}, "q must lie between 0 and 1"),
        ({"fpr": 1.5}, "fpr must lie between 0 and 1"),
        ({"windows_per_group": 0}, "windows_per_group must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"length_edges": (50, 50)}, "length_edges must ascend"),
        ({"length_edges": (50, 20)}, "length_edges must ascend"),
    ],
)
def test_numbers_out_of_range_are_refused(change, message):
    with pytest.raises(SettingsError, match=message):
        replace(PLAN, **change)


def test_the_digest_is_not_about_the_attacks_that_are_recorded():
    recorded = [preregister(PLAN, {}, attacks) for attacks in (["a_v1"], ["b_v1", "a_v1"])]
    assert [one["attacks"] for one in recorded] == [["a_v1"], ["b_v1", "a_v1"]]
    assert {one["sha256"] for one in recorded} == {PLAN.digest()}
