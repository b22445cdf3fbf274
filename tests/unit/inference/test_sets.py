from itertools import combinations
from math import nan

import numpy as np
import polars as pl
import pytest
from scipy.stats import beta, binomtest, hypergeom, norm, t

from mia_batch.inference.conformal import p_values
from mia_batch.inference.sets import (
    DATASET_INFERENCE,
    Top,
    codec_findings,
    combination_findings,
    combine,
    few_books_findings,
    infer_dataset,
    max_t,
    top_bound,
)
from mia_batch.stats.intervals import roc_auc
from tests.unit.inference.scored import plan, rows, table


def find_codec(*parts):
    codec_rows = codec_findings(table(*parts).rename({"a_v1": "codec_v1"}).lazy())
    return {row["subject"]: row for row in codec_rows.iter_rows(named=True)}


def test_shares_of_targets_and_controls_by_hand_and_of_windows_alike():
    facts = find_codec(
        rows("target", [1.0, 1.0, 1.0, 0.0, None]), rows("non_member", [0.0, 1.0])
    )
    limits = binomtest(3, 4).proportion_ci()
    assert facts["targets"]["value"] == 0.75
    assert (facts["targets"]["low"], facts["targets"]["high"]) == pytest.approx(
        tuple(limits)
    )
    assert facts["non-members"]["value"] == 0.5
    alike = [
        row
        for n in range(10)
        for row in rows("target", [float(n % 2)] * 5, group=f"g{n}")
    ]
    facts = find_codec(alike, rows("non_member", [0.0]))
    # Ten groups of five texts each, all alike
    n = 10 * (norm.ppf(0.975) / t(9).ppf(0.975)) ** 2
    low, high = beta.ppf(0.025, n / 2, n / 2 + 1), beta.ppf(0.975, n / 2 + 1, n / 2)
    assert (facts["targets"]["low"], facts["targets"]["high"]) == pytest.approx(
        (low, high)
    )


@pytest.mark.parametrize(
    ("sizes", "worth"), [([40], "1"), ([20, 20, 20], "3"), ([60] + [5] * 8, "2.63")]
)
def test_groups_that_are_worth_fewer_than_four_carry_no_interval(sizes, worth):
    parts = [
        rows("target", [1.0, 0.0] * (n // 2) + [1.0] * (n % 2), group=f"g{i}")
        for i, n in enumerate(sizes)
    ]
    facts = find_codec(
        [row for part in parts for row in part], rows("non_member", [0.0])
    )
    assert facts["targets"]["value"] == pytest.approx(0.5, abs=0.1)
    assert (facts["targets"]["low"], facts["targets"]["high"]) == (None, None)
    assert facts["targets"]["reason"] == (
        "an interval needs 4 independent groups of texts of one size, these are worth "
        + worth
    )


def test_a_set_without_scores_has_a_reason():
    facts = find_codec(rows("target", [None]), rows("non_member", [0.0]))
    assert facts["targets"]["value"] is None
    assert facts["targets"]["reason"] == "no text of the set has a score"


ATTACKS = ["a_v1", "b_v1", "c_v1"]


def texts(rng, role, n, member, *, windows=1, shift=0.0, together=0.0, name=""):
    """Texts with three scores; those of a group share ``together`` of their deviation."""
    rows = []
    for number in range(n):
        common = together * rng.normal(size=3)
        for window in range(windows):
            scores = common + rng.normal(size=3) + shift
            key = {
                "role": role,
                "member": member,
                "group": f"{name or role}{member}{number}",
            }
            columns = dict(zip(ATTACKS, scores.tolist(), strict=True))
            rows.append(key | {"window_index": window} | columns)
    return rows


def scores(*parts):
    rows = [row for part in parts for row in part]
    frame = table(rows)
    return frame.with_columns(
        pl.Series(name, [row[name] for row in rows], pl.Float64) for name in ATTACKS[1:]
    )


def combine_scores(frame, seed=0):
    return combine(frame.lazy(), ATTACKS, seed=seed)


def test_p_values_of_non_members_are_uniform():
    """Known members are learned from against the others, of whose targets none is a member."""
    rng, shares = np.random.default_rng(1), []
    for _ in range(5):
        frame = scores(
            texts(rng, "target", 40, True, shift=1.0),
            texts(rng, "target", 39, False),
            texts(rng, "target", 40, None),
            texts(rng, "calibration", 20, True, shift=1.0),
        )
        combined_scores, member = combine_scores(frame), frame["member"]
        target_scores, null = (
            combined_scores[member.is_null()],
            combined_scores[(~member).fill_null(False)],
        )
        shares.append(float(np.mean(p_values(target_scores, null) <= 0.2)))
    error = np.sqrt(0.2 * 0.8 * 80 / (40 * 41 * 5))
    assert np.mean(shares) == pytest.approx(0.2, abs=3 * error)


def test_a_member_that_is_seen_in_one_attack_or_another_is_found():
    rng = np.random.default_rng(3)
    frame = scores(texts(rng, "target", 300, True), texts(rng, "target", 300, False))
    visible_attack = pl.Series(rng.integers(0, 3, frame.height))
    frame = frame.with_columns(
        pl.col(name) + 3 * (pl.col("member") & (visible_attack == attack_index))
        for attack_index, name in enumerate(ATTACKS)
    )
    member = frame["member"].to_numpy()
    together = roc_auc(member, combine_scores(frame))
    alone = max(roc_auc(member, frame[name].to_numpy()) for name in ATTACKS)
    assert together > alone + 0.1


def test_null_where_every_attack_is_and_where_there_is_too_little_to_learn_from():
    rng = np.random.default_rng(4)
    frame = scores(
        texts(rng, "target", 20, True, shift=1.0), texts(rng, "target", 20, False)
    )
    lost = frame.with_columns(
        pl.when(pl.int_range(pl.len()) != 3).then(name).alias(name) for name in ATTACKS
    )
    combined_scores = combine_scores(lost.with_columns(b_v1=pl.lit(None, pl.Float64)))
    assert np.flatnonzero(np.isnan(combined_scores)).tolist() == [3]
    assert np.isnan(combine_scores(frame[11:])).all()
    assert combination_findings(frame[11:].lazy())["verdict"].unique().to_list() == [
        "too_few"
    ]
    assert np.isfinite(combine_scores(frame[10:])).all()
    combination = combination_findings(frame[10:].lazy())
    assert combination.select("statistic", "value", "verdict").rows() == [
        ("n_members", 10.0, "all"),
        ("n_others", 20.0, "all"),
    ]


def test_no_text_is_scored_by_what_its_own_group_taught():
    """Labels and scores of a group's other windows change nothing of its windows' scores."""
    rng = np.random.default_rng(5)
    parts = (
        texts(rng, "calibration", 15, True, shift=1.0, windows=2),
        texts(rng, "calibration", 15, False, windows=2),
    )
    frame = scores(*parts)
    is_own = (pl.col("group") == "calibrationTrue3") & (pl.col("window_index") == 1)
    changed = frame.with_columns(
        pl.when(~is_own).then(name).otherwise(-9.0) for name in ATTACKS
    )
    place = frame.select(is_own.arg_true()).item() - 1
    assert combine_scores(changed)[place] == combine_scores(frame)[place]
    assert (combine_scores(changed) != combine_scores(frame)).any()


PLAN = plan(level="collection")


def infer(*parts, separable=False, of_plan=PLAN):
    return infer_dataset(scores(*parts).lazy(), ATTACKS, of_plan, separable=separable)


def sets(rng, n=40, shift=0.0, **groups):
    return (
        texts(rng, "target", n, None, shift=shift, **groups),
        texts(rng, "non_member", n, False, **groups),
    )


def test_p_values_of_sets_that_are_alike_are_uniform():
    rng, runs = np.random.default_rng(4), 60
    inferences = [infer(*sets(rng, windows=8, together=1.0)) for _ in range(runs)]
    p = np.array([inference.test.p_value for inference in inferences])
    for level in (0.1, 0.5):
        error = np.sqrt(level * (1 - level) / runs)
        assert np.mean(p <= level) == pytest.approx(level, abs=3 * error)
    papers = np.mean([inference.paper_p_value <= 0.1 for inference in inferences])
    # It takes windows of a group for independent
    assert papers > 0.1 + 3 * np.sqrt(0.09 / runs)


def test_a_set_that_was_learnt_is_found_and_one_that_scores_lower_is_not():
    rng = np.random.default_rng(5)
    p = [infer(*sets(rng, shift=0.7)).test.p_value for _ in range(8)]
    assert np.median(p) <= 0.001
    # By weights of either sign, as in the paper, it is.
    rng = np.random.default_rng(6)
    inferences = [infer(*sets(rng, shift=-0.7)) for _ in range(8)]
    assert np.median([inference.paper_p_value for inference in inferences]) <= 0.001
    assert min(inference.test.p_value for inference in inferences) >= 0.05
    assert all(min(inference.weights.values()) >= 0 for inference in inferences)


def test_sets_that_are_separable_get_a_reason_and_no_p_value():
    inference = infer(*sets(np.random.default_rng(7), shift=2.0), separable=True)
    (row,) = inference.verdict().iter_rows(named=True)
    assert (row["attack"], row["level"], row["p_value"]) == (
        DATASET_INFERENCE,
        "collection",
        None,
    )
    assert row["reason"].startswith(
        "targets and non-members can be distinguished without the model"
    )
    by_statistic = {
        row["statistic"]: row for row in inference.findings().iter_rows(named=True)
    }
    assert (
        by_statistic["permutation"]["p_value"]
        is by_statistic["paper"]["p_value"]
        is None
    )
    too_few = infer(*sets(np.random.default_rng(8), n=15))
    assert too_few.test is None
    assert "groups of enough windows, 10 are needed" in too_few.reason


def test_rows_tell_what_was_learned_and_tested_and_attacks_without_scores_have_no_weight():
    inference = infer(*sets(np.random.default_rng(9), shift=1.0))
    (row,) = inference.verdict().iter_rows(named=True)
    assert inference.test is not None
    assert row["method"] == f"split_{inference.test.method}"
    assert not row["planned"]
    facts = inference.findings()
    counts = {
        row["statistic"]: row["value"]
        for row in facts.iter_rows(named=True)
        if row["value"] is not None and row["subject"] is None
    }
    assert counts["n_learned"] + counts["n_targets"] + counts["n_null"] == 80
    weights = facts.filter(statistic="weight")
    assert weights["subject"].to_list() == ATTACKS
    assert weights["value"].to_list() == list(inference.weights.values())
    frame = scores(*sets(np.random.default_rng(10), shift=1.0)).with_columns(c_v1=None)
    inference = infer_dataset(frame.lazy(), ATTACKS, PLAN, separable=False)
    assert inference.weights["c_v1"] == 0
    assert inference.test is not None
    assert inference.test.p_value <= 0.01


NULLS = np.linspace(0, 39, 40)  # four numbers of highest: 1, 2, 3 and 5


def targets(*counts):
    """So many of 50 targets lie above the null of each rank, less those above the one before."""
    above = [score for score, n in counts for _ in range(n)]
    return np.array(above + [-1.0] * (50 - len(above)))


def top_reference(target_scores, nulls, ranks):
    """Of v highest among all units at most k - 1 are nulls where v - k + 1 others lie above."""
    bounds = []
    n, m = len(nulls), len(target_scores)
    for rank in ranks:
        threshold = sorted(nulls)[-rank]
        above = sum(score > threshold for score in target_scores)
        fewest = next(
            members
            for members in range(above + 1)
            if above == members
            or hypergeom.cdf(rank - 1, m - members + n, n, above - members + rank - 1)
            > 0.05 / len(ranks)
        )
        bounds.append((fewest, -above))
    return max(bounds)


@pytest.mark.parametrize(
    "scores",
    [
        targets((50, 10)),
        targets((50, 4), (38.5, 1), (36.5, 9)),
        targets((34.5, 30)),
        targets((38, 6)),
        targets((50, 50)),
    ],
)
def test_the_bound_equals_its_reference(scores):
    bound = top_bound(scores, 50, NULLS)
    assert (bound.at_least, -bound.of_top) == top_reference(scores, NULLS, (1, 2, 3, 5))


def test_what_has_no_score_finds_nothing_and_few_nulls_are_compared_with_the_highest_alone():
    assert top_bound(targets((nan, 10)), 50, NULLS) == Top(0, 0, 1)
    unscored = np.array([*NULLS[:-1], nan])
    assert top_bound(targets((50, 10)), 50, unscored).rank > 1
    # Two of two beat 15 others by chance in 1 of C(17, 2), one of one in 1 of 16.
    assert top_bound(np.array([99.0, 98, 97]), 3, NULLS[:15]) == Top(2, 3, 1)


def max_t_reference(groups, nulls):
    """Adjusted p-values by all orders, one attack and one order at a time."""
    statistics_of, n_groups = {}, len(groups[0])
    for attack, pooled in enumerate(np.hstack([groups, nulls]).tolist()):
        ranks = [sum(x < y for x in pooled) + (pooled.count(y) + 1) / 2 for y in pooled]
        sums = np.array(
            [sum(group_ranks) for group_ranks in combinations(ranks, n_groups)]
        )
        statistics_of[attack] = (sums - sums.mean()) / (sums.std() or 1)
    remaining, largest_p, p_values = [*statistics_of], 0.0, [0.0] * len(statistics_of)
    for attack in sorted(statistics_of, key=lambda attack: -statistics_of[attack][0]):
        largest = np.max(
            [statistics_of[attack_name] for attack_name in remaining], axis=0
        )
        largest_p = max(
            largest_p, float(np.mean(largest >= statistics_of[attack][0] - 1e-9))
        )
        p_values[attack] = largest_p
        remaining.remove(attack)
    return [statistics_of[attack][0] for attack in sorted(statistics_of)], p_values


@pytest.mark.parametrize("seed", range(4))
def test_max_t_equals_its_reference(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, (4, 8)).astype(float)
    scores[:2, :3] += 3
    scores[3] = 1  # tells nothing
    test = max_t(scores[:, :3], scores[:, 3:], 0)
    statistics, p_values = max_t_reference(scores[:, :3], scores[:, 3:])
    assert test.statistics.tolist() == pytest.approx(statistics)
    assert test.p_values.tolist() == pytest.approx(p_values)
    assert test.n_orders == 56


def ranks_of(values):
    return [sum(x < y for x in values) + (values.count(y) + 1) / 2 for y in values]


def test_max_t_at_one_length_ranks_what_a_line_through_the_ranks_leaves():
    rng = np.random.default_rng(4)
    lengths = rng.permutation(np.arange(0.0, 110.0, 10.0))
    scores = rng.normal(size=(3, 11)) + lengths / 20
    rows_left = []
    for attack in scores.tolist():
        places, ranks = ranks_of(lengths.tolist()), ranks_of(attack)
        slope, height = np.polyfit(places, ranks, 1)
        rows_left.append(
            [y - slope * x - height for x, y in zip(places, ranks, strict=True)]
        )
    left = np.round(np.array(rows_left), 9)
    made = max_t(scores[:, :3], scores[:, 3:], 0, lengths)
    statistics, p_values = max_t_reference(left[:, :3], left[:, 3:])
    assert made.statistics.tolist() == pytest.approx(statistics)
    assert made.p_values.tolist() == pytest.approx(p_values)
    of_any_length = max_t(scores[:, :3], scores[:, 3:], 0)
    of_one_length = max_t(scores[:, :3], scores[:, 3:], 0, np.full(11, 5.0))
    assert of_one_length.p_values.tolist() == of_any_length.p_values.tolist()


def test_longer_texts_alone_make_no_finding_of_all_attacks_together():
    """Scores follow lengths by a half; audited texts are longer by two deviations."""
    rng = np.random.default_rng(5)
    runs, n_before, n_after = 200, 0, 0
    for _ in range(runs):
        lengths = rng.normal(size=12) + 2.0 * (np.arange(12) < 5)
        scores = 0.75**0.5 * rng.normal(size=(2, 12)) + lengths / 2
        sides = scores[:, :5], scores[:, 5:]
        n_before += max_t(*sides, 0).p_values.min() <= 0.05
        n_after += max_t(*sides, 0, np.exp(lengths)).p_values.min() <= 0.05
    # At a rate of 5 % more than 19 of 200 have a chance of 1 in 300
    assert n_after <= 19
    assert n_before > 50


def findings(*parts, attacks=("a_v1", "b_v1"), planned=("b_v1", "a_v1"), **changes):
    scores = table(*parts).with_columns(
        b_v1=-pl.col("a_v1"), c_v1=pl.lit(None, pl.Float64)
    )
    few_books = few_books_findings(scores.lazy(), attacks, plan(**changes), planned)
    rows = few_books.filter(pl.col("statistic") != "rank_sum").to_dicts()
    return {(row["check"], row["statistic"]): row for row in rows}, few_books


TEXTS = rows("target", [9.0, 8, 7, 0]), rows("non_member", np.arange(40) / 40)


def test_texts_have_rows_of_both_checks():
    facts, table_of_findings = findings(*TEXTS)
    assert table_of_findings["subject"].unique().sort().to_list() == [
        "a_v1",
        "b_v1",
        "text",
    ]
    values = {
        name: row["value"] for (check, name), row in facts.items() if check == "top"
    }
    assert values == {
        "at_least": 2,
        "of_top": 3,
        "rank": 1,
        "n_tests": 4,
        "n_null": 40,
        "confidence": 0.95,
    }
    assert facts["top", "at_least"]["verdict"] == "some"
    largest = facts["max_t", "largest"]
    columns = ("subject", "verdict", "reason")
    assert [largest[name] for name in columns] == ["a_v1", "as_planned", None]
    rank_sums = table_of_findings.filter(statistic="rank_sum")
    assert rank_sums["subject"].to_list() == ["a_v1", "b_v1"]
    assert rank_sums["p_value"][0] == largest["p_value"] < rank_sums["p_value"][1]
    counts = {
        name: facts["max_t", name]["value"]
        for name in ("n_attacks", "n_tests", "n_null")
    }
    assert counts == {"n_attacks": 2, "n_tests": 4, "n_null": 40}


def books(role, scores, name="document_id"):
    return [
        row
        for number, score in enumerate(scores)
        for row in rows(role, [score, score], **{name: f"{role} {number}"})
    ]


@pytest.mark.parametrize(
    ("name", "noun"), [("document_id", "document"), ("group", "group")]
)
def test_texts_that_share_documents_or_groups_are_counted_as_such(name, noun):
    facts, _ = findings(
        books("target", [9.0, 0.3], name), books("non_member", np.arange(40) / 40, name)
    )
    row = facts["top", "n_tests"]
    assert (row["subject"], row["value"], facts["max_t", "n_null"]["value"]) == (
        noun,
        2,
        40,
    )


def test_what_cannot_be_said_has_a_reason_or_no_row():
    facts, table_of_findings = findings(*TEXTS, length_edges=(50,))
    at_least = facts["top", "at_least"]
    assert at_least["value"] is None
    assert (
        at_least["reason"] == "texts are compared with those of their own length alone"
    )
    facts, table_of_findings = findings(*TEXTS, level="group", windows_per_group=2)
    assert facts["top", "at_least"]["reason"] == "no null document has 2 windows"
    assert table_of_findings.filter(check="max_t").is_empty()
    facts, _ = findings(rows("target", [0.5, 0.2]), TEXTS[1])  # nothing stands out
    assert (facts["top", "at_least"]["value"], facts["top", "at_least"]["verdict"]) == (
        0,
        "none",
    )
    assert ("top", "of_top") not in facts
    for planned, reason in (
        (["a_v1"], "attacks were added or left out since the plan was recorded"),
        (None, None),
    ):
        largest = findings(*TEXTS, planned=planned)[0]["max_t", "largest"]
        assert (largest["verdict"], largest["reason"]) == ("exploratory", reason)
    _, table_of_findings = findings(
        *TEXTS, attacks=["a_v1", "c_v1"]
    )  # the second has no scores
    assert table_of_findings["check"].unique().to_list() == ["top"]
    assert findings(TEXTS[0])[1].is_empty()
