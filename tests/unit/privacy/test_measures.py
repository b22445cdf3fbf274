"""Bounds of epsilon, exposure and utility: by hand, by slow forms, and on known mechanisms."""

from dataclasses import replace
from math import comb, exp, log
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, skewnorm, t

from mia_batch.extras.privacy import measures
from mia_batch.extras.privacy.plan import PrivacySettings
from mia_batch.recipes import RECIPES

DELTA = 1e-5
LOSSES = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=30)
of_both = pytest.mark.parametrize(
    "bound", [measures.one_run_bound, measures.clopper_pearson_bound]
)


def slow_p(n_right, n_guesses, n_texts, epsilon, delta):
    """Theorem 5.2 of Steinke et al. 2023, term by term."""
    q = exp(epsilon) / (1 + exp(epsilon))

    def pmf(k):
        return comb(n_guesses, k) * q**k * (1 - q) ** (n_guesses - k)

    tail = sum(pmf(k) for k in range(n_right, n_guesses + 1))
    slopes = (
        sum(pmf(n_right - j) for j in range(1, i + 1)) / i
        for i in range(1, n_right + 1)
    )
    return min(1, tail + 2 * n_texts * delta * max(slopes, default=0))


@settings(max_examples=50)
@given(
    st.integers(1, 20), st.data(), st.floats(0, 4), st.sampled_from([0.0, 1e-5, 1e-2])
)
def test_guesses_as_in_the_theorem(n_guesses, data, epsilon, delta):
    n_right = data.draw(st.integers(0, n_guesses))
    p_value = measures._p_of_guesses(n_right, n_guesses, 30, epsilon, delta)
    assert p_value == pytest.approx(
        slow_p(n_right, n_guesses, 30, epsilon, delta), abs=1e-9
    )


def test_bounds_by_hand():
    # 100 of 200 texts are guessed, all right: e^eps / (1 + e^eps) = 0.05 ** (1 / 100).
    member = np.arange(200) % 2 == 0
    privacy_bound = measures.one_run_bound(
        member, member.astype(float), delta=0, seed=0
    )
    n = 200 - int(measures._random_half(200, 0).sum())
    q = 0.05 ** (1 / (2 * (n // 2)))
    assert privacy_bound.ceiling == pytest.approx(log(q / (1 - q)), abs=1e-4)
    # Whoever tells the opposite of the truth tells of non-members, and of members,
    # nothing.
    member = np.repeat([True, False], 50)
    low, high = beta.ppf(0.0125, 50, 1), beta.ppf(0.9875, 1, 50)
    rates = measures._rate_limits(
        member, np.array([member, ~member, np.ones(100, bool)]), 0.95
    )
    assert rates[0, 0].tolist() == pytest.approx([low, high])
    bounds = [
        measures._refuted_epsilon(*rate, delta=DELTA, texts_per_coin=1)
        for rate in rates[0].tolist()
    ]
    assert bounds == pytest.approx([log((low - DELTA) / high), 0, 0])


def answers(epsilon, n, rng, texts=1):
    """Members by coin, and of each text a bit that is right as often as epsilon allows."""
    member = rng.random(n) < 0.5
    wrong = rng.random((n, texts)) < 1 / (1 + exp(epsilon))
    return member, (member[:, None] ^ wrong).sum(axis=1) + 0.01 * rng.random(n)


@of_both
def test_texts_that_share_a_coin_share_the_bound(bound):
    member, score = answers(2.0, 400, np.random.default_rng(1))
    alone, shared = (
        bound(member, score, delta=0, seed=0, texts_per_coin=n) for n in (1, 3)
    )
    assert [*shared] == pytest.approx(
        [bound_alone / 3 for bound_alone in alone], abs=1e-5
    )
    fewer_texts = bound(member, score, delta=1e-3, seed=0, texts_per_coin=3)
    assert 0 < fewer_texts.value < shared.value
    assert (
        bound(member, score, delta=1e-3, seed=0, texts_per_coin=3) == fewer_texts
    )  # the same seed
    for n in (1, 3):
        slack = sum(exp(i * 0.5) for i in range(n)) * DELTA
        assert measures._privacy_of_coin(0.5, DELTA, n) == pytest.approx(
            (0.5 * n, slack)
        )


def test_texts_that_are_absent_from_the_scores_share_the_coin_too():
    member, score = answers(2.0, 400, np.random.default_rng(1))
    names = [f"group {number}" for number in range(400)]
    scores = pl.DataFrame({"group": names, "member": member, "loss_v1": score})
    plan = PrivacySettings(
        task="generation", recipe=replace(RECIPES["privacy"], delta=0.0), seed=0
    )
    whole = measures._bounds(scores, "loss_v1", plan, scores["group"])
    three_each = measures._bounds(scores, "loss_v1", plan, pl.Series(names * 3))
    for name, bound in whole.items():
        assert three_each[name] == pytest.approx(bound / 3, abs=1e-5)


@of_both
@pytest.mark.parametrize(
    ("epsilon", "texts"),
    [
        (0.0, 1),
        (1.0, 1),
        (3.0, 1),
        pytest.param(0.5, 3, marks=pytest.mark.long),  # of groups, ten texts stay
        (0.5, 10),
    ],
)
def test_it_seldom_exceeds_the_privacy_that_there_is(bound, epsilon, texts):
    """Each text tells with epsilon whether its group was learnt; the score is their sum."""
    rng, bounds, alone = np.random.default_rng(0), [], 0
    for seed in range(40):
        member_and_score = answers(epsilon, 400, rng, texts)
        bounds.append(
            bound(*member_and_score, delta=DELTA, seed=seed, texts_per_coin=texts)
        )
        if texts == 10:
            alone += bound(*member_and_score, delta=DELTA, seed=seed).value > epsilon
    # 5 % of 40, and three standard errors.
    assert (
        sum(bound_of_run.value > epsilon for bound_of_run in bounds)
        <= 2 + 3 * (40 * 0.05 * 0.95) ** 0.5
    )
    assert all(bound_of_run.value <= bound_of_run.ceiling for bound_of_run in bounds)
    if texts == 1 and epsilon:
        assert np.median([bound_of_run.value for bound_of_run in bounds]) > epsilon / 4
    if texts == 10:
        assert alone >= 36  # what is refuted where a group is taken for a text


@of_both
def test_no_privacy_is_shown_up_to_the_ceiling(bound):
    member = np.random.default_rng(3).random(500) < 0.5
    privacy_bound = bound(member, member.astype(float), delta=DELTA, seed=0)
    assert privacy_bound.value == pytest.approx(privacy_bound.ceiling, rel=0.3)
    assert 3 < privacy_bound.ceiling < 6


SEVEN = [2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0]


@pytest.mark.parametrize(
    ("learnt", "canary_losses", "size", "rows"),
    [
        # 2, 3 and 4 are below 5; log2 8 - log2 rank.
        (
            [1.0, 5.0, 0.5],
            SEVEN,
            8,
            [(1.0, 3.0, True), (4.0, 1.0, False), (1.0, 3.0, True)],
        ),
        ([1.0], [1.0, 1.0, 2.0], 4, [(2.0, 1.0, False)]),  # equal ones count half
        ([np.nan, 1.0], [2.0, np.nan], 4, [(None, None, None), (1.0, 1.0, True)]),
        # Learnt ones are not ranked among each other, so that perfect memory is seen.
        (
            [*np.arange(32.0)],
            [*np.arange(100.0, 148.0)],
            80,
            [(1.0, np.log2(49), True)] * 32,
        ),
    ],
)
def test_exposure_by_hand(learnt, canary_losses, size, rows):
    exposures = measures.exposures(np.array(learnt), [np.array(canary_losses)], size)
    assert exposures.select("rank", "exposure", "exposed").rows() == rows
    assert exposures["extrapolated"].null_count() == len(rows)
    assert exposures["loss"].null_count() == np.isnan(learnt).sum()


@given(LOSSES, LOSSES, st.integers(1, 7))
def test_rank_is_the_definition_whatever_the_pieces(learnt, canary_losses, size):
    pieces = [
        np.array(canary_losses[i : i + size])
        for i in range(0, len(canary_losses), size)
    ]
    exposures = measures.exposures(
        np.array(learnt), pieces, len(learnt) + len(canary_losses)
    )
    for loss, rank in zip(learnt, exposures["rank"], strict=True):
        below = sum(other_loss < loss for other_loss in canary_losses)
        equal = sum(other_loss == loss for other_loss in canary_losses)
        assert rank == 1 + below + equal / 2


def test_mean_without_memory():
    ranks = np.arange(1, 102)
    assert measures.unlearnt_exposure(100) == pytest.approx(
        np.mean(np.log2(101) - np.log2(ranks))
    )
    assert measures.unlearnt_exposure(10**7) == pytest.approx(1 / np.log(2), abs=1e-4)


def test_beyond_the_sample_by_a_skew_normal_where_it_fits():
    truth, rng = skewnorm(4, loc=50, scale=5), np.random.default_rng(1)
    exposures = measures.exposures(
        truth.ppf([1e-6, 0.5]), [truth.rvs(5000, random_state=rng)], 10**9
    )
    assert exposures["exposure"][0] == pytest.approx(np.log2(5001))
    assert exposures["extrapolated"][0] == pytest.approx(np.log2(1e6), abs=3)
    assert exposures["extrapolated"][1] == pytest.approx(1, abs=0.1)
    canary_losses = np.concatenate([rng.normal(0, 1, 500), rng.normal(100, 1, 500)])
    assert measures.exposures(np.array([0.0]), [canary_losses], 10**6)[
        "extrapolated"
    ].to_list() == [None]


class _Opened:
    """Says of each text the losses that are given, by label or of all its tokens."""

    def __init__(self, losses: Any) -> None:
        self._losses = losses

    def sums(self, texts, labels):
        return pl.Series(np.where(np.array(self._losses) == labels[0], 0.0, 1.0))

    def losses(self, texts, targets):
        return pl.Series(self._losses)


def find_utility(losses, groups, *options):
    texts = pl.DataFrame({"text": ["a"] * 40, "target": ["yes"] * 40, "group": groups})
    opened: Any = _Opened(losses)
    (row,) = measures.utility(opened, texts, *options).to_dicts()
    return row


def test_utility_has_an_interval_over_groups():
    losses, alone = np.arange(40) / 10, [*map(str, range(40))]
    row = find_utility(losses, alone, "generation", ())
    half = t.ppf(0.975, 39) * losses.std(ddof=1) / 40**0.5
    mean = losses.mean()
    assert (row["value"], row["low"], row["high"]) == pytest.approx(
        (mean, mean - half, mean + half)
    )
    few_groups = find_utility(losses, ["a", "b"] * 20, "generation", ())
    assert (few_groups["value"], few_groups["low"], few_groups["n"]) == (
        row["value"],
        None,
        40,
    )
    row = find_utility(
        ["yes"] * 38 + ["no"] * 2, alone, "classification", ("no", "yes")
    )
    assert row["value"] == pytest.approx(0.95)
    assert 0.8 < row["low"] < 0.95 < row["high"] < 1
