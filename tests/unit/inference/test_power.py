from math import comb, nan

import numpy as np
import polars as pl
import pytest
from scipy.special import ndtr

from mia_batch.errors import SettingsError
from mia_batch.inference.comparison import collection_test, read_comparison_sets
from mia_batch.inference.conformal import (
    p_values,
    q_values,
    tie_draws,
    weighted_q_values,
)
from mia_batch.inference.power import (
    Design,
    compute_area,
    compute_effect,
    compute_power,
    nulls_to_name,
    simulate,
)
from mia_batch.inference.sets import needed_for_bound, top_bound
from mia_batch.inference.verdicts import (
    planned_power,
    power_findings,
    verdicts,
    weigh,
    weight_findings,
)
from tests.unit.inference.scored import plan, rows, table

BOOKS = table(
    *(rows("target", [0] * 4, group=f"asked {book}") for book in range(3)),
    *(
        rows("non_member", [0] * 4, group=f"null {book}", n_words=50 + book)
        for book in range(5)
    ),
    rows("non_member", [0] * 2, group="small", n_words=None),
).lazy()
TEXTS = table(rows("target", [0] * 20), rows("non_member", [0] * 199)).lazy()


def test_texts_of_a_length_without_enough_nulls_cannot_make_a_list():
    def power_of(*n_words):
        lengths = [rows("target", [0], n_words=n) for n in n_words]
        nulls = (
            rows("non_member", [0] * 19, n_words=10),
            rows("non_member", [0] * 9, n_words=80),
        )
        power = planned_power(table(*lengths, *nulls).lazy(), plan(length_edges=(50,)))
        assert power is not None
        return power

    assert power_of(10, 10).needed == 2
    assert power_of(10, 80).needed is None
    assert power_of(80, 80).smallest_p == 0.1


SHORT = [rows("target", [0] * 2, group=f"short {number}") for number in range(3)]
WITH_SHORT = table(BOOKS.collect().to_dicts(), *SHORT).lazy()
LENGTHS = table(
    rows("target", [0] * 3, n_words=10),
    rows("non_member", [0] * 9, n_words=12),
    rows("non_member", [0] * 30, n_words=80),
).lazy()
GROUPS = {"level": "group", "windows_per_group": 4}


@pytest.mark.parametrize(
    ("targets", "changes", "expected"),
    [
        (TEXTS, {"q": 0.1}, {"n_tests": 20, "n_null": 199, "needed": 1}),
        (BOOKS, {"q": 0.5}, {"n_tests": 12, "n_null": 6, "needed": 11}),
        (BOOKS, GROUPS | {"q": 0.5}, {"n_tests": 3, "n_null": 5, "needed": 1}),
        (
            BOOKS,
            GROUPS | {"level": "collection"},
            {"n_tests": 3, "n_null": 5, "together": 1 / comb(8, 3)},
        ),
        (LENGTHS, {"length_edges": (50,)}, {"n_null": 9, "for_bound": None}),
        (WITH_SHORT, GROUPS | {"q": 0.5}, {"n_tests": 6, "n_usable": 3, "needed": 2}),
        (
            WITH_SHORT,
            GROUPS | {"q": 0.3},
            {"n_tests": 6, "n_usable": 3, "needed": None},
        ),
    ],
)
def test_power_of_a_plan(targets, changes, expected):
    power = planned_power(targets, plan(**changes))
    assert {name: getattr(power, name) for name in expected} == expected


HARMONIC = sum(1 / i for i in range(1, 1001))


@pytest.mark.parametrize(
    ("n_tests", "n_null", "q", "adjustment", "needed"),
    [
        (1000, 300, 0.05, "bh", 67),
        (50, 18, 0.05, "bh", None),  # 19 is below 1 / q
        (50, 19, 0.05, "bh", 50),
        (50, 0, 0.05, "bh", None),
        (50, 100, 0.05, "bh", 10),
        (20, 199, 0.1, "bh", 1),
        (20, 198, 0.1, "bh", 2),
        (1000, 3000, 0.05, "by", -int(-1000 * HARMONIC // (0.05 * 3001))),
        # Two ranks count: 100 / (1 + 1/2), and 27 * 0.015 / 0.05 = 8.1
        (
            27,
            99,
            0.05,
            "e-bh",
            9,
        ),
    ],
)
def test_so_many_must_stand_out(n_tests, n_null, q, adjustment, needed):
    assert compute_power(n_tests, n_null, q, adjustment).needed == needed


@pytest.mark.parametrize("n_null", [5, 18, 19, 40, 199, 1000])
@pytest.mark.parametrize("adjustment", ["bh", "by"])
def test_so_many_that_beat_every_null_are_reported_and_one_fewer_are_not(
    n_null, adjustment
):
    power = compute_power(20, n_null, 0.1, adjustment)
    p = np.ones(20)
    for above in range(1, 21):
        p[:above] = power.smallest_p
        reported = (q_values(p, adjustment) <= 0.1).sum() > 0
        assert reported == (power.needed is not None and above >= power.needed)


def facts(targets, **changes):
    findings = power_findings(targets, plan(**changes))
    return {
        row["statistic"]: (row["value"], row["verdict"]) for row in findings.to_dicts()
    }


@pytest.mark.parametrize("adjustment", ["bh", "by", "e-bh"])
@pytest.mark.parametrize("n_named", [1, 5, 20])
def test_so_many_nulls_name_as_many_and_one_fewer_do_not(n_named, adjustment):
    n_null = nulls_to_name(n_named, 27, 0.05, adjustment)
    assert compute_power(27, n_null, 0.05, adjustment).needed <= n_named
    fewer = compute_power(27, n_null - 1, 0.05, adjustment).needed
    assert fewer is None or fewer > n_named
    assert nulls_to_name(5, 27, 0.05, "bh") == 107


@pytest.mark.parametrize(("m", "n"), [(27, 25), (50, 20), (50, 100), (20, 199)])
def test_a_bound_needs_so_many_that_stand_out_and_one_fewer_give_none(m, n):
    needed = needed_for_bound(m, n)
    assert needed is not None
    targets = np.full(m, -1.0)
    targets[: needed - 1] = 2
    assert top_bound(targets, m, np.zeros(n)).at_least == 0
    targets[needed - 1] = 2
    assert top_bound(targets, m, np.zeros(n)).at_least >= 1
    assert needed_for_bound(3, 2) is None


def test_findings_about_power():
    findings = power_findings(TEXTS, plan(q=0.1))
    assert findings.select("check", "subject").unique().rows() == [("power", "target")]
    assert facts(TEXTS, q=0.1) == {
        "n_tests": (20, "text"),
        "n_usable": (20, None),
        "n_null": (199, None),
        "together": (1 / 10_000, "possible"),
        "smallest_p": (1 / 200, None),
        "q": (0.1, "bh"),
        "needed": (1, "possible"),
        "for_bound": (needed_for_bound(20, 199), "possible"),
        "n_named": (1, None),
        "nulls_needed": (199, None),
    }
    assert facts(TEXTS, q=0.001)["needed"] == (None, "impossible")
    assert facts(BOOKS, level="collection") == {
        "n_tests": (3, "group"),
        "n_usable": (3, None),
        "n_null": (6, None),
        "together": (1 / comb(9, 3), "possible"),
        "nulls_needed": (3, None),
    }
    alone = table(rows("target", [1])).lazy()
    assert planned_power(alone, plan()) is None
    assert power_findings(alone, plan()).is_empty()


def test_effects_are_areas_and_numbers_to_try_are_doubled():
    assert compute_effect(0.95) == pytest.approx(2.3262, abs=1e-4)
    assert compute_area(compute_effect(0.8)) == pytest.approx(0.8)
    assert compute_area(0) == 0.5
    assert Design(n_units=50, members=10, effect=1).sizes() == [
        10 * 2**power for power in range(7)
    ]
    for members in (0, 4):
        with pytest.raises(
            SettingsError, match=f"{members} members cannot be among 3 that are"
        ):
            Design(n_units=3, members=members, effect=1)


def test_members_that_always_stand_out_are_named_as_soon_as_their_number_allows_a_list():
    design = Design(n_units=50, members=10, effect=20)
    assert compute_power(50, 100, 0.05, "bh").needed == 10
    # A list needs one of 40 others above all 98 and itself
    one_fewer = simulate(design, 98)
    assert one_fewer.any_named == pytest.approx(40 / 138, abs=0.06)
    enough = simulate(design, 100)
    assert (enough.named, enough.any_named) == (10, 1)
    assert 0.02 < enough.false < 0.06  # 40/50 of q, and 0.04 is its law
    dependent = Design(n_units=50, members=10, effect=20, adjustment="by")
    assert simulate(dependent, 100).named == 0


def test_the_law_of_all_together_is_that_of_the_rank_sum():
    """Scipy's test of the same scores, by its normal law; 40 + 40 are many."""
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(5)
    target_scores, nulls = rng.standard_normal((2, 2000, 40))
    target_scores[:, :20] += 1
    p = mannwhitneyu(target_scores, nulls, alternative="greater", axis=1).pvalue
    simulated = simulate(Design(n_units=40, members=20, effect=1), 40)
    assert simulated.together == pytest.approx(np.mean(p <= 0.05), abs=0.06)


def select_reference(scores, own_weights, nulls, weights, q, draw):
    """Jin and Candes 2023, algorithm 1 with homogeneous pruning, line by line."""
    m, total = len(scores), sum(weights)

    def p(score, own_weight, further):
        at_least = sum(
            w for null, w in zip(nulls, weights, strict=True) if null >= score
        )
        return (at_least + further) / (total + own_weight)

    first = {}
    for j in range(m):
        other_p = [
            0
            if k == j
            else p(scores[k], own_weights[j], own_weights[j] * (scores[j] >= scores[k]))
            for k in range(m)
        ]
        size = max(
            r for r in range(m + 1) if sum(o <= q * r / m + 1e-12 for o in other_p) >= r
        )
        if p(scores[j], own_weights[j], own_weights[j]) <= q * size / m + 1e-12:
            first[j] = draw * size
    most_reported = max(
        r
        for r in range(m + 1)
        if sum(n_reported <= r for n_reported in first.values()) >= r
    )
    return {j for j, n_reported in first.items() if n_reported <= most_reported}


@pytest.mark.parametrize("seed", range(6))
def test_the_list_of_weighted_p_values_equals_its_reference(seed):
    rng = np.random.default_rng(seed)
    own_weights, weights = rng.gamma(1, size=12), rng.gamma(1, size=90)
    scores, nulls = (
        rng.normal(2 * (np.arange(12) < 7), 1),
        np.round(rng.normal(size=90), 1),
    )
    p = p_values(scores, nulls, weights=weights, score_weights=own_weights)
    names = [f"t{number}" for number in range(12)]
    q = weighted_q_values(scores, p, own_weights, weights.sum(), 0.15, names, seed)
    draw = tie_draws(["\n".join(names)], seed)[0]
    of_q = select_reference(scores, own_weights, nulls, weights, 0.15, draw)
    assert set(np.flatnonzero(q <= 0.15)) == of_q
    of_half = select_reference(scores, own_weights, nulls, weights, 0.5, draw)
    assert set(np.flatnonzero(q <= 0.5)) == of_half | of_q


def test_weighted_p_values_by_hand():
    """The weights 4 and 1 of the two highest nulls, and the score's own, of all."""
    p = p_values(
        np.array([5, 9.0, 5]),
        np.array([7, 6, 1.0]),
        weights=np.array([4, 1, 3.0]),
        score_weights=np.array([2, 2, nan]),
    )
    assert p[:2].tolist() == [7 / 10, 2 / 10]
    assert np.isnan(p[2])


def test_together_by_odds_equals_the_sum_over_all_ways():
    """Of six ways to name two of four groups those of rank sum 6 and 7 count by their odds."""
    odds = np.array([1, 2, 0.5, 4])
    test = collection_test(np.array([4, 2.0]), np.array([1, 3.0]), 0, odds)
    ways = {(0, 1): 6, (0, 2): 5, (0, 3): 7, (1, 2): 3, (1, 3): 5, (2, 3): 4}
    weight = {way: odds[list(way)].prod() for way in ways}
    exact = sum(weight[way] for way, total in ways.items() if total >= 6) / sum(
        weight.values()
    )
    assert test.method == "permutation_by_odds"
    assert test.p_value == pytest.approx(exact, abs=0.02)


def shifted_sets(rng, shift, n_targets=40, n_nulls=200, **columns):
    """Targets whose scores and blind scores are higher, nothing else."""
    visible = rng.normal(size=n_targets + n_nulls) + shift * (
        np.arange(n_targets + n_nulls) < n_targets
    )
    score = visible + rng.standard_t(4, visible.size)
    frame = table(
        rows("target", score[:n_targets], **columns),
        rows("non_member", score[n_targets:], **columns),
    )
    share = np.clip(ndtr((visible - shift / 2) / (1 + shift / 2)), 0.001, 0.999)
    return frame, pl.DataFrame(
        {"target_id": frame["target_id"], "targets_blind_v1": share}
    )


def test_weights_keep_the_level_where_equal_nulls_do_not():
    rng, equal, weighted = np.random.default_rng(4), [], []
    for _ in range(30):
        frame, blind = shifted_sets(rng, 1.0)
        odds = weigh(
            read_comparison_sets(frame.lazy()), blind, plan(q=0.1), groups=False
        )
        score = frame["a_v1"].to_numpy()
        weights, own_weights = odds.by_row[40:], odds.by_row[:40]
        equal.append((p_values(score[:40], score[40:]) <= 0.05).mean())
        p = p_values(score[:40], score[40:], weights=weights, score_weights=own_weights)
        weighted.append((p <= 0.05).mean())
    assert np.mean(equal) > 0.11
    assert np.mean(weighted) < 0.07


def find_weights(frame, blind, *, verdict="separable", **changes):
    row = {"check": "blind_baseline", "subject": "targets", "statistic": "roc_auc"}
    baseline = pl.DataFrame([row | {"verdict": verdict, "p_value": None}])
    findings = weight_findings(frame.lazy(), blind, baseline, plan(**changes))
    return {row["statistic"]: row for row in findings.iter_rows(named=True)}


def test_weights_are_used_only_where_sets_are_separable_and_overlap():
    rng = np.random.default_rng(1)
    near, far = shifted_sets(rng, 0.8), shifted_sets(rng, 6.0)
    effective = find_weights(*near)["n_effective"]
    assert effective["verdict"] == "used"
    assert 40 < effective["value"] < 150
    assert find_weights(*near)["n_null"]["value"] == 200
    assert (
        find_weights(*near, verdict="undecided")["n_effective"]["verdict"]
        == "not_needed"
    )
    refused = find_weights(*far)["n_effective"]
    assert refused["verdict"] == "no_overlap"
    assert refused["reason"].startswith(
        "weighted non-members can still be told from targets"
    )
    too_few = find_weights(near[0][:70], near[1])["n_effective"]["reason"]
    assert too_few.startswith(
        "too few non-members are like the targets: weighted, they count as 1"
    )
    assert weight_findings(
        near[0].lazy(),
        near[1],
        pl.DataFrame(
            schema={"check": str, "subject": str, "statistic": str, "verdict": str}
        ),
        plan(),
    ).is_empty()


def test_sets_that_differ_otherwise_are_still_separable():
    """Targets lie at both ends of the nulls, which no straight line of log-odds describes."""
    rng = np.random.default_rng(2)
    frame, blind = shifted_sets(rng, 0.0, n_targets=100)
    share = np.r_[rng.choice([0.05, 0.95], 100), rng.uniform(0.2, 0.8, 200)]
    blind = blind.with_columns(targets_blind_v1=share + rng.uniform(0, 0.01, 300))
    reason = find_weights(frame, blind, q=0.2)["n_effective"]["reason"]
    assert reason.startswith("weighted non-members can still be told from targets")


def test_verdicts_with_weights():
    frame, blind = shifted_sets(np.random.default_rng(1), 1.0)
    all_verdicts = pl.concat(verdicts(frame.lazy(), ["a_v1"], plan(), blind=blind[1:]))
    assert all_verdicts["estimate"].is_null().all()
    assert all_verdicts["method"].unique().to_list() == ["weighted_conformal"]
    assert all_verdicts["adjustment"].unique().to_list() == ["wcs"]
    assert all_verdicts.filter(pl.col("n_null") >= 150).is_empty()
    assert all_verdicts["p_value"].null_count() == 1
    assert (
        all_verdicts["reason"][0]
        == "the blind classifiers did not see it, so that it has no weight"
    )


def test_groups_with_weights_or_no_answer_where_sets_do_not_overlap():
    names = pl.Series([f"g{number // 2}" for number in range(240)])

    def answers(shift, seed):
        frame, blind = shifted_sets(np.random.default_rng(seed), shift)
        frame = frame.with_columns(group=names).lazy()
        return pl.concat(verdicts(frame, ["a_v1"], plan(level="group"), blind=blind))

    apart, overlapping = answers(6.0, 1), answers(0.3, 0)
    assert apart["p_value"].null_count() == apart.height
    assert apart["reason"][0].startswith("too few non-members are like the targets")
    assert apart["reason"].null_count() == 0
    of_groups = overlapping.filter(level="group")
    assert of_groups["method"].unique().to_list() == ["weighted_conformal_mean_of_2"]
    assert of_groups["p_value"].null_count() == 0
    assert of_groups["n_null"][0] < 90
    assert overlapping.filter(level="collection")["method"].to_list() == [
        "permutation_by_odds"
    ]
    assert overlapping.filter(level="target")["adjustment"].unique().to_list() == ["by"]
