"""E-values of groups that are asked in rounds, and may stop at any time.

Before any score is seen, the windows compared of each group are divided into rounds.
After each round the lowest null groups leave, and so does every audited group that
ranks no higher than they do. An audited group also stops when it is accepted, or when
no further round can bring it into the list. Decisions are a function of the scores, so
that a run that was killed decides as before.
"""

from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

import numpy as np
import polars as pl

from mia_batch.inference import findings
from mia_batch.inference.comparison import (
    ComparisonSets,
    cut_units,
    summarise,
    windows_per_group,
)
from mia_batch.inference.conformal import q_values
from mia_batch.stats import Flags, Floats, Ints
from mia_batch.tables import read_finite

# Share of a group's windows asked by the end of each round
_WINDOWS = (
    0.125,
    0.25,
    0.5,
    1.0,
)
_MOST_EARLY = 0.5  # of the shares, for rounds before the last
_LISTED = 0.5  # share of the groups with which early acceptance is planned
_DIGITS = 9


class Rounds(NamedTuple):
    """What is asked when and what it counts, fixed before any score is seen."""

    ends: tuple[int, ...]  # windows of a group asked by the end of each round
    kept: tuple[int, ...]  # null groups asked in each round
    shares: tuple[float, ...]  # of each round in a group's e-value; 1 in all
    values: tuple[float, ...]  # e-value of each rank from 1; of later ones it is 0


def plan_rounds(n_windows: int, n_null: int, q: float) -> Rounds:
    """Plan rounds for groups of so many windows, against K null groups at level q."""
    # Half of the null groups are left after each round. The e-value of rank r is (K +
    # 1) h(r), h(r) proportional to 1/r up to the square root of q (K + 1), the largest
    # rank that can be listed. Rounds before the last count as much as accepts a group
    # of rank 1 where half of all are listed, but together at most a half; where that
    # accepts none before the end, the last counts alone.
    ends = sorted({max(1, round(share * n_windows)) for share in _WINDOWS})
    n_ranks = max(1, isqrt(int(round(q * (n_null + 1), _DIGITS))))
    weights = 1 / np.arange(1, n_ranks + 1)
    values = (n_null + 1) * weights / weights.sum()
    kept = [max(min(n_null, n_ranks), n_null >> number) for number in range(len(ends))]
    early = 1 / (q * _LISTED * float(values[0]))
    n_early = min(int(_MOST_EARLY / early), len(ends) - 1)
    shares = [0.0] * (len(ends) - 1 - n_early) + [early] * n_early
    shares.append(1 - early * n_early)
    return Rounds(tuple(ends), tuple(kept), tuple(shares), tuple(values.tolist()))


def e_bh(values: Floats) -> Floats:
    """Smallest q at which e-BH lists each e-value: Wang and Ramdas (2022), arXiv:2009.02824."""
    return q_values(1 / np.maximum(values, 1.0), "e-bh")


class Decisions(NamedTuple):
    """What is decided of audited groups after some rounds, and who is asked next."""

    values: Floats  # e-value of each audited group
    accepted: Flags
    asked: Flags  # audited groups that go on: the undecided ones
    nulls_asked: Flags
    n_windows: Ints  # asked so far of each audited group
    n_null_windows: Ints  # and of each null group


def decide(
    groups: Floats,
    nulls: Floats,
    rounds: Rounds,
    q: float,
    *,
    statistic: findings.Statistic = "mean",
    n_rounds: int | None = None,
) -> Decisions:
    r"""Decide after the first ``n_rounds`` rounds (None: all) from scores of windows.

    ``groups`` and ``nulls`` have a line per group, windows in the order in which they
    are asked; NaN = no score, or not asked. With R the rank of a group after round t,
    over all its windows so far, among the null groups still asked (an equal null counts
    as higher),

    .. math:: E_g = \sum_t \gamma_t e(R_g(t)), \quad e(r) = (K + 1) h(r), \quad \sum_r h(r) = 1

    summed over the rounds in which g was asked. This holds however g is stopped: were g
    one of K + 1 exchangeable groups of which all but the first c(t) are left out after
    each round, it would be at each rank with probability at most 1 / (K + 1). The null
    groups kept here are the first c(t) of K, so the rank of g is never better, and
    whatever else stops g leaves out terms that are not negative. Conformal e-values:
    Bashari et al. (2023), arXiv:2302.07294; halving: Karnin, Koren and Somekh (2013).
    """
    of_rank = np.array([*rounds.values, 0.0])
    values = np.zeros(len(groups))
    asked, kept = np.ones(len(groups), np.bool_), np.ones(len(nulls), np.bool_)
    accepted = np.zeros(len(groups), np.bool_)
    n_windows, n_null_windows = (
        np.zeros(len(units), np.int64) for units in (groups, nulls)
    )
    for number, end in enumerate(rounds.ends[:n_rounds]):
        if not asked.any():
            break
        n_windows[asked], n_null_windows[kept] = end, end
        of_groups, of_nulls = (
            np.nan_to_num(summarise(windows[:, :end], statistic), nan=unscored)
            for windows, unscored in ((groups, -np.inf), (nulls, np.inf))
        )
        left = np.flatnonzero(kept)
        left = left[np.argsort(-of_nulls[left], kind="stable")]  # the highest first
        n_higher = left.size - np.searchsorted(of_nulls[left][::-1], of_groups)
        reached = of_rank[np.minimum(n_higher, of_rank.size - 1)]
        values = values + rounds.shares[number] * np.where(asked, reached, 0.0)
        n_next = rounds.kept[number + 1] if number + 1 < len(rounds.kept) else 0
        kept = np.isin(np.arange(len(nulls)), left[:n_next])
        asked &= n_higher < n_next
        to_come = of_rank[0] * sum(rounds.shares[number + 1 :])
        accepted = e_bh(values) <= q
        asked &= ~accepted & (e_bh(values + np.where(asked, to_come, 0.0)) <= q)
    return Decisions(
        values, accepted, asked, kept & asked.any(), n_windows, n_null_windows
    )


class RoundsTest:
    """The test of each group in rounds, prepared for tables of targets or scores."""

    # Audited groups with too few windows are never asked, and stay in the number of
    # tests.

    def __init__(self, sets: ComparisonSets, plan: findings.DecisionRule) -> None:
        self._plan, self._sets = plan, sets
        n_windows = windows_per_group(sets, plan)
        self._groups = cut_units(sets, sets.targets, n_windows, plan.seed)
        self._nulls = cut_units(sets, sets.nulls, n_windows, plan.seed)
        order = np.random.default_rng(plan.seed).permutation(n_windows)
        self._windows = self._groups.windows[:, order]
        self._null_windows = self._nulls.windows[:, order]
        self.n_groups, self.n_null = self._groups.cluster.size, len(self._null_windows)
        self.rounds = plan_rounds(n_windows, self.n_null, plan.q)

    def decisions(self, scores: Floats, n_rounds: int | None = None) -> Decisions:
        """Decide from the scores of all rows; NaN = unscored, or not asked."""
        groups = np.full((self.n_groups, self._windows.shape[1]), np.nan)
        groups[self._groups.usable] = scores[self._windows]
        nulls = scores[self._null_windows]
        plan, rounds = self._plan, self.rounds
        return decide(
            groups, nulls, rounds, plan.q, statistic=plan.statistic, n_rounds=n_rounds
        )

    def asked(self, decisions: Decisions, number: int) -> pl.Series:
        """Name the rows that may be asked in a round: its windows, and texts of other roles."""
        end = self.rounds.ends[number]
        rows = np.ones(self._sets.cluster.size, np.bool_)
        rows[self._sets.targets] = rows[self._sets.nulls] = False
        rows[self._windows[decisions.asked[self._groups.usable], :end]] = True
        rows[self._null_windows[decisions.nulls_asked, :end]] = True
        return self._sets.target_id.filter(pl.Series(rows))

    def may_be_asked(self, number: int) -> pl.Series:
        """Name the rows that may be asked in the first rounds if no group is decided before."""
        return self.asked(
            self.decisions(np.full(self._sets.cluster.size, np.nan), 0), number
        )

    def rows(self, found: findings.AttackScores) -> Iterator[pl.DataFrame]:
        if found.attack != self._plan.primary:
            return
        groups, n_windows = self._groups, self.rounds.ends[-1]
        values = np.where(groups.usable, self.decisions(found.scores).values, np.nan)
        names = self._sets.clusters[groups.cluster]
        yield findings.verdict_rows(
            values.size,
            attack=found.attack,
            level=names["level"].replace({"target": "document"}),
            key=names["key"],
            planned=found.is_planned(self._plan, "group"),
            score=values,
            n_null=self.n_null,
            p_value=1 / np.maximum(values, 1.0),
            q_value=np.where(groups.usable, e_bh(np.nan_to_num(values)), np.nan),
            adjustment="e-bh",
            method=f"e_value_{self._plan.statistic}_of_{n_windows}_in_{len(self.rounds.ends)}",
            reason=groups.why_unusable(),
        )

    def findings(self, scores: pl.LazyFrame) -> pl.DataFrame:
        score = read_finite(scores, self._plan.primary, self._sets.cluster.size)
        found, n_windows = self.decisions(score), self.rounds.ends[-1]
        enough = self._groups.usable
        counts = {
            "n_accepted": found.accepted.sum(),
            "n_out_of_reach": (~found.accepted & ~found.asked).sum(),
            "n_undecided": found.asked.sum(),
            "n_asked": found.n_windows[enough].sum() + found.n_null_windows.sum(),
            "n_planned": n_windows * (enough.sum() + self.n_null),
            "n_rounds": len(self.rounds.ends),
        }
        return findings.finding_rows("e_values", findings.number_rows(counts))
