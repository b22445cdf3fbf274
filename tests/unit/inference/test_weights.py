from __future__ import annotations

from math import nan

import numpy as np
import polars as pl
import pytest
from scipy.special import ndtr

from mia_batch.inference.comparison import collection_test, read_comparison_sets
from mia_batch.inference.conformal import p_values, q_values, tie_draws, weighted_q_values
from mia_batch.inference.verdicts import verdicts
from mia_batch.inference.weights import weigh, weight_findings
from tests.unit.inference.scored import plan, rows, table


def selected(scores, own, nulls, weights, q, draw):
    """Jin and Candes 2023, algorithm 1 with homogeneous pruning, line by line."""
    m, total = len(scores), sum(weights)

    def p(score, own_weight, further):
        at_least = sum(w for null, w in zip(nulls, weights, strict=True) if null >= score)
        return (at_least + further) / (total + own_weight)

    first = {}
    for j in range(m):
        others = [
            0 if k == j else p(scores[k], own[j], own[j] * (scores[j] >= scores[k]))
            for k in range(m)
        ]
        size = max(r for r in range(m + 1) if sum(o <= q * r / m + 1e-12 for o in others) >= r)
        if p(scores[j], own[j], own[j]) <= q * size / m + 1e-12:
            first[j] = draw * size
    most = max(r for r in range(m + 1) if sum(one <= r for one in first.values()) >= r)
    return {j for j, one in first.items() if one <= most}


@pytest.mark.parametrize("seed", range(6))
def test_the_list_of_weighted_p_values_equals_its_reference(seed):
    rng = np.random.default_rng(seed)
    own, weights = rng.gamma(1, size=12), rng.gamma(1, size=90)
    scores, nulls = rng.normal(2 * (np.arange(12) < 7), 1), np.round(rng.normal(size=90), 1)
    p = p_values(scores, nulls, weights=weights, own=own)
    names = [f"t{number}" for number in range(12)]
    q = weighted_q_values(scores, p, own, weights.sum(), 0.15, names, seed)
    draw = tie_draws(["\n".join(names)], seed)[0]
    of_q = selected(scores, own, nulls, weights, 0.15, draw)
    assert set(np.flatnonzero(q <= 0.15)) == of_q
    of_half = selected(scores, own, nulls, weights, 0.5, draw)
    assert set(np.flatnonzero(q <= 0.5)) == of_half | of_q


def test_equal_weights_list_what_benjamini_hochberg_lists():
    scores, nulls, ones = np.r_[np.full(6, 9.0), 0, nan], np.arange(1, 100) / 99, np.ones(8)
    p = p_values(scores, nulls, weights=np.ones(99), own=ones)
    q = weighted_q_values(scores, p, ones, 99.0, 0.03, [], 0)
    assert q_values(p, "bh")[0] == pytest.approx(8 / 600)
    assert q[:7].tolist() == [0.02] * 6 + [1]
    assert np.isnan(q[7])


def test_weighted_p_values_by_hand():
    """The weights 4 and 1 of the two highest nulls, and the score's own, of all."""
    p = p_values(
        np.array([5, 9.0, 5]),
        np.array([7, 6, 1.0]),
        weights=np.array([4, 1, 3.0]),
        own=np.array([2, 2, nan]),
    )
    assert p[:2].tolist() == [7 / 10, 2 / 10]
    assert np.isnan(p[2])


def test_together_by_odds_equals_the_sum_over_all_ways():
    """Of six ways to name two of four groups those of rank sum 6 and 7 count by their odds."""
    odds = np.array([1, 2, 0.5, 4])
    made = collection_test(np.array([4, 2.0]), np.array([1, 3.0]), 0, odds)
    ways = {(0, 1): 6, (0, 2): 5, (0, 3): 7, (1, 2): 3, (1, 3): 5, (2, 3): 4}
    weight = {way: odds[list(way)].prod() for way in ways}
    exact = sum(weight[way] for way, total in ways.items() if total >= 6) / sum(weight.values())
    assert made.method == "permutation_by_odds"
    assert made.p_value == pytest.approx(exact, abs=0.02)


def shifted(rng, shift, n_targets=40, n_nulls=200, **columns):
    """Targets whose scores and blind scores are higher, nothing else."""
    seen = rng.normal(size=n_targets + n_nulls) + shift * (
        np.arange(n_targets + n_nulls) < n_targets
    )
    score = seen + rng.standard_t(4, seen.size)
    frame = table(
        rows("target", score[:n_targets], **columns),
        rows("non_member", score[n_targets:], **columns),
    )
    share = np.clip(ndtr((seen - shift / 2) / (1 + shift / 2)), 0.001, 0.999)
    return frame, pl.DataFrame({"target_id": frame["target_id"], "targets_blind_v1": share})


def test_weights_keep_the_level_where_equal_nulls_do_not():
    rng, equal, weighted = np.random.default_rng(4), [], []
    for _ in range(60):
        frame, blind = shifted(rng, 1.0)
        odds = weigh(read_comparison_sets(frame.lazy()), blind, plan(q=0.1), groups=False)
        score = frame["a_v1"].to_numpy()
        weights, own = odds.of_rows[40:], odds.of_rows[:40]
        equal.append((p_values(score[:40], score[40:]) <= 0.05).mean())
        made = p_values(score[:40], score[40:], weights=weights, own=own)
        weighted.append((made <= 0.05).mean())
    assert np.mean(equal) > 0.11
    assert np.mean(weighted) < 0.07


def found(frame, blind, *, verdict="separable", **changes):
    row = {"check": "blind_baseline", "subject": "targets", "statistic": "roc_auc"}
    baseline = pl.DataFrame([row | {"verdict": verdict}])
    made = weight_findings(frame.lazy(), blind, baseline, plan(**changes))
    return {row["statistic"]: row for row in made.iter_rows(named=True)}


def test_weights_are_used_only_where_sets_are_separable_and_overlap():
    rng = np.random.default_rng(1)
    near, far = shifted(rng, 0.8), shifted(rng, 6.0)
    used = found(*near)["n_effective"]
    assert used["verdict"] == "used"
    assert 40 < used["value"] < 150
    assert found(*near)["n_null"]["value"] == 200
    assert found(*near, verdict="undecided")["n_effective"]["verdict"] == "not_needed"
    refused = found(*far)["n_effective"]
    assert refused["verdict"] == "no_overlap"
    assert refused["reason"].startswith("weighted non-members can still be told from targets")
    few = found(near[0][:70], near[1])["n_effective"]["reason"]
    assert few.startswith("too few non-members are like the targets: weighted, they count as 1")
    assert weight_findings(
        near[0].lazy(),
        near[1],
        pl.DataFrame(schema={"check": str, "subject": str, "statistic": str, "verdict": str}),
        plan(),
    ).is_empty()


def test_sets_that_differ_otherwise_are_still_told_apart():
    """Targets lie at both ends of the nulls, which no straight line of log-odds describes."""
    rng = np.random.default_rng(2)
    frame, blind = shifted(rng, 0.0, n_targets=100)
    share = np.r_[rng.choice([0.05, 0.95], 100), rng.uniform(0.2, 0.8, 200)]
    blind = blind.with_columns(targets_blind_v1=share + rng.uniform(0, 0.01, 300))
    reason = found(frame, blind, q=0.2)["n_effective"]["reason"]
    assert reason.startswith("weighted non-members can still be told from targets")


def test_verdicts_with_weights():
    frame, blind = shifted(np.random.default_rng(1), 1.0)
    made = pl.concat(verdicts(frame.lazy(), ["a_v1"], plan(), blind=blind[1:]))
    assert made["estimate"].is_null().all()
    assert made["method"].unique().to_list() == ["weighted_conformal"]
    assert made["adjustment"].unique().to_list() == ["wcs"]
    assert made.filter(pl.col("n_null") >= 150).is_empty()
    assert made["p_value"].null_count() == 1
    assert made["reason"][0] == "the blind classifiers did not see it, so that it has no weight"


def test_groups_with_weights():
    frame, blind = shifted(np.random.default_rng(0), 0.3)
    names = pl.Series([f"g{number // 2}" for number in range(240)])
    frame = frame.with_columns(group=names)
    made = pl.concat(verdicts(frame.lazy(), ["a_v1"], plan(level="group"), blind=blind))
    of = made.filter(level="group")
    assert of["method"].unique().to_list() == ["weighted_conformal_mean_of_2"]
    assert of["p_value"].null_count() == 0
    assert of["n_null"][0] < 90
    assert made.filter(level="collection")["method"].to_list() == ["permutation_by_odds"]
    assert made.filter(level="target")["adjustment"].unique().to_list() == ["by"]


def test_no_answer_where_sets_do_not_overlap():
    frame, blind = shifted(np.random.default_rng(1), 6.0)
    frame = frame.with_columns(group=pl.Series([f"g{number // 2}" for number in range(240)]))
    made = pl.concat(verdicts(frame.lazy(), ["a_v1"], plan(level="group"), blind=blind))
    assert made["p_value"].null_count() == made.height
    assert made["reason"][0].startswith("too few non-members are like the targets")
    assert made["reason"].null_count() == 0
