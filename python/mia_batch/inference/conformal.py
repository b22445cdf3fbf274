"""Conformal p-values: how high a score is among those of texts known to be outside.

In the arrays of this package NaN stands for a missing score; tables have null there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from mia_batch.inference.comparison import ComparisonSets, cut_units, summarise, windows_per_group
from mia_batch.inference.findings import (
    AttackScores,
    Statistic,
    VerdictPlan,
    finding_rows,
    number_rows,
    verdict_rows,
)
from mia_batch.stats import Flags, Floats, Ints
from mia_batch.tables import read_finite

# Conformal p-values: how high a score is among those of texts known to be outside.
#
# In the arrays of this package NaN stands for a missing score; tables have null there.


Adjustment = Literal["bh", "by", "e-bh"]
"""Benjamini-Hochberg; Benjamini-Yekutieli, which holds under any dependence; e-BH of e-values."""

_DIGITS_OF_SUMS = 9
_DIGITS = 12
_LEVEL = 0.05
_LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
NO_WEIGHT = "the blind classifiers did not see it, so that it has no weight"


class TieDraws(NamedTuple):
    """Numbers in [0, 1), one per score and null score, that order equal scores."""

    scores: Floats
    nulls: Floats


def p_values(
    scores: Floats,
    nulls: Floats,
    *,
    weights: Floats | None = None,
    own: Floats | float = 1.0,
    ties: TieDraws | None = None,
) -> Floats:
    r"""Conformal p-value of each score (NaN = unscored), the nulls being exchangeable with it.

    .. math:: p = (w + \sum_i w_i [\text{null}_i \ge \text{score}]) / (w + \sum_i w_i)

    ``own`` is w (NaN = unknown). Weights are 1 where nulls are exchangeable; `shared_weights` where
    groups share the nulls: Lee, Barber and Willett, arXiv:2306.06342; or odds of being audited by
    what else is known of a text: Tibshirani, Barber, Candes and Ramdas (2019), arXiv:1904.06019,
    equation 7. An unscored null (NaN) counts as higher than all, and without ``ties`` an equal one
    as higher. P(p <= a) <= a on average over null sets: Vovk, Gammerman and Shafer (2005),
    "Algorithmic Learning in a Random World", section 2.2; Bates et al. (2023), arXiv:2104.08279.
    """
    weight = np.ones(nulls.size) if weights is None else weights
    known = ~np.isnan(nulls)
    distinct = np.unique(nulls[known])
    index = distinct.searchsorted(nulls[known]).astype(np.float64)
    below = distinct.searchsorted(scores)
    wanted = below.astype(np.float64)
    if ties is not None:
        index += ties.nulls[known]
        tied = distinct[np.minimum(below, distinct.size - 1)] == scores if distinct.size else False
        wanted += np.where(tied, ties.scores, 0.0)
    order = index.argsort(kind="stable")
    lower = np.concatenate(([0.0], np.cumsum(weight[known][order])))
    not_lower = weight.sum() - lower[index[order].searchsorted(wanted)]
    # Rounded, so that three times 1/3 is 1.
    above, total = np.round(not_lower, _DIGITS_OF_SUMS), np.round(weight.sum(), _DIGITS_OF_SUMS)
    return np.where(np.isnan(scores), np.nan, (own + above) / (own + total))


def shared_weights(clusters: Ints) -> Floats:
    """Weights 1 / size of each null's cluster: each cluster counts as one."""
    _, which, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    weights: Floats = 1 / sizes[which]
    return weights


def tie_draws(keys: Iterable[str], seed: int) -> Floats:
    """Draw a multiple of 2**-53 in [0, 1) for each key: BLAKE2b of seed and key, in any order."""
    digests = b"".join(
        blake2b(f"{seed}:{key}".encode(), digest_size=8, person=b"mia-ties").digest()
        for key in keys
    )
    numbers = np.frombuffer(digests, ">u8") >> np.uint64(11)
    return numbers.astype(np.float64) * 2.0**-53


def q_values(p: Floats, adjustment: Adjustment) -> Floats:
    """Adjust p-values: of all with q <= x at most a share x is false, on average over null sets.

    Of several audits each has a line. A missing p-value (NaN) counts as 1 and as a test. Benjamini
    and Hochberg (1995); Benjamini and Yekutieli (2001), theorem 1.3; that p-values which share
    their nulls allow the first: Bates et al. (2023), arXiv:2104.08279.
    """
    from scipy.stats import false_discovery_control

    missing = np.isnan(p)
    method: Literal["bh", "by"] = "by" if adjustment == "by" else "bh"  # e-BH: of p = 1 / e
    adjusted = false_discovery_control(np.where(missing, 1.0, p), axis=-1, method=method)
    return np.where(missing, np.nan, np.round(adjusted, _DIGITS))


def weighted_q_values(
    scores: Floats, p: Floats, own: Floats, total: float, q: float, names: Iterable[str], seed: int
) -> Floats:
    """Lowest level in `_LEVELS`, or ``q``, at which each weighted p-value is on the list, else 1.

    Weighted conformalized selection with homogeneous pruning by one number, drawn from the
    ``names`` of all tests and the seed: Jin and Candes (2023), arXiv:2307.09291, algorithm 1.
    ``own`` are the scores' weights, ``total`` is that of all nulls.
    """
    made = np.where(np.isnan(p), np.nan, 1.0)
    known = np.flatnonzero(~np.isnan(p))
    p, own, scores = p[known], own[known], scores[known]
    ranks, draw = np.arange(known.size + 1), tie_draws(["\n".join(names)], seed)[0]
    # One line for each test: the p-values of all were it one more null, and its own were 0.
    above = p * (own + total) - own + own[:, None] * (scores <= scores[:, None])
    others = above / (own[:, None] + total)
    np.fill_diagonal(others, 0)
    others.sort(axis=1)
    for level in sorted({q, *_LEVELS} if known.size else (), reverse=True):
        reached = np.round(others - level * ranks[1:] / made.size, _DIGITS) <= 0
        size = known.size - reached[:, ::-1].argmax(axis=1)
        first = np.round(p - level * size / made.size, _DIGITS) <= 0
        order = np.where(first, draw * size, np.inf)
        most = np.flatnonzero(np.sort(order).searchsorted(ranks, side="right") >= ranks)[-1]
        listed = (order <= most) & ((level >= q) | (made[known] <= q))
        made[known[listed]] = level
    return made


def sensitivity_bound(p: Floats) -> Floats:
    r"""Bias in the odds of scoring high, without membership, that would lift p above a = 0.05.

    .. math:: \Gamma = \frac{1 / p - 1}{1 / a - 1}

    Where the odds of one of n + 1 ranks against another are up to \(\Gamma\) times as large, a
    target is in the first k = p (n + 1) with probability at most \(\Gamma k / (\Gamma k + n + 1 -
    k)\). At least 1; NaN where p is missing or above 0.05. After Rosenbaum (1987), "Sensitivity
    analysis for certain permutation inferences in matched observational studies".
    """
    low = np.where(p <= _LEVEL, p, np.nan)
    bounds: Floats = np.round((1 / low - 1) / (1 / _LEVEL - 1), _DIGITS)
    return bounds  # rounding keeps p = 0.05 at 1


# Monte-Carlo error of scores: how far they depend on the samples that were drawn.

_SAME = 1e-9  # relative difference of a score and the mean of its samples' values


def score_errors(values: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """``target_id`` and ``standard_error`` of each ``score``, in its unit.

    ``values`` has the attack's ``value`` on each sample alone. The error is null where fewer than
    two samples have a value, or the score is not their mean.
    """
    found = values.join(scores.select("target_id", row=pl.int_range(pl.len())), on="target_id")
    samples = found["sample_index"].rank("dense").to_numpy().astype(np.int64) - 1
    matrix = np.full((scores.height, int(samples.max(initial=0)) + 1), np.nan)  # NaN = no sample
    matrix[found["row"].to_numpy(), samples] = found["value"].fill_null(np.nan)
    score, present = scores["score"].to_numpy(), ~np.isnan(matrix)
    n = present.sum(axis=1)
    errors, many = np.full(n.size, np.nan), n > 1
    errors[many] = np.nanstd(matrix[many], axis=1, ddof=1) / np.sqrt(n[many])
    means = np.where(present, matrix, 0.0).sum(axis=1) / np.maximum(n, 1)
    errors[~(np.isnan(score) | np.isclose(means, score, rtol=_SAME, atol=1e-12))] = np.nan
    return scores.select("target_id", standard_error=pl.Series(errors, nan_to_null=True))


# E-values of groups that are asked in rounds, and may stop at any time.
#
# Before any score is seen, the windows compared of each group are divided into rounds. After each
# round the lowest null groups leave, and so does every audited group that ranks no higher than
# they do. An audited group also stops when it is accepted, or when no further round can bring it
# into the list. Decisions are a function of the scores, so that a run that was killed decides as
# before.


_WINDOWS = (0.125, 0.25, 0.5, 1.0)  # share of a group's windows asked by the end of each round
_MOST_EARLY = 0.5  # of the shares, for rounds before the last
_LISTED = 0.5  # share of the groups with which early acceptance is planned
_E_VALUES_DIGITS = 9


class Rounds(NamedTuple):
    """What is asked when and what it counts, fixed before any score is seen."""

    ends: tuple[int, ...]  # windows of a group asked by the end of each round
    kept: tuple[int, ...]  # null groups asked in each round
    shares: tuple[float, ...]  # of each round in a group's e-value; 1 in all
    values: tuple[float, ...]  # e-value of each rank from 1; of later ones it is 0


def plan_rounds(n_windows: int, n_null: int, q: float) -> Rounds:
    """Plan rounds for groups of so many windows, against K null groups at level q.

    Half of the null groups are left after each round. The e-value of rank r is (K + 1) h(r), h(r)
    proportional to 1/r up to the square root of q (K + 1), the largest rank that can be listed.
    Rounds before the last count as much as accepts a group of rank 1 where half of all are listed,
    but together at most a half; where that accepts none before the end, the last counts alone.
    """
    ends = sorted({max(1, round(share * n_windows)) for share in _WINDOWS})
    n_ranks = max(1, isqrt(int(round(q * (n_null + 1), _E_VALUES_DIGITS))))
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
    statistic: Statistic = "mean",
    n_rounds: int | None = None,
) -> Decisions:
    r"""Decide after the first ``n_rounds`` rounds (None: all) from scores of windows.

    ``groups`` and ``nulls`` have a line per group, windows in the order in which they are asked;
    NaN = no score, or not asked. With R the rank of a group after round t, over all its windows so
    far, among the null groups still asked (an equal null counts as higher),

    .. math:: E_g = \sum_t \gamma_t e(R_g(t)), \quad e(r) = (K + 1) h(r), \quad \sum_r h(r) = 1

    summed over the rounds in which g was asked. This holds however g is stopped: were g one of K +
    1 exchangeable groups of which all but the first c(t) are left out after each round, it would be
    at each rank with probability at most 1 / (K + 1). The null groups kept here are the first c(t)
    of K, so the rank of g is never better, and whatever else stops g leaves out terms that are not
    negative. Conformal e-values: Bashari et al. (2023), arXiv:2302.07294; halving: Karnin, Koren
    and Somekh (2013).
    """
    of_rank = np.array([*rounds.values, 0.0])
    values = np.zeros(len(groups))
    asked, kept = np.ones(len(groups), np.bool_), np.ones(len(nulls), np.bool_)
    accepted = np.zeros(len(groups), np.bool_)
    n_windows, n_null_windows = (np.zeros(len(units), np.int64) for units in (groups, nulls))
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
    return Decisions(values, accepted, asked, kept & asked.any(), n_windows, n_null_windows)


class RoundsTest:
    """The test of each group in rounds, prepared for tables of targets or scores.

    Audited groups with too few windows are never asked, and stay in the number of tests.
    """

    def __init__(self, sets: ComparisonSets, plan: VerdictPlan) -> None:
        self._plan, self._sets = plan, sets
        n_windows = windows_per_group(sets, plan)
        self._groups = cut_units(sets, sets.targets, n_windows, plan.seed)
        self._nulls = cut_units(sets, sets.nulls, n_windows, plan.seed)
        order = np.random.default_rng(plan.seed).permutation(n_windows)
        self._windows = self._groups.chosen[:, order]
        self._null_windows = self._nulls.chosen[:, order]
        self.n_groups, self.n_null = self._groups.cluster.size, len(self._null_windows)
        self.rounds = plan_rounds(n_windows, self.n_null, plan.q)

    def decisions(self, scores: Floats, n_rounds: int | None = None) -> Decisions:
        """Decide from the scores of all rows; NaN = unscored, or not asked."""
        groups = np.full((self.n_groups, self._windows.shape[1]), np.nan)
        groups[self._groups.enough] = scores[self._windows]
        nulls = scores[self._null_windows]
        plan, rounds = self._plan, self.rounds
        return decide(groups, nulls, rounds, plan.q, statistic=plan.statistic, n_rounds=n_rounds)

    def asked(self, decisions: Decisions, number: int) -> pl.Series:
        """Name the rows that may be asked in a round: its windows, and texts of other roles."""
        end = self.rounds.ends[number]
        rows = np.ones(self._sets.cluster.size, np.bool_)
        rows[self._sets.targets] = rows[self._sets.nulls] = False
        rows[self._windows[decisions.asked[self._groups.enough], :end]] = True
        rows[self._null_windows[decisions.nulls_asked, :end]] = True
        return self._sets.target_id.filter(pl.Series(rows))

    def may_be_asked(self, number: int) -> pl.Series:
        """Name the rows that may be asked in the first rounds if no group is decided before."""
        return self.asked(self.decisions(np.full(self._sets.cluster.size, np.nan), 0), number)

    def rows(self, found: AttackScores) -> Iterator[pl.DataFrame]:
        """Yield verdicts on every group, by name, of the attack that decides who is asked."""
        if found.attack != self._plan.primary:
            return
        groups, n_windows = self._groups, self.rounds.ends[-1]
        values = np.where(groups.enough, self.decisions(found.scores).values, np.nan)
        names = self._sets.clusters[groups.cluster]
        yield verdict_rows(
            values.size,
            attack=found.attack,
            level=names["level"].replace({"target": "document"}),
            key=names["key"],
            planned=found.planned(self._plan, "group"),
            score=values,
            n_null=self.n_null,
            p_value=1 / np.maximum(values, 1.0),
            q_value=np.where(groups.enough, e_bh(np.nan_to_num(values)), np.nan),
            adjustment="e-bh",
            method=f"e_value_{self._plan.statistic}_of_{n_windows}_in_{len(self.rounds.ends)}",
            reason=groups.too_few(),
        )

    def findings(self, scores: pl.LazyFrame) -> pl.DataFrame:
        score = read_finite(scores, self._plan.primary, self._sets.cluster.size)
        found, n_windows = self.decisions(score), self.rounds.ends[-1]
        enough = self._groups.enough
        counts = {
            "n_accepted": found.accepted.sum(),
            "n_out_of_reach": (~found.accepted & ~found.asked).sum(),
            "n_undecided": found.asked.sum(),
            "n_asked": found.n_windows[enough].sum() + found.n_null_windows.sum(),
            "n_planned": n_windows * (enough.sum() + self.n_null),
            "n_rounds": len(self.rounds.ends),
        }
        return finding_rows("e_values", number_rows(counts))
