"""Whether a service changed while it was asked, by its versions and by scores in time."""

from itertools import permutations

import numpy as np
import polars as pl
import pytest

from mia_batch.evidence.lot import lot_numbers
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.order import (
    change_p_value,
    change_point,
    order_findings,
    score_rows,
    sort_by_time,
)

N = 90
IN_TURN = [
    "fp_a" if dice else "fp_b" for dice in np.random.default_rng(5).random(180) < 0.4
]


def scores_of(values, *, n_targets: int = 30) -> pl.DataFrame:
    """Every third text is audited."""
    is_target = [number % (N // n_targets) == 0 for number in range(N)]
    return pl.DataFrame(
        {
            "target_id": [f"t{number}" for number in range(N)],
            "role": [
                "target" if is_target_row else "non_member"
                for is_target_row in is_target
            ],
            "member": [None if is_target_row else False for is_target_row in is_target],
            "score": values,
        }
    )


def responses_of(versions: list[str], served: str | list[str] = "m") -> pl.DataFrame:
    """Two answers about each text, one after the other."""
    names = [f"t{number // 2}" for number in range(len(versions))]
    columns = {
        "target_id": names,
        "system_fingerprint": versions,
        "served_model": served,
    }
    table = pl.DataFrame(columns, schema_overrides={"served_model": pl.String})
    return table.with_columns(view=pl.lit("probe"), n_samples=1)


def findings(
    versions, values=None, *, by_lot=True, exploratory=False, **served
) -> pl.DataFrame:
    values = np.random.default_rng(0).normal(size=N) if values is None else values
    return order_findings(
        scores_of(values),
        responses_of(versions, **served),
        seed=0,
        by_lot=by_lot,
        exploratory=exploratory,
    )


def answer(run_findings):
    rows = run_findings.filter(statistic="answer").select("verdict", "reason").rows()
    return rows[0] if rows else None


def version_verdict(run_findings: pl.DataFrame) -> str | None:
    return next(iter(run_findings.filter(statistic="n_versions")["verdict"]), None)


def distance_by_hand(values):
    """Pettitt's statistic by its first definition: signs of all pairs across the cut."""
    sums = [
        sum(
            np.sign(values[j] - values[i])
            for i in range(k)
            for j in range(k, len(values))
        )
        for k in range(1, len(values))
    ]
    return max(abs(partial_sum) for partial_sum in sums)


@pytest.mark.parametrize(
    "values", [[1, 2, 3, 9, 8, 7], [1, 1, 2, 1, 2, 2, 2], [5, 1, 4, 2, 3]]
)
def test_the_distance_is_that_of_pettitt(values):
    assert change_point(np.array(values, float))[1] == distance_by_hand(values)


def test_by_hand_the_level_changes_after_the_third_value():
    assert change_point(np.array([1.0, 2, 3, 9, 8, 7])) == (3, 9.0)
    orders = [distance_by_hand(order) for order in permutations([1, 2, 3, 9, 8, 7])]
    exact = float(np.mean([distance >= 9 for distance in orders]))
    p_value = change_p_value(np.array([1.0, 2, 3, 9, 8, 7]), seed=0)
    assert p_value == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 2000) ** 0.5)


def test_values_that_are_all_the_same_show_nothing():
    assert change_p_value(np.ones(20), seed=0) == 1.0
    assert change_p_value(np.ones(5000), seed=0) == 1.0


def test_the_limit_for_many_values_is_near_the_shuffles_of_as_many(monkeypatch):
    values = np.random.default_rng(1).normal(size=1000) + np.linspace(0, 0.2, 1000)
    shuffled = change_p_value(values, seed=0)
    monkeypatch.setattr("mia_batch.inference.order._MOST_SHUFFLED", 10)
    assert change_p_value(values, seed=0) == pytest.approx(shuffled, abs=0.02)


def test_scores_that_do_not_move_are_said_to_move_as_seldom_as_promised():
    # Texts of a group share most of their score; the order by lot is all that the test
    # needs.
    rng, n_moved = np.random.default_rng(2), 0
    for _ in range(200):
        groups = rng.normal(size=9)[rng.permutation(np.repeat(np.arange(9), 10))]
        rows = score_rows(scores_of(groups + 0.1 * rng.normal(size=N)), seed=0)
        assert {row["subject"] for row in rows} == {"comparison texts", "audited texts"}
        n_moved += any(row["verdict"] == "moves" for row in rows)
    assert n_moved <= 7  # of 200 at 1 %: more has a probability of 0.001


@pytest.mark.parametrize("way", [-1, 1])
def test_scores_that_move_with_the_order_of_asking_withhold_the_answer(way):
    rng = np.random.default_rng(3)
    run_findings = findings(
        ["fp"] * 2 * N, rng.normal(size=N) + way * 3 * (np.arange(N) > 30)
    )
    verdict, reason = answer(run_findings)
    verb = "rose" if way > 0 else "fell"
    assert verdict == "withheld"
    assert f"scores of comparison texts {verb} after the first 2" in reason
    assert f"scores of audited texts {verb} after the first 1" in reason


def test_a_version_that_changes_in_the_course_of_the_run_withholds_the_answer():
    run_findings = findings(["fp_a"] * 50 + ["fp_b"] * 130)
    reason = "50 answers of version fp_a, then 130 answers of version fp_b"
    assert answer(run_findings) == (
        "withheld",
        f"the service changed while it was asked ({reason})",
    )
    assert (
        answer(findings(["fp_a"] * 50 + ["fp_b"] * 130, exploratory=True))[0]
        == "exploratory"
    )


def test_a_model_of_another_name_is_another_version():
    run_findings = findings([None] * 180, served=["m-may"] * 100 + ["m-june"] * 80)
    assert "100 answers of version m-may, not given, then 80" in answer(run_findings)[1]


@pytest.mark.parametrize(
    ("versions", "verdict"),
    [
        (["fp"] * 180, None),
        (IN_TURN, "in_turn"),
        ([f"fp_{number}" for number in range(180)], "in_turn"),
        (["fp_a"] * 179 + ["fp_b"], "few"),
    ],
)
def test_versions_that_come_in_turn_or_seldom_turn_no_answer(versions, verdict):
    run_findings = findings(versions)
    assert (version_verdict(run_findings), answer(run_findings)) == (verdict, None)


def test_versions_that_depend_on_the_role_withhold_the_answer():
    roles = scores_of(np.zeros(N))["role"]
    versions = [
        "fp_a" if role == "target" else "fp_b" for role in roles for _ in range(2)
    ]
    verdict, reason = answer(findings(versions))
    assert verdict == "withheld"
    assert reason.startswith(
        "audited and comparison texts met different versions of the service"
    )


def test_without_an_order_by_lot_any_other_version_withholds_the_answer():
    older = responses_of(IN_TURN).with_columns(
        # An older version kept none
        target_id=pl.when(pl.int_range(180) >= 40).then("target_id")
    )
    of_older = order_findings(
        scores_of(np.zeros(N))[: N // 2], older, 0, by_lot=False, exploratory=False
    )
    assert answer(of_older)[0] == "withheld"
    verdict, reason = answer(findings(IN_TURN, by_lot=False))
    assert (verdict, reason[:36]) == (
        "withheld",
        "the service changed while it was ask",
    )


def test_of_a_run_that_has_grown_clusters_are_compared_by_time():
    # Comparison texts 60 to 89 were added in six groups, and the service is worse by
    # then.
    groups = [f"g{number // 5}" for number in range(N)]
    values = np.random.default_rng(6).normal(size=N) - 5 * (np.arange(N) >= 60)
    scores = scores_of(values, n_targets=1).with_columns(cluster=pl.Series(groups))
    responses = responses_of(["fp"] * 180).with_columns(sent=pl.int_range(180))
    means = sort_by_time(scores[::-1], responses)
    # The one audited text, and the others
    assert means["cluster"].to_list()[:2] == [
        "g0",
        "g0",
    ]
    assert means.filter(role="non_member")["cluster"].to_list() == [
        f"g{n}" for n in range(18)
    ]
    (row,) = score_rows(means, seed=0)
    assert (row["value"], row["verdict"]) == (pytest.approx(12, abs=1), "moves")


@pytest.mark.parametrize("fall", [0.05, 0.1, 0.3])
def test_a_service_that_becomes_worse_gives_no_false_list_in_an_order_by_lot(fall):
    # Sixty texts against 120, nobody a member; the service is worse after a third of
    # the run.
    rng, names = (
        np.random.default_rng(8),
        pl.Series([f"{number:032x}" for number in range(180)]),
    )
    lists = {"targets first": 0, "by lot": 0}
    for audit in range(200):
        by_lot = lot_numbers(names, seed=audit).argsort().argsort()
        for order, place in (("targets first", np.arange(180)), ("by lot", by_lot)):
            scores = rng.normal(0.35, 0.03, 180) * (1 - fall * (place >= 60))
            q = q_values(p_values(scores[:60], scores[60:]), "bh")
            lists[order] += bool((q <= 0.05).any())
    assert lists["by lot"] == 0
    assert (lists["targets first"] == 200) == (fall == 0.3)
