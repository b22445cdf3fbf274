"""Bounds of epsilon: by hand, against a slow form of the theorem, and on known mechanisms."""

from math import comb, exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from mia_batch.privacy import measures
from mia_batch.privacy.measures import clopper_pearson_bound, one_run_bound

DELTA = 1e-5


def slow_p(n_right, n_guesses, n_texts, epsilon, delta):
    """Theorem 5.2 of Steinke et al. 2023, term by term."""
    q = exp(epsilon) / (1 + exp(epsilon))

    def pmf(k):
        return comb(n_guesses, k) * q**k * (1 - q) ** (n_guesses - k)

    tail = sum(pmf(k) for k in range(n_right, n_guesses + 1))
    slope = max(
        (sum(pmf(n_right - j) for j in range(1, i + 1)) / i for i in range(1, n_right + 1)),
        default=0,
    )
    return min(1, tail + 2 * n_texts * delta * slope)


@settings(max_examples=50)
@given(st.integers(1, 20), st.data(), st.floats(0, 4), st.sampled_from([0.0, 1e-5, 1e-2]))
def test_guesses_as_in_the_theorem(n_guesses, data, epsilon, delta):
    n_right = data.draw(st.integers(0, n_guesses))
    found = measures._p_of_guesses(n_right, n_guesses, 30, epsilon, delta)
    assert found == pytest.approx(slow_p(n_right, n_guesses, 30, epsilon, delta), abs=1e-9)


def test_all_guesses_right_by_hand():
    # 100 of 200 texts are guessed, all right: e^eps / (1 + e^eps) = 0.05 ** (1 / 100).
    member = np.arange(200) % 2 == 0
    found = one_run_bound(member, member.astype(float), delta=0, seed=0)
    n = 200 - int(measures._half(200, 0).sum())
    q = 0.05 ** (1 / (2 * (n // 2)))
    assert found.ceiling == pytest.approx(log(q / (1 - q)), abs=1e-4)


def test_rates_by_hand():
    member = np.repeat([True, False], 50)
    low, high = beta.ppf(0.0125, 50, 1), beta.ppf(0.9875, 1, 50)
    rules = np.array([member, ~member, np.ones(100, bool)])
    found = measures._rates(member, rules, 0.95)
    # Whoever tells the opposite of the truth tells of non-members, and of members, nothing.
    assert found[0, 0].tolist() == pytest.approx([low, high])
    bounds = [measures._by_rates(*each, delta=DELTA, texts=1) for each in found[0].tolist()]
    assert bounds == pytest.approx([log((low - DELTA) / high), 0, 0])


@pytest.mark.parametrize("bound", [one_run_bound, clopper_pearson_bound])
def test_texts_that_share_a_coin_share_the_bound(bound):
    member, score = told(2.0, 400, np.random.default_rng(1))
    alone, shared = (bound(member, score, delta=0, seed=0, texts=n) for n in (1, 3))
    assert shared.value == pytest.approx(alone.value / 3, abs=1e-5)
    assert shared.ceiling == pytest.approx(alone.ceiling / 3, abs=1e-5)
    least = bound(member, score, delta=1e-3, seed=0, texts=3)
    assert 0 < least.value < shared.value
    for n in (1, 3):
        slack = sum(exp(i * 0.5) for i in range(n)) * DELTA
        assert measures._of_a_coin(0.5, DELTA, n) == pytest.approx((0.5 * n, slack))


@pytest.mark.parametrize("bound", [one_run_bound, clopper_pearson_bound])
@pytest.mark.parametrize("texts", [1, 3, 10])
def test_groups_that_share_a_coin_do_not_refute_what_holds_for_a_text(bound, texts):
    """Each text tells with epsilon 0.5 whether its group was learnt; the score is their sum."""
    rng, epsilon, above, alone = np.random.default_rng(0), 0.5, 0, 0
    for seed in range(40):
        member = rng.random(400) < 0.5
        wrong = rng.random((400, texts)) < 1 / (1 + exp(epsilon))
        score = (member[:, None] ^ wrong).sum(axis=1) + 0.01 * rng.random(400)
        above += bound(member, score, delta=DELTA, seed=seed, texts=texts).value > epsilon
        alone += bound(member, score, delta=DELTA, seed=seed).value > epsilon
    assert above <= 2 + 3 * (40 * 0.05 * 0.95) ** 0.5
    if texts == 10:
        assert alone >= 36


def told(epsilon, n, rng):
    """Members by coin, and a bit about each that is right as often as epsilon allows."""
    member = rng.random(n) < 0.5
    wrong = rng.random(n) < 1 / (1 + exp(epsilon))
    return member, (member ^ wrong) + 0.01 * rng.random(n)


@pytest.mark.parametrize("bound", [one_run_bound, clopper_pearson_bound])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_it_seldom_exceeds_the_privacy_that_there_is(bound, epsilon):
    rng = np.random.default_rng(0)
    found = [bound(*told(epsilon, 400, rng), delta=DELTA, seed=seed) for seed in range(40)]
    # 5 % of 40, and three standard errors.
    assert sum(each.value > epsilon for each in found) <= 2 + 3 * (40 * 0.05 * 0.95) ** 0.5
    assert all(each.value <= each.ceiling for each in found)
    if epsilon:
        assert np.median([each.value for each in found]) > epsilon / 4


@pytest.mark.parametrize("bound", [one_run_bound, clopper_pearson_bound])
def test_no_privacy_is_shown_up_to_the_ceiling(bound):
    member = np.random.default_rng(3).random(500) < 0.5
    found = bound(member, member.astype(float), delta=DELTA, seed=0)
    assert found.value == pytest.approx(found.ceiling, rel=0.3)
    assert 3 < found.ceiling < 6


@pytest.mark.parametrize("bound", [one_run_bound, clopper_pearson_bound])
def test_the_same_seed_gives_the_same_bound(bound):
    member, score = told(2.0, 200, np.random.default_rng(4))
    one, other = (bound(member, score, delta=DELTA, seed=7) for _ in range(2))
    assert one == other
