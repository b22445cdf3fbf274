"""Intervals of shares of a population that was drawn from, against slow references."""

from math import comb, exp, factorial

import numpy as np
import pytest
from scipy.optimize import brentq

from mia_batch.stats.drawn import (
    DomainStratum,
    Stratum,
    estimate_domain_share,
    hypergeometric_interval,
    share_interval,
    weighted_share,
)


def chance(hits, n_hits_of_all, total, drawn):
    if not 0 <= hits <= n_hits_of_all or not 0 <= drawn - hits <= total - n_hits_of_all:
        return 0.0
    ways = comb(n_hits_of_all, hits) * comb(total - n_hits_of_all, drawn - hits)
    return ways / comb(total, drawn)


def interval_reference(total, drawn, hits):
    """Every number of hits that is not contradicted, by counting ways."""
    kept = []
    for n in range(total + 1):
        as_many = sum(chance(k, n, total, drawn) for k in range(hits, drawn + 1))
        as_few = sum(chance(k, n, total, drawn) for k in range(hits + 1))
        if as_many > 0.025 and as_few > 0.025:
            kept.append(n)
    return kept[0] / total, kept[-1] / total


@pytest.mark.parametrize(
    ("total", "drawn", "hits"),
    [(10, 4, 0), (10, 4, 4), (30, 12, 5), (40, 39, 1), (25, 25, 7), (60, 7, 3)],
)
def test_the_interval_of_one_part_is_exact(total, drawn, hits):
    interval = hypergeometric_interval(Stratum(total, drawn, hits))
    assert interval[:2] == interval_reference(total, drawn, hits)
    assert interval.method == "hypergeometric"


def test_by_hand_one_drawn_of_two():
    # With 0 of 2 a hit never comes, with 1 it comes with 1/2: both 1 and 2 are possible
    assert hypergeometric_interval(Stratum(2, 1, 1))[:2] == (0.5, 1.0)
    assert hypergeometric_interval(Stratum(2, 2, 1))[:2] == (0.5, 0.5)


def test_the_interval_of_one_part_covers_whatever_the_share():
    total, drawn = 50, 11
    for n in range(total + 1):
        covered = 0.0
        for hits in range(drawn + 1):
            probability = chance(hits, n, total, drawn)
            if probability:
                low, high, *_ = hypergeometric_interval(Stratum(total, drawn, hits))
                covered += probability * (low <= n / total <= high)
        assert covered >= 0.95 - 1e-12


def poisson_limits(count):
    """Garwood's limits of a Poisson mean, from its probabilities."""

    def at_most(k, mean):
        return sum(exp(-mean) * mean**i / factorial(i) for i in range(k + 1))

    low = brentq(lambda mean: 1 - at_most(count - 1, mean) - 0.025, 1e-9, 50)
    return low, brentq(lambda mean: at_most(count, mean) - 0.025, 1e-9, 50)


def test_with_equal_weights_the_limits_of_several_parts_are_those_of_a_count():
    parts = [Stratum(10_000, 100, 2), Stratum(30_000, 300, 3)]
    low, high = poisson_limits(5)
    assert share_interval(parts)[:2] == pytest.approx((low / 400, high / 400))


def test_parts_that_were_drawn_as_a_whole_have_no_error():
    whole = [Stratum(40, 40, 10), Stratum(60, 60, 20)]
    assert share_interval(whole)[:2] == pytest.approx((0.3, 0.3))
    assert weighted_share(whole) == 0.3
    low, high, *_ = share_interval([Stratum(50, 50, 50), Stratum(50, 10, 0)])
    # Of the other half at most 3.689 / 10, the limit of a count of 0
    assert (low, high) == pytest.approx((0.5, 0.5 + 0.5 * 3.6888794541139363 / 10))


def test_parts_count_by_their_sizes():
    parts = [Stratum(900, 10, 1), Stratum(100, 10, 9)]
    assert weighted_share(parts) == pytest.approx(0.9 * 0.1 + 0.1 * 0.9)
    low, high, *_ = share_interval(parts)
    assert low < 0.18 < high


def domain_reference(parts):
    """The combined ratio and its variance from one value for each document drawn."""
    rows = []
    for total, drawn, domain, hits in parts:
        y = np.r_[np.ones(hits), np.zeros(drawn - hits)]
        x = np.r_[np.ones(domain), np.zeros(drawn - domain)]
        rows.append((total, drawn, y, x))
    size = sum(total * x.mean() for total, _, _, x in rows)
    share = sum(total * y.mean() for total, _, y, _ in rows) / size
    variance = 0.0
    for total, drawn, y, x in rows:
        # With a hit and another one in the domain
        residuals = np.r_[y, 1, 0] - share * np.r_[x, 1, 1]
        variance += total**2 * (1 - drawn / total) * residuals.var(ddof=1) / drawn
    return share, variance / size**2, size


def test_the_share_of_a_domain_is_a_combined_ratio():
    parts = [DomainStratum(500, 40, 30, 6), DomainStratum(80, 20, 20, 15)]
    estimate = estimate_domain_share(parts)
    assert [*estimate] == pytest.approx(domain_reference(parts))
    # By hand: (500 * 6/40 + 80 * 15/20) / (500 * 30/40 + 80)
    assert estimate.share == pytest.approx(135 / 455)
    whole = estimate_domain_share([DomainStratum(100, 100, 100, 37)])
    assert [*whole] == pytest.approx([0.37, 0.0, 100.0])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.5])
def test_intervals_of_several_parts_cover(share):
    rng = np.random.default_rng(1)
    parts = [(60_000, 300, 0.5), (25_000, 300, 1.0), (15_000, 300, 2.0)]
    scale = share / (sum(total * factor for total, _, factor in parts) / 100_000)
    hits = [round(total * min(1.0, factor * scale)) for total, _, factor in parts]
    truth = sum(hits) / 100_000
    n_covered = 0
    for _ in range(400):
        strata = []
        for (total, drawn, _), n in zip(parts, hits, strict=True):
            n_hits = rng.hypergeometric(n, total - n, drawn)
            strata.append(Stratum(total, drawn, int(n_hits)))
        low, high, *_ = share_interval(strata)
        n_covered += low <= truth <= high
    assert n_covered >= 0.93 * 400
