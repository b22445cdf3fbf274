"""What the planned test can show at best, from the targets alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.findings import finding_rows
from mia_batch.inference.group_level import GroupTest
from mia_batch.inference.groups import n_orders
from mia_batch.inference.target_level import TargetTest

if TYPE_CHECKING:
    import polars as pl

    from mia_batch.inference.conformal import Adjustment
    from mia_batch.inference.plan import VerdictPlan

__all__ = ["Power", "planned_power", "power", "power_findings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What so many targets against so many nulls can show."""

    n_tests: int  # targets, or groups of them
    n_null: float  # non-members or groups; of a collection, the other orders that are tried
    smallest_p: float
    needed: int | None  # fewest that can be reported, each beating every null; None: none can be


def power(n_tests: int, n_null: float, q: float, adjustment: Adjustment) -> Power:
    """Say what m tests against n independent nulls can show at best.

    Under Benjamini-Hochberg r targets are reported where each p-value is at most r q / m, and none
    is below 1 / (n + 1): so r is at least ceil(m / (q (n + 1))), and so many targets that beat
    every null are reported. Nothing can be where r > m, that is, where n + 1 < 1 / q.
    Benjamini-Yekutieli divides q by the sum of 1 / i up to m.
    """
    share = q if adjustment == "bh" else q / float((1 / np.arange(1, n_tests + 1)).sum())
    needed = max(1, ceil(round(n_tests / (share * (n_null + 1)), 9)))
    return Power(
        n_tests=n_tests,
        n_null=n_null,
        smallest_p=1 / (n_null + 1),
        needed=needed if needed <= n_tests else None,
    )


def planned_power(targets: pl.LazyFrame, plan: VerdictPlan) -> Power | None:
    """Power of the planned test; None without targets or nulls.

    With buckets of lengths, the one with the most nulls counts.
    """
    sets = read_comparison_sets(targets)
    if not (sets.targets.size and sets.nulls.size):
        return None
    if plan.level == "target":
        test = TargetTest(sets, plan)
        return power(sets.targets.size, test.n_null, plan.q, test.adjustment)
    groups = GroupTest(sets, plan)
    n_groups, n_null = (int(units.enough.sum()) for units in (groups.groups, groups.nulls))
    if plan.level == "group":
        return power(groups.groups.sizes.size, n_null, plan.q, plan.adjustment)
    return power(1, n_orders(n_groups, n_null) - 1, plan.q, plan.adjustment)


def power_findings(targets: pl.LazyFrame, plan: VerdictPlan) -> pl.DataFrame:
    """Rows of check ``power`` about the planned level; none without targets or nulls.

    ``needed`` (not of a collection) has verdict ``possible`` or ``impossible``.
    """
    found = planned_power(targets, plan)
    if found is None:
        return finding_rows("power", [])
    names = ("n_tests", "n_null", "smallest_p")
    rows: list[dict[str, object]] = [
        {"statistic": name, "value": getattr(found, name)} for name in names
    ]
    if plan.level != "collection":
        verdict = "impossible" if found.needed is None else "possible"
        rows.append({"statistic": "q", "value": plan.q})
        rows.append({"statistic": "needed", "value": found.needed, "verdict": verdict})
    return finding_rows("power", [row | {"subject": plan.level} for row in rows])
