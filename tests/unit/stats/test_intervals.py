from __future__ import annotations

from itertools import product
from math import exp, log
from statistics import NormalDist, variance
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import Polynomial

from mia_batch.stats.intervals import auc_interval, estimate_auc, estimate_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia_batch.stats.intervals import Interval

Z = NormalDist().inv_cdf(0.975)


def wins(member: float, nonmember: float) -> float:
    return (member > nonmember) + (member == nonmember) / 2


def auc_of(members: Sequence[float], nonmembers: Sequence[float]) -> float:
    return sum(wins(*pair) for pair in product(members, nonmembers)) / (
        len(members) * len(nonmembers)
    )


def delong_reference(members: Sequence[float], nonmembers: Sequence[float]) -> list[float]:
    """DeLong et al. 1988, equations 4 and 5 for one curve, and the interval of its logit."""
    auc = auc_of(members, nonmembers)
    of_members = [sum(wins(x, y) for y in nonmembers) / len(nonmembers) for x in members]
    of_nonmembers = [sum(wins(x, y) for x in members) / len(members) for y in nonmembers]
    total = variance(of_members) / len(members) + variance(of_nonmembers) / len(nonmembers)
    half = Z * total**0.5 / (auc * (1 - auc))
    centre = log(auc / (1 - auc))
    return [1 / (1 + exp(-(centre - half))), 1 / (1 + exp(-(centre + half)))]


def newcombe_reference(auc: float, n_members: int, n_nonmembers: int) -> list[float]:
    """Newcombe 2006, method 5: the two roots around the AUC, as zeros of a polynomial."""
    extra = (n_members + n_nonmembers) / 2 - 1
    tried = Polynomial([0, 1])
    above, below = 2 - tried, 1 + tried
    spread = above * below + extra * ((1 - tried) * below + tried * above)
    gap = (auc - tried) ** 2 * above * below
    roots = (gap - Z**2 * tried * (1 - tried) * spread / (n_members * n_nonmembers)).roots()
    real = np.sort(roots[np.abs(roots.imag) < 1e-9].real)
    inside = real[(real > -1e-9) & (real < 1 + 1e-9)]
    return [inside[0], inside[-1]]


def interval(members: Sequence[float], nonmembers: Sequence[float]) -> Interval:
    return auc_interval(np.array(members, float), np.array(nonmembers, float))


@pytest.mark.parametrize("sizes", [(10, 4), (30, 50), (7, 90)])
def test_delong_equals_its_reference(sizes):
    rng = np.random.default_rng(0)
    members, nonmembers = rng.integers(1, 13, sizes[0]), rng.integers(0, 12, sizes[1])
    made = interval(members, nonmembers)
    assert made.method == "delong_logit"
    assert [made.low, made.high] == pytest.approx(
        delong_reference(members.tolist(), nonmembers.tolist()), rel=1e-12
    )


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


@pytest.mark.parametrize(
    ("members", "nonmembers"), [([1] * 5, [1] * 5), ([1], [0, 2]), ([1, 2], [1.5]), ([1], [1])]
)
def test_where_delong_has_no_width_newcombe_has(members, nonmembers):
    made = interval(members, nonmembers)
    assert made.method == "newcombe_5"
    assert made.low < 0.5 < made.high


def test_a_higher_confidence_is_wider():
    members, nonmembers = np.array([1.0, 3, 5, 6]), np.array([0.0, 2, 4, 4])
    narrow = auc_interval(members, nonmembers, confidence=0.5)
    wide = auc_interval(members, nonmembers, confidence=0.99)
    assert wide.low < narrow.low < 0.75 < narrow.high < wide.high
    assert (narrow.confidence, wide.confidence) == (0.5, 0.99)


SCORES = st.lists(st.integers(0, 8), min_size=1, max_size=25)


@given(SCORES, SCORES)
def test_an_interval_holds_its_auc_has_width_and_mirrors(members, nonmembers):
    made, mirrored = interval(members, nonmembers), interval(nonmembers, members)
    assert 0 <= made.low <= auc_of(members, nonmembers) <= made.high <= 1
    assert made.high - made.low > 1e-3
    assert [made.low, made.high] == pytest.approx([1 - mirrored.high, 1 - mirrored.low], abs=1e-9)


def shares(kind: str, n_groups: int) -> list[float]:
    """Shares of a class's texts: as 1, 1/2, 1/3 ..., or one group with 30 %, 80 %, others alike."""
    if kind == "zipf":
        weights = 1 / np.arange(1, n_groups + 1)
        return list(weights / weights.sum())
    giant = float(kind)
    return [giant, *[(1 - giant) / (n_groups - 1)] * (n_groups - 1)]


@pytest.mark.parametrize(
    ("kind", "n_groups", "heavy", "effective"),
    [
        ("zipf", 20, False, 8),
        ("zipf", 100, True, 17),
        ("0.3", 40, True, 9.8),
        ("0.8", 10, False, 1.5),
    ],
)
def test_unequal_groups_keep_the_coverage_or_have_no_interval(kind, n_groups, heavy, effective):
    """Scores of a class share an effect of their group; 600 data sets."""
    rng = np.random.default_rng(0)
    sizes = np.maximum(1, np.round(np.array(shares(kind, n_groups)) * 10 * n_groups)).astype(int)
    cluster = np.repeat(np.arange(2 * n_groups, dtype=np.int32), [*sizes, *sizes])
    member = cluster < n_groups
    truth = NormalDist().cdf(0.36 / 2**0.5)
    held = []
    for _ in range(600):
        effects = (
            rng.standard_t(3, 2 * n_groups) / 3**0.5 if heavy else rng.normal(size=2 * n_groups)
        )
        score = (
            0.36 * member + 0.3**0.5 * effects[cluster] + 0.7**0.5 * rng.normal(size=member.size)
        )
        estimate, _ = estimate_auc(member, score, cluster)
        assert estimate.n_groups == pytest.approx(effective, rel=0.1)
        if (made := estimate_interval(estimate)) is not None:
            held.append(made.low <= truth <= made.high)
    assert len(held) == (600 if effective > 4 else 0)
    assert not held or np.mean(held) > 0.93 - 3 * (0.05 * 0.95 / 600) ** 0.5
