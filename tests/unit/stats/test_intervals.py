from itertools import product
from math import comb, exp, log
from statistics import NormalDist, variance

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import Polynomial
from scipy.special import expit, logit
from scipy.stats import beta, norm, t, ttest_1samp

from mia_batch.stats.intervals import (
    auc_interval,
    clopper_pearson,
    cluster_means,
    estimate_auc,
    estimate_interval,
    independent_number,
    ratio_difference,
    ratio_of_sums,
    removed_share,
    roc_curve,
    threshold_fpr_interval,
    tpr_interval,
)

# Falling scores: member 4; member and non-member tied at 3; non-member 2; member 1.
MEMBER = np.array([False, True, True, False, True])
SCORE = np.array([2.0, 4.0, 3.0, 3.0, 1.0])


@pytest.mark.parametrize(
    ("budget", "threshold", "fpr", "tpr"),
    [
        (0.0, 4, 0, 1 / 3),
        (0.49, 4, 0, 1 / 3),  # the nearest point would exceed it
        (0.5, 3, 0.5, 2 / 3),  # exactly spent
        (0.99, 3, 0.5, 2 / 3),
        (1.0, 1, 1, 1),  # of the points at 1 the one with the largest TPR
    ],
)
def test_the_budget_is_spent_but_never_exceeded(budget, threshold, fpr, tpr):
    assert roc_curve(MEMBER, SCORE).at_fpr(budget) == (threshold, fpr, tpr)
    # The highest of the best
    assert roc_curve(MEMBER, SCORE).widest_gap() == (
        4,
        0,
        1 / 3,
    )
    best_is_none = roc_curve(np.array([True, False]), np.array([1.0, 2.0]))
    assert best_is_none.at_fpr(0.5) == (np.inf, 0, 0)


CLASS = st.lists(st.integers(-5, 5), min_size=1, max_size=40)


@given(CLASS, CLASS, st.floats(0, 1))
def test_no_allowed_threshold_does_better(members, nonmembers, budget):
    score = np.array([*members, *nonmembers], float)
    member = np.arange(score.size) < len(members)
    point = roc_curve(member, score).at_fpr(budget)
    flagged = score >= point.threshold
    assert flagged[~member].mean() == point.fpr <= budget
    assert flagged[member].mean() == point.tpr
    for threshold in set(score):
        if (score[~member] >= threshold).mean() <= budget:
            assert (score[member] >= threshold).mean() <= point.tpr


@pytest.mark.parametrize(
    ("n", "budget"), [(10, 0.1), (30, 0.1), (1000, 0.001), (200, 0.005)]
)
def test_decimal_budgets_meet_the_rates_they_name(n, budget):
    """One false positive in ten is within 10 %, whatever binary fractions do."""
    member = np.arange(n + 1) == n
    score = np.where(member, n - round(n * budget), np.arange(n + 1)).astype(float)
    assert roc_curve(member, score).at_fpr(budget).fpr == round(n * budget) / n


def wins(member, nonmember):
    return (member > nonmember) + (member == nonmember) / 2


def obuchowski_reference(member, score, cluster):
    """Obuchowski 1997, section 2: sums of placements by cluster, and their products.

    In place of K / (K - 1) each cluster has 1 / (1 - its share of the class's texts).
    """
    members = [(x, c) for m, x, c in zip(member, score, cluster, strict=True) if m]
    others = [(y, c) for m, y, c in zip(member, score, cluster, strict=True) if not m]
    auc = sum(wins(x, y) for (x, _), (y, _) in product(members, others))
    auc /= len(members) * len(others)
    sums = {name: [0.0, 0.0] for name in cluster}
    for x, c in members:
        sums[c][0] += (sum(wins(x, y) for y, _ in others) / len(others) - auc) / len(
            members
        )
    for y, c in others:
        sums[c][1] += (sum(wins(x, y) for x, _ in members) / len(members) - auc) / len(
            others
        )
    total = 0.0
    for name, (a, b) in sums.items():
        f1, f0 = (
            1 / (1 - sum(c == name for _, c in texts) / len(texts))
            for texts in (members, others)
        )
        total += f1 * a * a + f0 * b * b + 2 * (f1 * f0) ** 0.5 * a * b
    return auc, total


def delong_reference(member, score):
    members, others = score[member], score[~member]
    of_members = [sum(wins(x, y) for y in others) / len(others) for x in members]
    of_others = [sum(wins(x, y) for x in members) / len(members) for y in others]
    return variance(of_members) / len(members) + variance(of_others) / len(others)


@pytest.mark.parametrize("mixed", [False, True])
def test_the_variance_of_clusters_equals_its_reference(mixed):
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 9, 60).astype(np.int32)
    member = rng.random(60) < 0.4 if mixed else cluster < 4
    score = rng.integers(0, 12, 60) + 2.0 * member
    auc, expected = obuchowski_reference(member, score, cluster)
    estimate, _ = estimate_auc(member, score, cluster)
    assert (estimate.value, estimate.variance) == pytest.approx(
        (auc, expected), rel=1e-12
    )


def test_clusters_of_one_text_are_independent_texts():
    rng = np.random.default_rng(0)
    member = rng.random(50) < 0.5
    score = rng.integers(0, 9, 50) + 1.0 * member
    alone, _ = estimate_auc(member, score)
    clustered, _ = estimate_auc(member, score, rng.permutation(50).astype(np.int32))
    assert alone.variance == pytest.approx(delong_reference(member, score), rel=1e-12)
    assert clustered.variance == pytest.approx(alone.variance, rel=1e-12)
    assert clustered.sizes == alone.sizes == (member.sum(), (~member).sum())
    assert alone.n_groups is None


def test_by_hand():
    """Members 1, 3 in cluster 0 and 4 in 1; non-members 0 in 2 and 2 in 3.

    Placements 1/2, 1, 1 and, from the other side, 1, 2/3; the AUC is 5/6. Members'
    clusters add (-1/3 + 1/6) / 3 and (1/6) / 3, times sqrt(3) and sqrt(3/2), for they
    have 2 and 1 texts of 3; non-members' (1/6) / 2 and (-1/6) / 2, times sqrt(2).
    """
    member = np.array([True, True, True, False, False])
    cluster = np.array([0, 0, 1, 2, 3], dtype=np.int32)
    estimate, influence = estimate_auc(member, np.array([1.0, 3, 4, 0, 2]), cluster)
    assert estimate.value == pytest.approx(5 / 6)
    expected = np.array([-1 / 18, 1 / 18, 1 / 12, -1 / 12]) * np.sqrt([3, 3 / 2, 2, 2])
    assert influence.tolist() == pytest.approx(expected.tolist())
    assert list(estimate.sizes) == pytest.approx([9 / 5, 2])  # Kish: 3^2 / (2^2 + 1^2)
    assert estimate.n_groups == pytest.approx(9 / 5)


def test_quantiles_of_few_groups_are_those_of_student():
    member, score = np.arange(12) < 5, np.arange(12, dtype=np.float64)
    estimate, _ = estimate_auc(member, score, np.arange(12, dtype=np.int32))
    z = NormalDist().inv_cdf(0.975)
    assert estimate.quantile(z) == pytest.approx(t(4).ppf(0.975))
    assert estimate_auc(member, score)[0].quantile(z) == z


@pytest.mark.parametrize(
    ("sizes", "worth"),
    [([1] * 3, 3), ([1] * 4, 4), ([12, *[1] * 12], 3.7), ([8, *[1] * 12], 5.3)],
)
def test_an_interval_needs_groups_worth_four_of_one_size_in_each_class(sizes, worth):
    cluster = np.repeat(np.arange(len(sizes) + 20), [*sizes, *[1] * 20]).astype(
        np.int32
    )
    member = cluster < len(sizes)
    score = np.arange(member.size, dtype=float)
    estimate, _ = estimate_auc(member, score, cluster)
    few = (
        "an interval needs 4 independent groups of texts of one size in each class,"
        f" these are worth {estimate.n_groups:.3g}"
    )
    assert estimate.n_groups == pytest.approx(worth, abs=0.05)
    assert estimate.reason == (few if worth < 4 else None)
    assert estimate_auc(member, score)[0].reason is None


Z = NormalDist().inv_cdf(0.975)


def auc_of(members, nonmembers):
    pairs = [wins(*pair) for pair in product(members, nonmembers)]
    return sum(pairs) / len(pairs)


def newcombe_reference(auc, n_members, n_nonmembers):
    """Newcombe 2006, method 5: the two roots around the AUC, as zeros of a polynomial."""
    extra = (n_members + n_nonmembers) / 2 - 1
    tried = Polynomial([0, 1])
    above, below = 2 - tried, 1 + tried
    spread = above * below + extra * ((1 - tried) * below + tried * above)
    gap = (auc - tried) ** 2 * above * below
    roots = (
        gap - Z**2 * tried * (1 - tried) * spread / (n_members * n_nonmembers)
    ).roots()
    real = np.sort(roots[np.abs(roots.imag) < 1e-9].real)
    inside = real[(real > -1e-9) & (real < 1 + 1e-9)]
    return [inside[0], inside[-1]]


def interval(members, nonmembers):
    return auc_interval(np.array(members, float), np.array(nonmembers, float))


def test_delong_by_hand():
    """Members 1, 3 and non-members 0, 2: AUC 3/4; shares 1/2, 1 in each class, variance 1/8."""
    made = interval([1, 3], [0, 2])
    half = Z * 0.125**0.5 / (3 / 16)
    assert made.low == pytest.approx(1 / (1 + exp(half - log(3))))
    assert made.high == pytest.approx(1 / (1 + exp(-half - log(3))))


@pytest.mark.parametrize("shift", [-60, -40, 40, 60])
def test_newcombe_equals_its_reference(shift):
    rng = np.random.default_rng(0)
    members = rng.normal(shift / 15, 1, 20).tolist()
    nonmembers = rng.normal(0, 1, 35).tolist()
    made = interval(members, nonmembers)
    assert made.method == "newcombe_5"
    assert [made.low, made.high] == pytest.approx(
        newcombe_reference(auc_of(members, nonmembers), 20, 35), abs=1e-9
    )


def test_newcombe_at_an_auc_of_1_with_50_texts_of_each_class():
    """The published limits are 0.960 and 1."""
    made = interval([1] * 50, [0] * 50)
    assert (round(made.low, 3), made.high) == (0.960, 1)
    mirrored = interval([0] * 50, [1] * 50)
    assert (mirrored.low, round(mirrored.high, 3)) == (0, 0.040)


SCORES = st.lists(st.integers(0, 8), min_size=1, max_size=25)


@given(SCORES, SCORES)
def test_an_interval_holds_its_auc_has_width_and_mirrors(members, nonmembers):
    made, mirrored = interval(members, nonmembers), interval(nonmembers, members)
    assert 0 <= made.low <= auc_of(members, nonmembers) <= made.high <= 1
    assert made.high - made.low > 1e-3
    assert [made.low, made.high] == pytest.approx(
        [1 - mirrored.high, 1 - mirrored.low], abs=1e-9
    )


@pytest.mark.parametrize(
    ("giant", "n_groups", "enough"), [(0.3, 40, True), (0.8, 10, False)]
)
def test_unequal_groups_keep_the_coverage_or_have_no_interval(giant, n_groups, enough):
    """One group has so much of its class; scores share a heavy-tailed effect of their group."""
    rng = np.random.default_rng(0)
    shares = np.array([giant, *[(1 - giant) / (n_groups - 1)] * (n_groups - 1)])
    sizes = np.maximum(1, np.round(shares * 10 * n_groups)).astype(int)
    cluster = np.repeat(np.arange(2 * n_groups, dtype=np.int32), [*sizes, *sizes])
    member = cluster < n_groups
    truth = NormalDist().cdf(0.36 / 2**0.5)
    held = []
    for _ in range(300 if enough else 3):
        shared = (0.3 / 3) ** 0.5 * rng.standard_t(3, 2 * n_groups)[cluster]
        score = 0.36 * member + shared + 0.7**0.5 * rng.normal(size=member.size)
        made = estimate_interval(estimate_auc(member, score, cluster)[0])
        assert (made is not None) == enough
        held += [made.low <= truth <= made.high] if made else []
    assert not held or np.mean(held) > 0.93 - 3 * (0.05 * 0.95 / 300) ** 0.5


def curve_of(members, nonmembers):
    score = np.array([*members, *nonmembers], float)
    return roc_curve(np.arange(score.size) < len(members), score)


def clopper_pearson_reference(hits, n, error):
    """Limits at which the binomial tails are each ``error``."""
    low = beta.ppf(error, hits, n - hits + 1) if hits else 0.0
    high = beta.ppf(1 - error, hits + 1, n - hits) if hits < n else 1.0
    return low, high


def tpr_reference(members, nonmembers, budget, error=0.025):
    """Ranks by sums of binomial chances, counted from the lowest non-member."""
    n, n_members = len(nonmembers), len(members)
    chance = [comb(n, k) * (1 - budget) ** k * budget ** (n - k) for k in range(n + 1)]
    above = next(r for r in range(1, n + 2) if sum(chance[r:]) <= error)
    below = max(r for r in range(n + 1) if sum(chance[:r]) <= error)
    ordered = [-float("inf"), *sorted(nonmembers), float("inf")]
    spared = next(y for y in ordered if sum(x > y for x in nonmembers) <= budget * n)
    least, tpr, most = (
        sum(x > threshold for x in members) / n_members
        for threshold in (ordered[above], spared, ordered[below])
    )
    low, high = clopper_pearson_reference(round(tpr * n_members), n_members, error)
    return (
        max(0, tpr - ((tpr - low) ** 2 + (tpr - least) ** 2) ** 0.5),
        tpr,
        min(1, tpr + ((high - tpr) ** 2 + (most - tpr) ** 2) ** 0.5),
    )


@pytest.mark.parametrize(
    ("n", "budget"), [(10, 0.1), (60, 0.1), (150, 0.05), (100, 0.01)]
)
def test_the_interval_of_a_tpr_equals_its_reference(n, budget):
    rng = np.random.default_rng(0)
    curve = curve_of(rng.normal(1, 1, 40), rng.normal(0, 1, n))
    tpr = curve.at_fpr(budget).tpr
    made = tpr_interval(curve, budget, tpr, (40, n))
    expected = tpr_reference(curve.members.tolist(), curve.nonmembers.tolist(), budget)
    assert (made.low, tpr, made.high) == pytest.approx(expected)
    assert made.method == "order_statistics"


def test_groups_of_equal_texts_have_the_interval_of_one_text_each():
    rng = np.random.default_rng(0)
    members, nonmembers = rng.normal(1, 1, 30), rng.normal(0, 1, 80)
    alone = curve_of(members, nonmembers)
    tpr = alone.at_fpr(0.1).tpr
    made = tpr_interval(alone, 0.1, tpr, (30, 80))
    copies = curve_of(np.repeat(members, 7), np.repeat(nonmembers, 7))
    again = tpr_interval(copies, 0.1, tpr, (30.0, 80.0))
    assert (made.low, made.high) == (again.low, again.high)


@pytest.mark.parametrize(
    ("flags", "worth"),
    [
        # Less alike within than between: no more than independent ones
        (
            [[1, 0]] * 10,
            20,
        ),
        ([[1, 0]] * 4, 8),  # all of four groups tell
        ([[1, 1], [0, 0]] * 10, 20),  # alike within: groups
        ([[1, 1]] * 4 + [[0, 0]] * 16, 20),
        ([[1, 1, 1, 1]] * 7, 7),  # nobody knows how much they differ
        ([[1, 0, 0, 0]] * 4 + [[0, 0, 0, 0]] * 4, 8),
    ],
)
def test_flags_of_clusters_are_worth_so_many_independent_ones(flags, worth):
    cluster = np.repeat(np.arange(len(flags)), len(flags[0]))
    found = independent_number(np.ravel(flags) == 1, cluster)
    wider = t(len(flags) - 1).ppf(0.975) / norm.ppf(0.975)
    assert found == pytest.approx(worth / wider**2)
    assert (
        independent_number(np.ravel(flags) == 1, np.arange(cluster.size))
        == cluster.size
    )


def test_the_true_rate_of_a_threshold_follows_its_beta_distribution():
    """Of 20 uniform scores the highest exceeds the threshold 1 - x with chance (1 - x)^20 ..."""
    made = threshold_fpr_interval(20, 0.04)
    assert (made.low, made.high) == pytest.approx(
        (1 - 0.975 ** (1 / 20), 1 - 0.025 ** (1 / 20))
    )


@pytest.mark.parametrize(("hits", "n"), [(0, 9), (9, 9), (3, 40)])
def test_clopper_pearson_equals_its_reference(hits, n):
    assert clopper_pearson(hits, n)[:2] == pytest.approx(
        clopper_pearson_reference(hits, n, 0.025)
    )


@given(SCORES, SCORES, st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]))
def test_an_interval_of_a_tpr_holds_it_and_has_width(members, nonmembers, budget):
    curve = curve_of(members, nonmembers)
    tpr = curve.at_fpr(budget).tpr
    made = tpr_interval(curve, budget, tpr, (len(members), len(nonmembers)))
    assert 0 <= made.low <= tpr <= made.high <= 1
    assert made.high - made.low > 1e-3


def means(difference, cluster, unit=None):
    difference, cluster = np.asarray(difference, float), np.asarray(cluster)
    unit = np.zeros(cluster.size, np.intp) if unit is None else np.asarray(unit)
    return cluster_means(difference.reshape(cluster.size, -1), unit, cluster)


def test_by_hand_of_paired():
    """Sums 3 and 3 of 1 and 3 texts: mean 6/4, gaps 1.5 and -1.5.

    Variance (2.25 / (3/4) + 2.25 / (1/4)) / 16.
    """
    found = means([3, 1, 1, 1], [0, 1, 1, 1])
    assert found.value.tolist() == [[1.5]]
    assert found.covariance.tolist() == [[[0.75]]]
    assert found.effective.tolist() == [1.6]
    assert (found.n.tolist(), found.n_clusters.tolist()) == ([4], [2])


def test_of_independent_texts_it_is_the_paired_t_test_and_units_do_not_mix():
    difference = np.random.default_rng(0).normal(0.3, size=12)
    found = means(difference, np.arange(12))
    reference = ttest_1samp(difference, 0)
    low, high = reference.confidence_interval()
    assert found.p_values()[0, 0] == pytest.approx(reference.pvalue)
    half = found.half_widths()[0, 0]
    assert (found.value[0, 0] - half, found.value[0, 0] + half) == pytest.approx(
        (low, high)
    )
    rng = np.random.default_rng(2)
    values, unit, cluster = (
        rng.normal(size=(60, 2)),
        np.arange(60) % 3,
        np.arange(60) // 4,
    )
    together = cluster_means(values, unit, cluster)
    for each in range(3):
        alone = cluster_means(
            values[unit == each], np.zeros(20, np.intp), cluster[unit == each]
        )
        assert together.value[each] == pytest.approx(alone.value[0])
        assert together.covariance[each] == pytest.approx(alone.covariance[0])
        assert together.effective[each] == alone.effective[0]


@pytest.mark.parametrize(
    ("difference", "cluster"),
    [
        ([0.1] * 8, range(8)),
        ([0.1, 0.2, 0.3], range(3)),
        ([0.1, 0.2] * 9, [*range(2)] * 9),
    ],
    ids=["all equal", "three texts", "two groups"],
)
def test_there_is_no_interval_of_zero_width_or_from_few_clusters(difference, cluster):
    found = means(difference, [*cluster])
    assert np.isnan(found.half_widths()).all()
    assert np.isnan(found.p_values()).all()


def test_limits_are_the_shares_at_which_the_paired_t_test_rejects():
    rng = np.random.default_rng(4)
    y = rng.normal(1, size=15)
    x = 0.6 * y + rng.normal(scale=0.3, size=15)
    made = means(np.stack([x, y], axis=1), np.arange(15))
    found = removed_share(made.value[0], made.covariance[0], 15)
    assert found.interval is not None
    for limit in found.interval[:2]:
        assert ttest_1samp(x - limit * y, 0).pvalue == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("gaps", "effective", "reason"),
    [
        (
            (1.0, 0.1),
            20,
            "the runs before and of the retrained model cannot be distinguished",
        ),
        (
            (1.0, -2.0),
            20,
            "the run before does not score above that of the retrained model",
        ),
        (
            (1.0, 2.0),
            3,
            "an interval needs 4 independent groups of texts of one size, these are",
        ),
    ],
)
def test_a_share_of_nothing_is_withheld(gaps, effective, reason):
    found = removed_share(np.array(gaps), np.eye(2) * 0.01, effective)
    assert (found.value, found.interval) == (None, None)
    assert (found.reason or "").startswith(reason)


def test_the_same_share_everywhere_has_no_interval():
    y = np.random.default_rng(5).normal(1, 0.1, size=20)
    made = means(np.stack([y, y], axis=1), np.arange(20))
    found = removed_share(made.value[0], made.covariance[0], 20)
    assert (found.value, found.interval) == (1, None)
    assert (found.reason or "").startswith("the same share is removed everywhere")


@pytest.fixture
def drawn():
    """Numerators and denominators of 60 texts in 20 clusters of 3, alike within each."""
    rng = np.random.default_rng(3)
    cluster = np.repeat(np.arange(20), 3)
    below = rng.integers(3, 20, 60).astype(float)
    level = rng.beta(3, 5, 20)[cluster]
    return rng.binomial(below.astype(int), level).astype(float), below, cluster


def reference_error(above, below, cluster):
    """Standard error by the sums of whole clusters, one by one."""
    ratio, total, k = above.sum() / below.sum(), below.sum(), len(set(cluster))
    squares = [
        (above[cluster == c].sum() - ratio * below[cluster == c].sum()) ** 2
        for c in set(cluster)
    ]
    return (k / (k - 1) * sum(squares)) ** 0.5 / total


def test_intervals_and_differences_have_the_errors_of_the_formula(drawn):
    above, below, cluster = drawn
    found = ratio_of_sums(np.stack([above, below]), cluster)
    value, error = above.sum() / below.sum(), reference_error(above, below, cluster)
    half = t.ppf(0.975, 19) * error / (value * (1 - value))
    assert found.value == pytest.approx(value)
    assert found.interval is not None
    limits = found.interval.low, found.interval.high
    assert limits == pytest.approx(expit([logit(value) - half, logit(value) + half]))
    less = np.maximum(above - 1, 0)
    found = ratio_difference(np.stack([above, below]), np.stack([less, below]), cluster)
    assert found.interval is not None
    half = t.ppf(0.975, 19) * reference_error(above - less, below, cluster)
    assert found.value == pytest.approx((above - less).sum() / below.sum())
    assert found.interval.high - found.interval.low == pytest.approx(2 * half)
    apart = ratio_of_sums(np.stack([above, below]), cluster).interval
    assert apart is not None
    assert 2 * half < apart.high - apart.low


def test_what_data_cannot_support_has_a_reason(drawn):
    above, below, cluster = drawn
    pair = np.stack([above, below])
    same = ratio_difference(pair, pair, cluster)
    assert (same.value, same.interval) == (0.0, None)
    assert same.reason == "all groups of texts agree, so that the spread is unknown"
    nothing = ratio_of_sums(0 * pair, cluster)
    assert (nothing.value, nothing.reason) == (
        None,
        "there is nothing to take a share of",
    )
    assert ratio_of_sums(np.stack([0 * above, below]), cluster).value == 0.0
    few = ratio_of_sums(pair, cluster // 7)
    assert few.interval is None
    assert few.reason is not None
    assert few.reason.startswith("an interval needs 4 independent groups")
