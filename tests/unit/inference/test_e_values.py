"""E-values of groups asked in rounds: by hand, under every rule to stop, and in null audits."""

import numpy as np
import pytest

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.e_values import Rounds, RoundsTest, decide, e_bh, plan_rounds
from mia_batch.inference.findings import AttackScores
from tests.unit.inference.scored import plan, rows, table

ROUNDS = Rounds(ends=(1, 2), n_nulls=(3, 1), shares=(0.25, 0.75), values=(8 / 3, 4 / 3))
# Means of both windows: 0, 2, 1.5
NULLS = np.array([[0.0, 0.0], [1.0, 3.0], [2.0, 1.0]])


@pytest.mark.parametrize(
    ("n_windows", "n_null", "expected"),
    [
        (
            8,
            25,
            Rounds(
                ends=(1, 2, 4, 8),
                n_nulls=(25, 12, 6, 3),
                shares=(0, 0, 0, 1),
                values=(26,),
            ),
        ),
        (1, 39, Rounds(ends=(1,), n_nulls=(39,), shares=(1,), values=(40,))),
        (
            40,
            99,  # 0.05 * 100 = 5, so two ranks count: 100 * 2/3 and 100 * 1/3
            Rounds(
                ends=(5, 10, 20, 40),
                n_nulls=(99, 49, 24, 12),
                shares=(0, 0, 0, 1),
                values=(200 / 3, 100 / 3),
            ),
        ),
    ],
)
def test_rounds_are_planned_from_counts_alone(n_windows, n_null, expected):
    rounds = plan_rounds(n_windows, n_null, 0.05)
    assert rounds.ends == expected.ends
    assert rounds.n_nulls == expected.n_nulls
    assert rounds.shares == pytest.approx(expected.shares)
    assert rounds.values == pytest.approx(expected.values)


@pytest.mark.parametrize("n_null", [0, 1, 5, 40, 250, 1000])
def test_the_e_values_of_all_ranks_are_one_on_average(n_null):
    rounds = plan_rounds(16, n_null, 0.05)
    assert sum(rounds.values) / (n_null + 1) == pytest.approx(1)
    assert sum(rounds.shares) == pytest.approx(1)
    assert list(rounds.n_nulls) == sorted(rounds.n_nulls, reverse=True)
    # Many nulls allow early acceptance: of 10 ranks the first is 2000 / 2.929.
    assert plan_rounds(40, 1999, 0.05).shares[:3] == pytest.approx([2.9289682 / 50] * 3)


def test_two_rounds_by_hand():
    groups = np.array([[9.0, 9.0], [2.0, 9.0]])
    after_one = decide(groups, NULLS, ROUNDS, 0.9, n_rounds=1)
    # Ranks 1 and 2 of 4, for an equal null counts as higher; only rank 1 may go on.
    assert after_one.values == pytest.approx([0.25 * 8 / 3, 0.25 * 4 / 3])
    assert after_one.undecided.tolist() == [True, False]
    assert after_one.nulls_left.tolist() == [False, False, True]
    after_two = decide(groups, NULLS, ROUNDS, 0.9)
    assert after_two.values == pytest.approx([8 / 3, 1 / 3])
    assert after_two.n_windows.tolist() == [2, 1]
    assert after_two.n_null_windows.tolist() == [1, 1, 2]
    assert after_two.accepted.tolist() == [True, False]  # 8/3 >= 2 / 0.9
    assert not after_two.undecided.any()


def test_an_accepted_group_and_one_out_of_reach_are_asked_no_more():
    rounds = Rounds(ends=(1, 2), n_nulls=(9, 9), shares=(0.5, 0.5), values=(10.0,))
    nulls = np.zeros((9, 2))
    alone = decide(np.array([[1.0, np.nan]]), nulls, rounds, 0.2)
    assert alone.accepted.tolist() == [True]  # 5 >= 1 / 0.2
    assert alone.n_windows.tolist() == [1]
    beyond = decide(
        np.array([[-1.0, np.nan]] * 2),
        nulls,
        Rounds(ends=(1, 2), n_nulls=(9, 9), shares=(0.9, 0.1), values=(10.0,)),
        0.2,
    )
    assert not beyond.accepted.any()
    # Rank 10 leaves; both could reach 1 at most
    assert beyond.n_windows.tolist() == [
        1,
        1,
    ]
    assert beyond.n_null_windows.tolist() == [1] * 9


def test_an_unscored_null_is_the_highest_and_an_unscored_group_has_nothing():
    groups = np.array([[9.0, 9.0], [np.nan, 9.0]])
    nulls = np.where(NULLS == 3.0, np.nan, NULLS)
    decision = decide(groups, nulls, ROUNDS, 0.9)
    assert decision.values == pytest.approx([8 / 3 / 4 + 3 / 4 * 8 / 3, 0])
    unscored = np.where(NULLS == 2.0, np.nan, NULLS)
    assert decide(groups, unscored, ROUNDS, 0.9, n_rounds=1).values[0] == pytest.approx(
        1 / 3
    )


def test_e_bh_lists_the_k_largest_where_the_kth_is_at_least_m_over_qk():
    values = np.array([50.0, 3.0, 0.0, 30.0])
    # 4 / (1 * 50) = 0.08, 4 / (2 * 30) = 0.067, 4 / (3 * 3) = 0.444, and 1
    assert e_bh(values) == pytest.approx([4 / 60, 4 / 9, 1, 4 / 60])


def dominating(pool, rounds):
    """What each of K + 1 units has where its first c(t) of the K + 1 are kept after each round."""
    values, remaining = np.zeros(len(pool)), np.arange(len(pool))
    for number, end in enumerate(rounds.ends):
        remaining = remaining[
            np.argsort(-pool[remaining, :end].mean(axis=1), kind="stable")
        ]
        of_rank = np.array(rounds.values[: remaining.size])
        values[remaining[: of_rank.size]] += rounds.shares[number] * of_rank
        remaining = remaining[
            : rounds.n_nulls[min(number + 1, len(rounds.n_nulls) - 1)]
        ]
    return values


@pytest.mark.parametrize("n_null", [4, 30, 250])
def test_no_rule_to_stop_exceeds_a_variable_of_expectation_one(n_null):
    """With hostile rules that know all scores; decimals make ties."""
    rng = np.random.default_rng(3)
    rounds = plan_rounds(8, n_null, 0.2)
    for decimals in (0, 9, 9, 9):
        groups, nulls = (rng.normal(size=(n, 8)).round(decimals) for n in (6, n_null))
        pools = [dominating(np.vstack([group, nulls]), rounds) for group in groups]
        assert [pool.mean() for pool in pools] == pytest.approx([1.0] * 6)
        largest = np.array([pool[0] for pool in pools]) + 1e-9
        for n_rounds in range(5):
            assert (
                decide(groups, nulls, rounds, 0.2, n_rounds=n_rounds).values <= largest
            ).all()
        for _ in range(20):
            ends = rng.choice([0, *rounds.ends], len(groups))
            stopped = np.where(np.arange(8) < ends[:, None], groups, np.nan)
            unasked = nulls + np.where(rng.random(n_null) < 0.1, np.nan, 0)[:, None]
            assert (decide(stopped, nulls, rounds, 0.2).values <= largest).all()
            assert (decide(groups, unasked, rounds, 0.2).values <= largest).all()
            subset = rng.random(len(groups)) < 0.5
            assert (
                decide(groups[subset], nulls, rounds, 0.9).values <= largest[subset]
            ).all()


def test_rows_of_groups_say_what_was_decided():
    """Two groups of 4 windows above 39 others of 4, one among them, and one of 1 window."""
    parts = [rows("target", [9.0 + i / 10] * 4, group=f"high {i}") for i in range(2)]
    parts += [
        rows("target", [-1.0] * 4, group="low"),
        rows("target", [9.0], group="short"),
    ]
    parts += [rows("non_member", [i / 39] * 4, group=f"null {i}") for i in range(39)]
    scores = table(*parts)
    group_plan = plan(level="group", adjustment="e-bh", q=0.1, windows_per_group=4)
    test = RoundsTest(read_comparison_sets(scores.lazy()), group_plan)
    values = scores["a_v1"].to_numpy()
    (rows_of_test,) = test.rows(AttackScores(attack="a_v1", scores=values))
    row_by_key = {row["key"]: row for row in rows_of_test.iter_rows(named=True)}
    # q (K + 1) = 4: two ranks, 40 * 2/3; both have the first, 4 / (2 * 26.7) = 0.075
    assert row_by_key["high 0"]["score"] == pytest.approx(80 / 3)
    assert row_by_key["high 0"]["p_value"] == pytest.approx(3 / 80)
    assert row_by_key["high 1"]["q_value"] == pytest.approx(0.075)
    assert row_by_key["low"]["score"] == 0
    assert row_by_key["low"]["q_value"] == 1
    assert row_by_key["short"]["p_value"] is None
    assert row_by_key["short"]["reason"] == "the group has 1 of 4 windows"
    assert rows_of_test["method"].unique().to_list() == ["e_value_mean_of_4_in_3"]
    counts: dict[str, float] = dict(
        test.findings(scores.lazy()).select("statistic", "value").iter_rows()
    )
    assert counts == {
        "n_accepted": 2,
        "n_out_of_reach": 2,
        "n_undecided": 0,
        "n_asked": 2 * 4 + 1 + 20 * 1 + 10 * 2 + 9 * 4,
        "n_planned": 42 * 4,
        "n_rounds": 3,
    }
    first = test.may_be_asked(0)
    assert first.len() == 42
    # Of each alike
    assert len({int(name[1:]) % 4 for name in first if int(name[1:]) < 12}) == 1
    assert test.may_be_asked(-1).len() == 42 * 4
    assert test.list_texts(test.decisions(values, 2), 2).len() == 4 * (2 + 9)
    assert not [*test.rows(AttackScores(attack="other_v1", scores=values))]
