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
_WINDOWS = (0.125, 0.25, 0.5, 1.0)
_MOST_EARLY = 0.5  # of the shares, for rounds before the last
_LISTED = 0.5  # share of the groups with which early acceptance is planned
_DIGITS = 9


class Rounds(NamedTuple):
    """What is asked when and what it counts, fixed before any score is seen."""

    ends: tuple[int, ...]  # windows of a group asked by the end of each round
    n_nulls: tuple[int, ...]  # null groups asked in each round
    shares: tuple[float, ...]  # of each round in a group's e-value; 1 in all
    values: tuple[float, ...]  # e-value of each rank from 1; of later ones it is 0


def plan_rounds(
    n_windows: int,
    n_null: int,
    q: float,
) -> Rounds:
    """Plan rounds for groups of so many windows, against K null groups at level q."""
    # Half of the null groups are left after each round. The e-value of rank r is (K +
    # 1) h(r), h(r) proportional to 1/r up to the square root of q (K + 1), the largest
    # rank that can be listed. Rounds before the last count as much as accepts a group
    # of rank 1 where half of all are listed, but together at most a half; where that
    # accepts none before the end, the last counts alone.
    ends = sorted({max(1, round(share * n_windows)) for share in _WINDOWS})
    n_rounds = len(ends)
    n_ranks = max(1, isqrt(int(round(q * (n_null + 1), _DIGITS))))
    weights = 1 / np.arange(1, n_ranks + 1)
    values = (n_null + 1) * weights / weights.sum()
    fewest = min(n_null, n_ranks)
    n_nulls = [max(fewest, n_null >> number) for number in range(n_rounds)]
    early = 1 / (q * _LISTED * float(values[0]))
    n_early = min(int(_MOST_EARLY / early), n_rounds - 1)
    shares = [0.0] * (n_rounds - 1 - n_early) + [early] * n_early
    shares.append(1 - early * n_early)
    return Rounds(
        ends=tuple(ends),
        n_nulls=tuple(n_nulls),
        shares=tuple(shares),
        values=tuple(values.tolist()),
    )


def e_bh(values: Floats) -> Floats:
    """Smallest q at which e-BH lists each e-value: Wang and Ramdas (2022), arXiv:2009.02824."""
    return q_values(1 / np.maximum(values, 1.0), "e-bh")


class Decisions(NamedTuple):
    """What is decided of audited groups after some rounds, and which are asked next."""

    values: Floats  # e-value of each audited group
    accepted: Flags
    undecided: Flags  # audited groups that are asked again
    nulls_left: Flags  # null groups that are asked again
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
    value_of_rank = np.array([*rounds.values, 0.0])
    values = np.zeros(len(groups))
    accepted = np.zeros(len(groups), np.bool_)
    undecided = np.ones(len(groups), np.bool_)
    nulls_left = np.ones(len(nulls), np.bool_)
    n_windows = np.zeros(len(groups), np.int64)
    n_null_windows = np.zeros(len(nulls), np.int64)
    for number, end in enumerate(rounds.ends[:n_rounds]):
        if not undecided.any():
            break
        n_windows[undecided] = end
        n_null_windows[nulls_left] = end
        group_scores = np.nan_to_num(summarise(groups[:, :end], statistic), nan=-np.inf)
        null_scores = np.nan_to_num(summarise(nulls[:, :end], statistic), nan=np.inf)
        highest_first = _sort_nulls(null_scores, nulls_left)
        ascending = null_scores[highest_first][::-1]
        n_higher = ascending.size - np.searchsorted(ascending, group_scores)
        ranks = np.minimum(n_higher, value_of_rank.size - 1)
        gained = np.where(undecided, value_of_rank[ranks], 0.0)
        values = values + rounds.shares[number] * gained
        n_next = (*rounds.n_nulls, 0)[number + 1]
        nulls_left = np.isin(np.arange(len(nulls)), highest_first[:n_next])
        undecided &= n_higher < n_next
        to_come = value_of_rank[0] * sum(rounds.shares[number + 1 :])
        highest_values = values + np.where(undecided, to_come, 0.0)
        accepted = e_bh(values) <= q
        undecided &= ~accepted & (e_bh(highest_values) <= q)
    return Decisions(
        values=values,
        accepted=accepted,
        undecided=undecided,
        nulls_left=nulls_left & undecided.any(),
        n_windows=n_windows,
        n_null_windows=n_null_windows,
    )


def _sort_nulls(scores: Floats, is_left: Flags) -> Ints:
    """Sort the null groups that are left, the highest first."""
    remaining = np.flatnonzero(is_left)
    order = np.argsort(-scores[remaining], kind="stable")
    return remaining[order]


class RoundsTest:
    """The test of each group in rounds, prepared for tables of targets or scores."""

    # Audited groups with too few windows are never asked, and stay in the number of
    # tests.

    def __init__(self, sets: ComparisonSets, rule: findings.DecisionRule) -> None:
        self._rule = rule
        self._sets = sets
        n_windows = windows_per_group(sets, rule)
        self._groups = cut_units(
            sets,
            sets.targets,
            n_windows,
            rule.seed,
        )
        nulls = cut_units(
            sets,
            sets.nulls,
            n_windows,
            rule.seed,
        )
        order = np.random.default_rng(rule.seed).permutation(n_windows)
        self._windows = self._groups.windows[:, order]
        self._null_windows = nulls.windows[:, order]
        self.n_groups = self._groups.cluster.size
        self.n_null = len(self._null_windows)
        self.rounds = plan_rounds(n_windows, self.n_null, rule.q)

    def decisions(self, scores: Floats, n_rounds: int | None = None) -> Decisions:
        """Decide from the scores of all rows; NaN = unscored, or not asked."""
        groups = np.full((self.n_groups, self._windows.shape[1]), np.nan)
        groups[self._groups.usable] = scores[self._windows]
        nulls = scores[self._null_windows]
        return decide(
            groups,
            nulls,
            self.rounds,
            self._rule.q,
            statistic=self._rule.statistic,
            n_rounds=n_rounds,
        )

    def list_texts(self, decisions: Decisions, number: int) -> pl.Series:
        """List texts that may be asked in a round: its windows, and those of other roles."""
        end = self.rounds.ends[number]
        undecided = decisions.undecided[self._groups.usable]
        may_be_asked = np.ones(self._sets.cluster.size, np.bool_)
        may_be_asked[self._sets.targets] = False
        may_be_asked[self._sets.nulls] = False
        may_be_asked[self._windows[undecided, :end]] = True
        may_be_asked[self._null_windows[decisions.nulls_left, :end]] = True
        return self._sets.target_id.filter(pl.Series(may_be_asked))

    def may_be_asked(self, number: int) -> pl.Series:
        """List the texts of the first rounds if no group is decided before."""
        unscored = np.full(self._sets.cluster.size, np.nan)
        return self.list_texts(self.decisions(unscored, 0), number)

    def rows(self, attack_scores: findings.AttackScores) -> Iterator[pl.DataFrame]:
        if attack_scores.attack != self._rule.primary:
            return
        groups = self._groups
        decisions = self.decisions(attack_scores.scores)
        values = np.where(groups.usable, decisions.values, np.nan)
        q = e_bh(np.nan_to_num(values))
        names = self._sets.clusters[groups.cluster]
        ends = self.rounds.ends
        yield findings.verdict_rows(
            values.size,
            attack=attack_scores.attack,
            level=names["level"].replace({"target": "document"}),
            key=names["key"],
            planned=attack_scores.is_planned(self._rule, "group"),
            score=values,
            n_null=self.n_null,
            p_value=1 / np.maximum(values, 1.0),
            q_value=np.where(groups.usable, q, np.nan),
            adjustment="e-bh",
            method=f"e_value_{self._rule.statistic}_of_{ends[-1]}_in_{len(ends)}",
            reason=groups.why_unusable(),
        )

    def findings(self, scores: pl.LazyFrame) -> pl.DataFrame:
        n_rows = self._sets.cluster.size
        decisions = self.decisions(read_finite(scores, self._rule.primary, n_rows))
        accepted = decisions.accepted
        undecided = decisions.undecided
        usable = self._groups.usable
        n_asked = decisions.n_windows[usable].sum() + decisions.n_null_windows.sum()
        n_windows = self.rounds.ends[-1]
        numbers = {
            "n_accepted": accepted.sum(),
            "n_out_of_reach": (~accepted & ~undecided).sum(),
            "n_undecided": undecided.sum(),
            "n_asked": n_asked,
            "n_planned": n_windows * (usable.sum() + self.n_null),
            "n_rounds": len(self.rounds.ends),
        }
        return findings.finding_rows("e_values", findings.number_rows(numbers))
