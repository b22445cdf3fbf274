"""What few books allow: so many of the highest at least, and all attacks together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from mia_batch.inference.comparison import (
    cut_units,
    permuted_sums,
    pooled_ranks,
    read_comparison_sets,
    summarise,
    tests_groups,
    windows_per_group,
)
from mia_batch.inference.estimates import Flagged, fewest_members
from mia_batch.inference.findings import finding_rows, number_rows, read_rows
from mia_batch.schemas import Findings
from mia_batch.tables import read_finite

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from mia_batch.inference.comparison import Units
    from mia_batch.inference.findings import VerdictPlan

    Scores = NDArray[np.float64]
    Row = dict[str, object]


FEW_BOOKS = ("top", "max_t")
"""Names of the checks."""

_RANKS = (1, 2, 3, 5, 10, 20, 50, 100)
_NULLS_PER_RANK = 8  # fewer find less where few are far above, more where many are little above
_CONFIDENCE = 0.95
_MOST = 2_000  # units of each set that are permuted
_CHANGED = "attacks were added or left out since the plan was recorded"


class Top(NamedTuple):
    """Of the ``of_top`` highest units at least so many are members."""

    at_least: int
    of_top: int
    rank: int  # of the null unit that they lie above


class MaxT(NamedTuple):
    """Rank sums of attacks, standardised, with p-values adjusted for their number."""

    statistics: Scores
    p_values: Scores
    n_orders: int


def top_bound(targets: Scores, n_targets: int, nulls: Scores) -> Top:
    """Bound from below how many of the highest units are members, for some numbers of highest.

    For each k of 1, 2, 3, 5, 10, 20, 50 and 100 that is at most an eighth of the n nulls (1 always)
    F of the ``n_targets`` lie above the k-th largest null, and M of these are members at least, by
    `fewest_members` with the error of 5 % shared equally among the k. All hold at once; returned is
    the largest M, of equal ones the one with the smallest F. An unscored null (NaN) lies above
    everything, an unscored target is not flagged, a null as high as a target is higher.

    The law: Gumbel and von Schelling (1950), "The distribution of the number of exceedances".
    """
    ranks = _ranks(nulls.size)
    highest = np.sort(np.nan_to_num(nulls, nan=np.inf))[::-1]
    confidence = 1 - (1 - _CONFIDENCE) / len(ranks)
    found = []
    for rank in ranks:
        flagged = Flagged(int(np.count_nonzero(targets > highest[rank - 1])), n_targets)
        fewest = fewest_members(flagged, n_null=nulls.size, rank=rank, confidence=confidence)
        found.append(Top(fewest, int(flagged.above), rank))
    return max(found, key=lambda top: (top.at_least, -top.of_top))


def _ranks(n_null: int) -> list[int]:
    return [rank for rank in _RANKS if rank == 1 or rank * _NULLS_PER_RANK <= n_null]


def needed_for_bound(n_targets: int, n_null: int) -> int | None:
    """Return how many targets must lie above every null for a `top_bound` of 1, if any number."""
    from scipy.stats import betabinom

    error = (1 - _CONFIDENCE) / len(_ranks(n_null))
    needed = 1 + int(betabinom.isf(error, n_targets, 1, n_null))
    return needed if needed <= n_targets else None


def max_t(groups: Scores, nulls: Scores, seed: int) -> MaxT:
    r"""Test by several attacks whether G groups rank higher together than K null groups.

    Each line of ``groups`` and ``nulls`` is an attack. In the orders of `permuted_sums`, the same
    for all attacks, whole groups are exchanged; the sum of the G ranks \(r\) of an attack becomes

    .. math:: t = \frac{S - G (G + K + 1) / 2}{\sqrt{s_r^2 \, G K / (G + K)}}

    with the ranks' variance \(s_r^2\), so that mean and variance over all orders are 0 and 1; where
    all are equal t is 0. The adjusted p-value of the attack with the i-th largest t is the share of
    orders in which the largest t of it and those after it is as large, and no smaller than that
    before: the step-down maxT. The smallest tests all attacks together.

    Westfall and Young (1993), "Resampling-Based Multiple Testing", algorithm 4.1.
    """
    ranks = np.array([pooled_ranks(*attack) for attack in zip(groups, nulls, strict=True)])
    (n_groups, n_null), size = (groups.shape[1], nulls.shape[1]), ranks.shape[1]
    sums, _ = permuted_sums(ranks, n_groups, seed)
    spread = np.sqrt(ranks.var(axis=1, ddof=1) * n_groups * n_null / size)
    t = (sums - n_groups * (size + 1) / 2) / np.where(spread > 0, spread, 1)
    order = np.argsort(-t[0], kind="stable")
    largest = np.maximum.accumulate(t[:, order[::-1]], axis=1)[:, ::-1]
    p_values = np.empty(order.size)
    p_values[order] = np.maximum.accumulate((largest >= t[0, order]).mean(axis=0))
    return MaxT(t[0], p_values, len(t))


def few_books_findings(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    plan: VerdictPlan,
    planned: Collection[str] | None,
) -> pl.DataFrame:
    """Rows of checks ``top``, by the primary attack, and ``max_t``, by all that have scores.

    Units are whole groups, cut as `GroupTest` does, where the plan is about them or texts share
    documents or groups, else texts. ``planned`` are the attacks of a plan that holds, recorded
    before the first score; with others ``max_t`` has verdict ``exploratory``, else ``as_planned``.
    Of more than 2,000 units of a set so many are drawn for ``max_t``. None without nulls.
    """
    sets = read_comparison_sets(scores, named=plan.level != "target")
    if not (sets.targets.size and sets.nulls.size):
        return Findings.create_empty()
    grouped = tests_groups(sets, plan)
    n_windows = windows_per_group(sets, plan) if grouped else 1
    units = [cut_units(sets, rows, n_windows, plan.seed) for rows in (sets.targets, sets.nulls)]
    levels = sets.clusters[units[0].cluster]["level"] if grouped else ["text"]
    noun = next((level for level in ("group", "text") if level in levels), "document")
    score = read_finite(scores, plan.primary, sets.target_id.len())
    own, null = (of_set.statistics(score, plan) for of_set in units)
    reason = None if null.size else f"no null {noun} has {n_windows} windows"
    if plan.length_edges and not grouped:
        reason = "texts are compared with those of their own length alone"
    top = None if reason else top_bound(own, units[0].sizes.size, null)
    found = _top_rows(top, reason, units[0].sizes.size, null.size)
    made = [finding_rows("top", found, subject=noun)]
    if own.size and null.size:
        made.append(_max_t_findings(scores, attacks, plan, planned, units, noun))
    return pl.concat(made)


def _top_rows(top: Top | None, reason: str | None, n_tests: int, n_null: int) -> Iterator[Row]:
    some = top is not None and top.at_least > 0
    yield {
        "statistic": "at_least",
        "value": top and top.at_least,
        "verdict": top and ("some" if some else "none"),
        "reason": reason,
    }
    if top is not None and some:
        yield from number_rows({"of_top": top.of_top, "rank": top.rank})
    yield from number_rows({"n_tests": n_tests, "n_null": n_null, "confidence": _CONFIDENCE})


def _max_t_findings(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    plan: VerdictPlan,
    planned: Collection[str] | None,
    units: Sequence[Units],
    noun: str,
) -> pl.DataFrame:
    """Rows of several attacks that have scores: of all together, then of each."""
    rng = np.random.default_rng(plan.seed)
    chosen = [
        of_set.chosen[np.sort(rng.permutation(len(of_set.chosen))[:_MOST])] for of_set in units
    ]
    read = read_rows(scores, attacks, np.concatenate([lines.ravel() for lines in chosen]))
    windows = read.T.reshape(len(attacks), -1, chosen[0].shape[1])
    values = summarise(windows, plan.statistic)
    scored = np.asarray(~np.isnan(values).all(axis=1))
    names = [name for name, there in zip(attacks, scored, strict=True) if there]
    if len(names) < 2:
        return Findings.create_empty()
    sizes = [len(of_set) for of_set in chosen]
    groups, nulls = np.split(values[scored], sizes[:1], axis=1)
    found = max_t(groups, nulls, plan.seed)
    as_planned = planned is not None and {*planned} == {*attacks}
    all_together = {
        "subject": names[found.statistics.argmax()],
        "statistic": "largest",
        "value": found.statistics.max(),
        "p_value": found.p_values.min(),
        "verdict": "as_planned" if as_planned else "exploratory",
        "reason": None if as_planned or planned is None else _CHANGED,
    }
    counts = {"n_attacks": len(names), "n_orders": found.n_orders}
    counts |= {"n_tests": sizes[0], "n_null": sizes[1]}
    of_attacks = [
        {"subject": name, "statistic": "rank_sum", "value": t, "p_value": p}
        for name, t, p in zip(names, found.statistics, found.p_values, strict=True)
    ]
    return finding_rows("max_t", [all_together, *number_rows(counts, subject=noun), *of_attacks])
