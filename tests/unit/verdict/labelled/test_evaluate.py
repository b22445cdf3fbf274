from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import pytest

from mia_batch.schemas import Metrics
from mia_batch.verdict import FPR_BUDGETS, evaluate

if TYPE_CHECKING:
    from collections.abc import Iterable

BUDGETS = (0.001, 0.005, 0.01, 0.05, 0.1)


def scores(
    members: Iterable[float | None],
    nonmembers: Iterable[float | None],
    unknown: Iterable[float | None] = (),
) -> pl.DataFrame:
    """Scores of an attack called a_v1; None = unscored."""
    classes = [(True, members), (False, nonmembers), (None, unknown)]
    return pl.DataFrame(
        [(label, value) for label, values in classes for value in values],
        schema={"member": pl.Boolean, "a_v1": pl.Float64},
        orient="row",
    )


def metrics(
    frame: pl.DataFrame, *, preset: Literal["default", "samia"] = "default"
) -> dict[tuple[str, float | None], dict[str, Any]]:
    table = evaluate(frame.lazy(), ["a_v1"], preset=preset)
    Metrics.validate(table)
    rows = table.filter(pl.col("metric") != "roc_auc_simultaneous").iter_rows(named=True)
    return {(row["metric"], row["fpr"]): row for row in rows}


def test_which_metrics_there_are():
    frame = scores([2, 3], [1, 2])
    rates = [("tpr_at_fpr", budget) for budget in BUDGETS]
    ours = [("roc_auc", None), *rates, ("balanced_accuracy", None)]
    assert FPR_BUDGETS == BUDGETS
    assert list(metrics(frame)) == ours
    assert list(metrics(frame, preset="samia")) == [
        *ours,
        ("tpr_nearest_fpr", 0.1),
        ("accuracy_5_fold", None),
    ]


def test_area_with_its_interval():
    row = metrics(scores([4, 3, 1, 5], [2, 3, 0]))["roc_auc", None]
    assert row["value"] == pytest.approx((3 + 2.5 + 1 + 3) / 12)
    assert 0 < row["low"] < row["value"] < row["high"] < 1
    assert (row["confidence"], row["method"], row["slice"]) == (0.95, "delong_logit", "all")
    assert row["reason"] is None


def test_members_that_score_high_give_an_area_and_an_interval_above_one_half():
    """A score negated twice would give one above and the other below."""
    row = metrics(scores(range(40, 100), range(60)))["roc_auc", None]
    assert 0.5 < row["low"] < row["value"] < row["high"]


def test_tpr_within_the_budget():
    """Twenty non-members 0 .. 19: one may be flagged at 5 %, two at 10 %, none below."""
    found = metrics(scores([18.5, 17.5, 17, 0], range(20)))
    assert found["tpr_at_fpr", 0.05]["value"] == 1 / 4
    assert found["tpr_at_fpr", 0.1]["value"] == 2 / 4
    assert found["tpr_at_fpr", 0.01]["value"] is None


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_budget_needs_one_over_it_non_members(budget):
    needed = round(1 / budget)
    enough = metrics(scores([needed + 1], range(needed)))["tpr_at_fpr", budget]
    assert enough["value"] == 1.0
    lacking = metrics(scores([needed + 1], range(needed - 1)))["tpr_at_fpr", budget]
    assert lacking["value"] is None
    assert str(needed) in lacking["reason"]
    assert str(needed - 1) in lacking["reason"]


def test_every_row_says_how_many_texts_it_rests_on():
    frame = scores([2, 3, None], [1, None, None, float("nan")], unknown=[5, None])
    for row in metrics(frame, preset="samia").values():
        assert (row["n_members"], row["n_nonmembers"], row["n_unscored"]) == (2, 1, 4)


def test_unknown_membership_is_left_out():
    known = scores([2, 4, 6, 8, 9], [1, 3, 5, 7, 0])
    assert metrics(known, preset="samia") == metrics(
        scores([2, 4, 6, 8, 9], [1, 3, 5, 7, 0], unknown=[100, -100]), preset="samia"
    )


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (scores([], [1, 2]), "there is no scored member"),
        (scores([None], [1, 2]), "there is no scored member"),
        (scores([1, 2], []), "there is no scored non-member"),
        (scores([None], [None]), "there is no scored member"),
    ],
)
def test_one_class_alone_has_no_metrics_but_a_reason(frame, reason):
    for row in metrics(frame, preset="samia").values():
        assert row["value"] is None
        assert row["reason"] == reason
        assert row["method"] is None


def test_five_folds_need_five_texts_of_each_class():
    found = metrics(scores([1, 2, 3, 4], range(9)), preset="samia")["accuracy_5_fold", None]
    assert found["value"] is None
    assert "5 scored members" in found["reason"]


def test_a_corpus_without_labels_has_no_metrics():
    table = evaluate(scores([], [], unknown=[1, 2]).lazy(), ["a_v1"], preset="default")
    assert table.is_empty()
    Metrics.validate(table)


def test_each_attack_has_its_own_rows():
    frame = scores([2, 3], [0, 1]).with_columns(b_v1=-pl.col("a_v1"))
    table = evaluate(frame.lazy(), ["b_v1", "a_v1"], preset="default").filter(metric="roc_auc")
    assert table.select("attack", "value").rows() == [("b_v1", 0.0), ("a_v1", 1.0)]


def test_equal_scores_are_a_coin_toss():
    row = metrics(scores([1] * 9, [1] * 9))["roc_auc", None]
    assert row["value"] == 0.5
    assert row["low"] < 0.5 < row["high"]


def test_importing_the_package_loads_no_heavy_library():
    code = "import sys, mia_batch.verdict; print({'sklearn', 'scipy'} & set(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "set()"
