from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import pytest
from scipy.stats import beta

from mia_batch.errors import RequestError
from mia_batch.metrics.evaluate import FPR_BUDGETS, evaluate
from mia_batch.schemas import Metrics
from mia_batch.stats.differences import auc_difference

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
    code = "import sys, mia_batch.metrics.evaluate; print({'sklearn', 'scipy'} & set(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "set()"


def labelled(n, **columns):
    """Members and non-members in turns; scores of two attacks, the second with less noise."""
    rng = np.random.default_rng(0)
    member = np.arange(n) % 2 == 0
    score = {"a_v1": rng.normal(size=n) + member, "b_v1": rng.normal(size=n) / 2 + member}
    return pl.DataFrame({"member": member, **score, **columns})


def rows_of(frame, **asked):
    table = evaluate(frame.lazy(), ["a_v1", "b_v1"], preset="default", **asked)
    Metrics.validate(table)
    return table


def only(table, **where):
    return table.row(
        by_predicate=pl.all_horizontal(pl.col(k) == v for k, v in where.items()), named=True
    )


def test_every_figure_has_an_interval_with_its_method_and_some_width():
    frame = labelled(500, n_words=[30, 30, 60, 60] * 125)
    calibration = frame.with_columns(role=pl.lit("calibration"))
    whole = pl.concat([frame.with_columns(role=pl.lit("target")), calibration])
    table = evaluate(whole.lazy(), ["a_v1", "b_v1"], preset="samia", primary="a_v1")
    valued = table.filter(pl.col("value").is_not_null())
    assert set(valued["metric"]) == {
        "roc_auc", "tpr_at_fpr", "fpr_at_threshold", "balanced_accuracy", "tpr_nearest_fpr",
        "accuracy_5_fold", "roc_auc_difference", "roc_auc_simultaneous",
    }  # fmt: skip
    assert valued["method"].null_count() == 0
    assert valued.filter(pl.col("high") - pl.col("low") <= 1e-3).is_empty()
    within = valued.select(pl.col("value").is_between("low", "high"))
    assert within.to_series().all()
    assert (valued["confidence"] == 0.95).all()
    without = table.filter(pl.col("value").is_null())
    assert without["reason"].null_count() == 0
    assert without["low"].count() == without["method"].count() == 0


def test_the_counts_of_a_slice_are_its_own():
    table = rows_of(labelled(6, site=["x", "x", "x", None, None, None]), slice_by=["site"])
    row = only(table, attack="a_v1", slice="site=x", metric="roc_auc")
    assert (row["n_members"], row["n_nonmembers"], row["n_unscored"]) == (2, 1, 0)
    row = only(table, attack="a_v1", slice="site=null", metric="roc_auc")
    assert (row["n_members"], row["n_nonmembers"]) == (1, 2)


def test_a_slice_has_the_figures_that_its_targets_have_alone():
    frame = labelled(300, site=["x", "y", "y"] * 100)
    sliced = rows_of(frame, slice_by=["site"]).filter(slice="site=y").drop("slice")
    alone = rows_of(frame.filter(site="y")).drop("slice")
    simultaneous = pl.col("metric") == "roc_auc_simultaneous"
    assert sliced.filter(~simultaneous).equals(alone.filter(~simultaneous))


def test_macro_is_the_mean_of_the_length_buckets():
    table = rows_of(labelled(400, n_words=[30, 30, 60, 60] * 100)).filter(attack="a_v1")
    areas = table.filter(metric="roc_auc")
    assert areas["slice"].to_list() == ["all", "about 32 words", "about 64 words", "macro"]
    assert areas["value"][3] == pytest.approx(areas["value"][1:3].mean())
    assert areas["method"][3] == "mover over 2"


def test_the_primary_attack_is_compared_with_each_other_one():
    frame = labelled(200)
    row = only(rows_of(frame, primary="a_v1"), metric="roc_auc_difference")
    made = auc_difference(*(frame[name].to_numpy() for name in ("member", "a_v1", "b_v1")))
    assert made.interval is not None
    assert (row["attack"], row["versus"], row["slice"]) == ("a_v1", "b_v1", "all")
    found = (row["value"], row["low"], row["high"], row["method"])
    assert found == (made.value, made.interval.low, made.interval.high, "delong_paired")
    assert row["high"] < 0


def test_a_primary_attack_that_was_not_scored_is_refused():
    with pytest.raises(RequestError, match="'c_v1' is not among those scored: a_v1, b_v1"):
        rows_of(labelled(10), primary="c_v1")


def test_bounds_hold_over_every_attack_and_slice():
    table = rows_of(labelled(400, site=["x", "x", "y", "y"] * 100), slice_by=["site"])
    bounds = table.filter(metric="roc_auc_simultaneous")
    assert set(bounds["method"]) == {"max_t over 6"}
    beside = table.filter(metric="roc_auc").join(bounds, on=["attack", "slice"])
    assert beside.height == 6
    assert (beside["low_right"] < beside["low"]).all()  # 6 one-sided are stricter than 1 two-sided
    assert (bounds["high"] == 1).all()


def test_a_threshold_comes_from_the_calibration_set_alone():
    """There 5 separates the classes; of the targets two of four members are above, one of three."""
    frame = pl.DataFrame(
        [("target", True, score) for score in (9.0, 8, 1, 2)]
        + [("non_member", False, score) for score in (7.0, 3, 3)]
        + [("calibration", True, 5.0), ("calibration", False, 4.0), ("calibration", None, 1.0)]
        + [("shot", True, -9.0), ("canary", True, -9.0)],
        schema=["role", "member", "a_v1"],
        orient="row",
    )
    found = metrics(frame)["balanced_accuracy", None]
    assert found["value"] == pytest.approx((2 / 4 + 2 / 3) / 2)
    assert found["method"] == "delong_logit"
    assert (found["n_members"], found["n_nonmembers"]) == (4, 3)
    lacking = metrics(frame.filter(~(pl.col("role") == "calibration") | (pl.col("a_v1") > 4)))
    assert lacking["balanced_accuracy", None]["value"] is None
    assert "needs a calibration set" in lacking["balanced_accuracy", None]["reason"]


def test_few_non_members_make_a_budget_unstable():
    """At 5 %, 199 flag 9, and the threshold's FPR follows Beta(10, 190); 200 are enough."""
    frame = scores(range(400), range(199))
    found = metrics(frame)
    assert found["tpr_at_fpr", 0.05]["reason"] == (
        "unstable: a rate of 0.05 rests on 199 non-members"
    )
    row = found["fpr_at_threshold", 0.05]
    assert row["value"] == 9 / 199
    assert (row["low"], row["high"]) == pytest.approx(beta(10, 190).ppf([0.025, 0.975]))
    assert row["method"] == "beta"
    assert ("fpr_at_threshold", 0.1) not in found
    enough = metrics(scores(range(400), range(200)))
    assert enough["tpr_at_fpr", 0.05]["reason"] is None
    assert ("fpr_at_threshold", 0.05) not in enough


def grouped(n_groups, size=4):
    """Groups of one class each, members' and non-members' in turns."""
    group = np.repeat(np.arange(n_groups), size)
    frame = labelled(group.size, group=group.astype(str))
    return frame.with_columns(member=pl.Series(group % 2 == 0)).with_columns(
        pl.col("a_v1", "b_v1") + pl.col("member").cast(pl.Float64)
    )


@pytest.mark.parametrize(("n_groups", "method"), [(60, "group_logit_t"), (6, None)])
def test_groups_of_several_targets_make_every_figure_clustered(n_groups, method):
    table = rows_of(grouped(n_groups), primary="a_v1")
    row = only(table, attack="a_v1", metric="roc_auc")
    assert row["method"] == method
    assert (row["low"] is None) == (method is None)
    assert only(table, metric="roc_auc_difference")["method"] == (method and "cluster_paired_t")
    if method is None:
        assert row["value"] is not None
        assert row["reason"].startswith("an interval needs 4 independent groups of texts of one")
        assert table["low"].count() == table.filter(metric="fpr_at_threshold").height
    rates = table.filter(pl.col("metric") == "tpr_at_fpr", pl.col("low").is_not_null())["method"]
    assert set(rates) <= {"order_statistics"}


def test_one_document_of_two_targets_clusters_the_whole_run():
    alone = labelled(100, document_id=[str(number) for number in range(100)])
    methods = [
        only(rows_of(frame), attack="a_v1", metric="roc_auc")["method"]
        for frame in (
            alone,
            alone.with_columns(document_id=pl.Series(["0", "0", *map(str, range(2, 100))])),
        )
    ]
    assert methods == ["delong_logit", "group_logit_t"]


def test_the_order_of_attacks_and_what_is_beside_them_change_no_figure():
    frame = grouped(60)
    both = rows_of(frame).filter(pl.col("metric") != "roc_auc_simultaneous", attack="b_v1")
    alone = evaluate(frame.lazy(), ["b_v1"], preset="default")
    assert both.equals(alone.filter(pl.col("metric") != "roc_auc_simultaneous"))


@pytest.mark.parametrize("grouping", [False, True])
def test_attacks_that_err_alike_are_bounded_as_one_attack_is(grouping):
    """The third one has no score of the first texts: errors are compared text by text."""
    frame = grouped(60) if grouping else labelled(400)
    frame = frame.select(pl.exclude("b_v1"), b_v1="a_v1").with_columns(
        c_v1=pl.when(pl.int_range(pl.len()) > 20).then("a_v1")
    )
    lows = {
        attacks: evaluate(frame.lazy(), attacks, preset="default")
        .filter(metric="roc_auc_simultaneous", attack="a_v1", slice="all")["low"]
        .item()
        for attacks in (("a_v1",), ("a_v1", "b_v1", "c_v1"))
    }
    alone, together = lows.values()
    assert together == pytest.approx(alone, abs=0.008)  # by Bonferroni 0.02 lower
