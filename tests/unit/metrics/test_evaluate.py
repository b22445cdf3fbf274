import numpy as np
import polars as pl
import pytest
from benches.interval_coverage import CASES, coverage, kept
from scipy.stats import beta
from sklearn.model_selection import StratifiedKFold

from mia_batch.errors import RequestError
from mia_batch.metrics import (
    FPR_BUDGETS,
    accuracy_5_fold,
    evaluate,
    figure,
    find_clusters,
    find_slices,
    macro_averages,
    tpr_nearest_fpr,
)
from mia_batch.schemas import Metrics
from mia_batch.stats.intervals import Interval, auc_difference, roc_curve

BUDGETS = (0.001, 0.005, 0.01, 0.05, 0.1)


def scores(members, nonmembers, unknown=()):
    """Scores of an attack called a_v1; None = unscored."""
    classes = [(True, members), (False, nonmembers), (None, unknown)]
    return pl.DataFrame(
        [(label, value) for label, values in classes for value in values],
        schema={"member": pl.Boolean, "a_v1": pl.Float64},
        orient="row",
    )


def metrics(frame, *, preset="default"):
    table = evaluate(frame.lazy(), ["a_v1"], preset=preset)
    Metrics.validate(table)
    rows = table.filter(pl.col("metric") != "roc_auc_simultaneous").iter_rows(
        named=True
    )
    return {(row["metric"], row["fpr"]): row for row in rows}


def test_which_metrics_there_are():
    frame = scores([2, 3], [1, 2])
    rates = [("tpr_at_fpr", budget) for budget in BUDGETS]
    ours = [
        ("roc_auc", None),
        *rates,
        ("fpr_at_95_tpr", None),
        ("balanced_accuracy", None),
    ]
    assert FPR_BUDGETS == BUDGETS
    assert list(metrics(frame)) == ours
    assert list(metrics(frame, preset="samia")) == [
        *ours,
        ("tpr_nearest_fpr", 0.1),
        ("accuracy_5_fold", None),
    ]


def test_tpr_within_the_budget():
    """Twenty non-members 0 .. 19: one may be flagged at 5 %, two at 10 %, none below."""
    found = metrics(scores([18.5, 17.5, 17, 0], range(20)), preset="samia")
    assert found["tpr_at_fpr", 0.05]["value"] == 1 / 4
    assert found["tpr_at_fpr", 0.1]["value"] == 2 / 4
    assert found["tpr_at_fpr", 0.01]["value"] is None
    assert found["accuracy_5_fold", None]["value"] is None
    assert "5 scored members" in found["accuracy_5_fold", None]["reason"]


def test_the_fpr_at_95_tpr_by_hand_and_where_it_is_not_there():
    """Twenty members 1 .. 20: nineteen are flagged from 2 on, as are 2 of the 4 others."""
    members = range(1, 21)
    row = metrics(scores(members, [0, 1.5, 2, 30]))["fpr_at_95_tpr", None]
    assert (row["value"], row["fpr"]) == (2 / 4, None)
    assert 0 <= row["low"] < 2 / 4 < row["high"] <= 1
    short = metrics(scores(range(2, 21), [0, 1.5, 2, 30]))["fpr_at_95_tpr", None]
    assert short["value"] is None
    assert short["reason"] == "a rate of 0.05 needs 20 members, scored are 19"
    assert "independent members" in row["reason"]


@pytest.mark.parametrize("seed", range(4))
def test_the_fpr_at_95_tpr_is_the_least_of_all_thresholds(seed):
    rng = np.random.default_rng(seed)
    member = rng.random(300) < 0.4
    score = np.round(rng.normal(size=300) + member, seed)  # with ties
    rates = []
    for threshold in score:
        flagged = score >= threshold
        if flagged[member].mean() >= 0.95:
            rates.append(flagged[~member].mean())
    row = metrics(scores(score[member], score[~member]))["fpr_at_95_tpr", None]
    assert row["value"] == pytest.approx(min(rates), abs=1e-12)
    assert row["low"] <= row["value"] <= row["high"]


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_budget_needs_one_over_it_non_members(budget):
    needed = round(1 / budget)
    enough = metrics(scores([needed + 1], range(needed)))["tpr_at_fpr", budget]
    assert enough["value"] == 1.0
    short = metrics(scores([needed + 1], range(needed - 1)))["tpr_at_fpr", budget]
    assert short["value"] is None
    assert str(needed) in short["reason"]
    assert str(needed - 1) in short["reason"]


def test_every_row_says_how_many_texts_it_rests_on_and_unknown_ones_are_left_out():
    frame = scores([2, 3, None], [1, None, None, float("nan")], unknown=[5, None])
    for row in metrics(frame, preset="samia").values():
        assert (row["n_members"], row["n_nonmembers"], row["n_unscored"]) == (2, 1, 4)
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


def test_a_corpus_without_labels_has_no_metrics():
    table = evaluate(scores([], [], unknown=[1, 2]).lazy(), ["a_v1"], preset="default")
    assert table.is_empty()
    Metrics.validate(table)


def labelled(n, **columns):
    rng = np.random.default_rng(0)
    member = np.arange(n) % 2 == 0
    score = {
        "a_v1": rng.normal(size=n) + member,
        "b_v1": rng.normal(size=n) / 2 + member,
    }
    return pl.DataFrame({"member": member, **score, **columns})


def rows_of(frame, **asked):
    table = evaluate(frame.lazy(), ["a_v1", "b_v1"], preset="default", **asked)
    Metrics.validate(table)
    return table


def only(table, **where):
    return table.row(
        by_predicate=pl.all_horizontal(pl.col(k) == v for k, v in where.items()),
        named=True,
    )


def test_every_figure_has_an_interval_with_its_method_and_some_width():
    frame = labelled(500, n_words=[30, 30, 60, 60] * 125)
    calibration = frame.with_columns(role=pl.lit("calibration"))
    whole = pl.concat([frame.with_columns(role=pl.lit("target")), calibration])
    table = evaluate(whole.lazy(), ["a_v1", "b_v1"], preset="samia", primary="a_v1")
    valued = table.filter(pl.col("value").is_not_null())
    # Fmt: skip
    assert set(valued["metric"]) == {
        "roc_auc",
        "tpr_at_fpr",
        "fpr_at_95_tpr",
        "fpr_at_threshold",
        "balanced_accuracy",
        "tpr_nearest_fpr",
        "accuracy_5_fold",
        "roc_auc_difference",
        "roc_auc_simultaneous",
    }
    assert valued["method"].null_count() == 0
    assert valued.filter(pl.col("high") - pl.col("low") <= 1e-3).is_empty()
    within = valued.select(pl.col("value").is_between("low", "high"))
    assert within.to_series().all()
    assert (valued["confidence"] == 0.95).all()
    without = table.filter(pl.col("value").is_null())
    assert without["reason"].null_count() == 0
    assert without["low"].count() == without["method"].count() == 0


def test_a_slice_has_the_figures_that_its_targets_have_alone():
    frame = labelled(300, site=["x", "y", "y"] * 100)
    sliced = rows_of(frame, slice_by=["site"]).filter(slice="site=y").drop("slice")
    alone = rows_of(frame.filter(site="y")).drop("slice")
    simultaneous = pl.col("metric") == "roc_auc_simultaneous"
    assert sliced.filter(~simultaneous).equals(alone.filter(~simultaneous))


def test_macro_is_the_mean_of_the_length_buckets():
    table = rows_of(labelled(400, n_words=[30, 30, 60, 60] * 100)).filter(attack="a_v1")
    areas = table.filter(metric="roc_auc")
    assert areas["slice"].to_list() == [
        "all",
        "about 32 words",
        "about 64 words",
        "macro",
    ]
    assert areas["value"][3] == pytest.approx(areas["value"][1:3].mean())
    assert areas["method"][3] == "mover over 2"


def test_the_primary_attack_is_compared_with_each_other_one_and_must_be_scored():
    frame = labelled(200)
    row = only(rows_of(frame, primary="a_v1"), metric="roc_auc_difference")
    made = auc_difference(
        *(frame[name].to_numpy() for name in ("member", "a_v1", "b_v1"))
    )
    assert made.interval is not None
    assert (row["attack"], row["versus"], row["slice"]) == ("a_v1", "b_v1", "all")
    found = (row["value"], row["low"], row["high"], row["method"])
    assert found == (made.value, made.interval.low, made.interval.high, "delong_paired")
    assert row["high"] < 0
    with pytest.raises(
        RequestError, match="'c_v1' is not among those scored: a_v1, b_v1"
    ):
        rows_of(labelled(10), primary="c_v1")


def test_bounds_hold_over_every_attack_and_slice():
    table = rows_of(labelled(400, site=["x", "x", "y", "y"] * 100), slice_by=["site"])
    bounds = table.filter(metric="roc_auc_simultaneous")
    assert set(bounds["method"]) == {"max_t over 6"}
    both = table.filter(metric="roc_auc").join(bounds, on=["attack", "slice"])
    assert both.height == 6
    assert (
        both["low_right"] < both["low"]
    ).all()  # 6 one-sided are stricter than 1 two-sided
    assert (bounds["high"] == 1).all()


def test_a_threshold_comes_from_the_calibration_set_alone():
    """There 5 separates the classes; of the targets two of four members are above, one of three."""
    frame = pl.DataFrame(
        [("target", True, score) for score in (9.0, 8, 1, 2)]
        + [("non_member", False, score) for score in (7.0, 3, 3)]
        + [
            ("calibration", True, 5.0),
            ("calibration", False, 4.0),
            ("calibration", None, 1.0),
        ]
        + [("shot", True, -9.0), ("canary", True, -9.0)],
        schema=["role", "member", "a_v1"],
        orient="row",
    )
    found = metrics(frame)["balanced_accuracy", None]
    assert found["value"] == pytest.approx((2 / 4 + 2 / 3) / 2)
    assert found["method"] == "delong_logit"
    assert (found["n_members"], found["n_nonmembers"]) == (4, 3)
    short = metrics(
        frame.filter(~(pl.col("role") == "calibration") | (pl.col("a_v1") > 4))
    )
    assert short["balanced_accuracy", None]["value"] is None
    assert "needs a calibration set" in short["balanced_accuracy", None]["reason"]


def test_few_non_members_make_a_budget_unstable():
    """At 5 %, 199 flag 9, and the threshold's FPR follows Beta(10, 190); 200 are enough."""
    frame = scores(range(400), range(199))
    found = metrics(frame)
    assert (
        found["tpr_at_fpr", 0.05]["reason"]
        == "unstable: only about 199 independent non-members"
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
    assert only(table, metric="roc_auc_difference")["method"] == (
        method and "cluster_paired_t"
    )
    if method is None:
        assert row["value"] is not None
        assert row["reason"].startswith(
            "an interval needs 4 independent groups of texts of one"
        )
        assert table["low"].count() == table.filter(metric="fpr_at_threshold").height
    rates = table.filter(pl.col("metric") == "tpr_at_fpr", pl.col("low").is_not_null())[
        "method"
    ]
    assert set(rates) <= {"order_statistics"}


def test_one_document_of_two_targets_clusters_the_whole_run():
    alone = labelled(100, document_id=[str(number) for number in range(100)])
    methods = [
        only(rows_of(frame), attack="a_v1", metric="roc_auc")["method"]
        for frame in (
            alone,
            alone.with_columns(
                document_id=pl.Series(["0", "0", *map(str, range(2, 100))])
            ),
        )
    ]
    assert methods == ["delong_logit", "group_logit_t"]


def test_the_order_of_attacks_and_what_is_with_them_change_no_figure():
    frame = grouped(60)
    both = rows_of(frame).filter(
        pl.col("metric") != "roc_auc_simultaneous", attack="b_v1"
    )
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
        attacks: (
            evaluate(frame.lazy(), attacks, preset="default")
            .filter(metric="roc_auc_simultaneous", attack="a_v1", slice="all")["low"]
            .item()
        )
        for attacks in (("a_v1",), ("a_v1", "b_v1", "c_v1"))
    }
    alone, together = lows.values()
    assert together == pytest.approx(alone, abs=0.008)  # by Bonferroni 0.02 lower


def labelled_of_authors(members, nonmembers):
    score = np.array([*members, *nonmembers], float)
    return np.arange(score.size) < len([*members]), score


@pytest.mark.parametrize(
    ("members", "nonmembers", "nearest", "within"),
    [
        # one of seven non-members ties with the second member: of the rates 0 and 1/7
        # 1/7 is nearer
        ([9, 8], [8, 1, 2, 3, 4, 5, 6], 1, 1 / 2),
        # the curve climbs at 0.1 from 0 to 1; its corners are kept, and the lower one
        # comes first
        ([5, 4], [9, *range(-9, 0)], 0, 1),
        # three tied pairs make a line from 5 to 15 %; its middle, at 10 %, is gone
        ([9, 8, 7, -9], [9, 8, 7, *range(-8, 0), *range(-8, 1)], 3 / 4, 2 / 4),
    ],
)
def test_the_point_nearest_to_a_rate(members, nonmembers, nearest, within):
    member, score = labelled_of_authors(members, nonmembers)
    assert tpr_nearest_fpr(member, score, 0.1) == nearest
    assert roc_curve(member, score).at_fpr(0.1).tpr == within


def test_equal_scores_are_all_called_non_members():
    """No threshold has a TPR above its FPR, so the infinite one, the highest, counts."""
    member, score = labelled_of_authors([1] * 10, [1] * 30)
    assert accuracy_5_fold(member, score) == 0.75


def test_accuracy_equals_a_loop_written_from_the_paper():
    rng = np.random.default_rng(0)
    member = np.repeat([True, False], [23, 31])
    score = rng.integers(0, 9, 54) + 2.0 * member
    right = []
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(
        score, member
    ):
        gaps = {
            threshold: (
                np.mean(score[train][member[train]] >= threshold)
                - np.mean(score[train][~member[train]] >= threshold)
            )
            for threshold in sorted(set(score[train]), reverse=True)
        }
        threshold = max(gaps, key=gaps.__getitem__)
        right.append(np.mean((score[test] >= threshold) == member[test]))
    assert accuracy_5_fold(member, score) == pytest.approx(np.mean(right))
    assert accuracy_5_fold(member, score) == accuracy_5_fold(member, score)


def clusters(columns, *, counts=None, window=None):
    """Cluster of each target, as the number of the first target in it."""
    n = len(next(iter(columns.values())))
    frame = pl.DataFrame({"a": [1.0] * n} | columns)
    if window:
        frame = frame.with_columns(window_index=pl.Series(window, dtype=pl.UInt32))
    where = pl.lit(value=True) if counts is None else pl.lit(pl.Series(counts))
    found = find_clusters(frame.lazy(), where, ["a"] + ["b"] * ("b" in columns))
    if found is None:
        return None
    codes = found.tolist()
    assert sorted(set(codes)) == list(range(len(set(codes))))
    return [codes.index(code) for code in codes]


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ({"group": ["x", "x", None], "document_id": [None, None, "x"]}, {}, [0, 0, 2]),
        ({"a": [1.0, 2.0]}, {}, None),
        (  # the second does not count, but begins a document
            {"document_id": [None] * 4},
            {"window": [0, 0, 1, 2], "counts": [True, False, True, True]},
            [0, 1, 1],
        ),
        ({"group": ["a", "a", "b"], "a": [1.0, None, 2.0]}, {}, None),
        ({"group": ["a", "a", "b"], "a": [1.0, float("inf"), 2.0]}, {}, None),
        (
            {"group": ["a", "a", "b"], "a": [1.0, None, 2.0], "b": [None, 1.0, 1.0]},
            {},
            [0, 0, 2],
        ),
    ],
)
def test_the_cluster_is_the_group_else_the_document_else_the_target(
    columns, options, expected
):
    assert clusters(columns, **options) == expected


N_SIMULATIONS = 40
QUICK = [
    case
    for case in CASES
    if case.figure != "simultaneous" and case.groups * case.n < 1000 and case.n <= 400
]


def test_the_grid_has_independent_and_grouped_texts_of_every_figure():
    # Fmt: skip
    assert {(case.figure, case.groups > 0) for case in QUICK} >= {
        ("auc", False),
        ("auc", True),
        ("tpr", False),
        ("tpr", True),
        ("balanced accuracy", False),
        ("balanced accuracy", True),
        ("difference", False),
        ("difference", True),
        ("macro", False),
    }


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_coverage(case):
    share, width, none = coverage(case, N_SIMULATIONS)
    assert none == 0
    assert kept(case, share, N_SIMULATIONS)
    assert width < 0.7


def test_simultaneous_bounds_hold_together():
    case = next(case for case in CASES if case.figure == "simultaneous")
    share, _, _ = coverage(case, N_SIMULATIONS // 2)
    assert kept(case, share, N_SIMULATIONS // 2)


def row(value, low, high, *, metric="roc_auc", fpr=None, reason=None):
    interval = None if low is None else Interval(low, high, 0.95, "some")
    return figure(metric, fpr, value, interval, reason)


def counts(n):
    return {"n_members": n, "n_nonmembers": 2 * n, "n_unscored": 1}


@pytest.mark.parametrize(
    ("clustered", "low", "high", "method"),
    [
        # distances 0.03 and 0.04 below make 0.05, halved; 0.05 and 0.12 above make 0.13
        (False, 0.675, 0.765, "mover over 2"),
        (True, 0.665, 0.785, "average_conservative over 2"),
    ],
)
def test_two_buckets_by_hand(clustered, low, high, method):
    buckets = [
        (counts(10), [row(0.6, 0.57, 0.65)]),
        (counts(20), [row(0.8, 0.76, 0.92)]),
    ]
    ((sizes, average),) = macro_averages(buckets, clustered=clustered)
    limits = [average[name] for name in ("value", "low", "high")]
    assert limits == pytest.approx([0.7, low, high])
    assert (average["method"], average["confidence"]) == (method, 0.95)
    assert sizes == {"n_members": 30, "n_nonmembers": 60, "n_unscored": 2}


def test_only_buckets_that_have_the_figure_count_and_one_without_limits_leaves_none():
    rate = {"metric": "tpr_at_fpr", "fpr": 0.01}
    buckets = [
        (counts(1), [row(None, None, None, reason="too few", **rate)]),
        (counts(2), [row(0.4, 0.3, 0.5, **rate)]),
        (
            counts(4),
            [row(0.6, 0.5, 0.7, **rate), row(0.1, 0, 1, metric="fpr_at_threshold")],
        ),
    ]
    ((sizes, average),) = macro_averages(buckets, clustered=False)
    named = ("metric", "fpr", "value", "reason")
    assert [average[name] for name in named] == ["tpr_at_fpr", 0.01, 0.5, None]
    assert sizes["n_members"] == 6
    buckets[2] = (counts(4), [row(0.6, None, None, reason="few groups", **rate)])
    ((_, average),) = macro_averages(buckets, clustered=True)
    assert (average["value"], average.get("low"), average.get("method")) == (
        0.5,
        None,
        None,
    )
    assert average["reason"] == "few groups"


def rows(found):
    return {
        name: list(range(99)[at]) if isinstance(at, slice) else at.tolist()
        for name, at in found.items()
    }


def test_each_value_is_a_slice_in_order_and_nulls_are_one():
    frame = pl.LazyFrame(
        {"member": [True] * 5, "site": ["b", None, "a", "b", None], "year": [1] * 5}
    )
    found = rows(find_slices(frame, ["site", "year"]))
    assert list(found) == ["all", "site=a", "site=b", "site=null", "year=1"]
    assert found["site=b"] == [0, 3]
    assert found["site=null"] == [1, 4]
    assert found["all"] == list(range(99))


def test_length_buckets_reach_half_a_doubling_to_either_side():
    words = [22, 23, 45, 46, 90, 91, 181, 182, 362, 363, None]
    frame = pl.LazyFrame({"member": [True] * 11 + [False] * 11, "n_words": words * 2})
    found = rows(find_slices(frame, []))
    assert {
        name: [words[at] for at in found[name] if at < 11] for name in list(found)[1:]
    } == {
        "about 32 words": [23, 45],
        "about 64 words": [46, 90],
        "about 128 words": [91, 181],
        "about 256 words": [182, 362],
    }


@pytest.mark.parametrize("words", [[32, 64, 32, 32], [32, 64, 32, 1000]])
def test_a_single_bucket_of_both_classes_is_no_slice(words):
    frame = pl.LazyFrame({"member": [True, True, False, False], "n_words": words})
    assert list(find_slices(frame, [])) == ["all"]


def test_columns_that_cannot_be_sliced_by_are_refused():
    frame = pl.LazyFrame({"member": [True] * 51, "url": range(51)})
    assert len(find_slices(frame[:50], ["url"])) == 51
    for column, message in (
        ("url", "'url' has 51 values"),
        ("sight", "no column 'sight' to slice by; there are member, url"),
    ):
        with pytest.raises(RequestError, match=message):
            find_slices(frame, [column])
