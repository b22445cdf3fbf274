"""What a run can show at best, said before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mia_batch.inference.multiplicity import Adjustment
    from mia_batch.inference.plan import PlanLevel

__all__ = ["Power", "power"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What so many targets against so many nulls can show.

    Attributes
    ----------
    n_targets
        Targets, or groups of them: the number of tests.
    n_null
        Non-members, or groups of them where they share groups; for a collection, the other ways
        to name so many groups the audited ones that are tried.
    q
        The share of false discoveries allowed.
    adjustment
        The procedure that bounds it.
    smallest_p
        The smallest p-value there can be, 1 / (n_null + 1).
    needed
        The fewest targets that can be reported; they must beat every null. None: nothing can be.
    level
        What the tests are about.
    """

    n_targets: int
    n_null: int
    q: float
    adjustment: Adjustment
    smallest_p: float
    needed: int | None
    level: PlanLevel

    @property
    def sentences(self) -> tuple[str, ...]:
        """What to print before a run."""
        smallest = (
            f"the smallest p-value there can be is {self.smallest_p:.2g}, "
            f"one in {self.n_null + 1:,}"
        )
        if self.level == "collection":
            return (smallest,)
        if self.needed is None:
            outlook = f"nothing can be reported at q = {self.q:g}: give more non-members"
        elif self.needed == 1:
            outlook = (
                f"at q = {self.q:g} a single {self.level} that beats every "
                "one outside the training data is reported"
            )
        else:
            outlook = (
                f"at q = {self.q:g} at least {self.needed:,} of {self.n_targets:,} {self.level}s "
                f"are reported or none: {self.needed:,} that beat every one outside the training "
                "data are enough"
            )
        return smallest, outlook


def power(
    n_targets: int, n_null: int, q: float, adjustment: Adjustment, level: PlanLevel = "target"
) -> Power:
    """Say what can be shown at best.

    Under Benjamini-Hochberg r targets are reported where each p-value is at most r q / m, and none
    is below 1 / (n + 1): so r is at least ceil(m / (q (n + 1))), and so many targets that beat
    every null are reported. Nothing can be where r > m, that is, where n + 1 < 1 / q.
    Benjamini-Yekutieli divides q by the sum of 1 / i up to m.

    Parameters
    ----------
    n_targets
        Number of tests m, at least 1; unscored targets count.
    n_null
        Independent nulls n, at least 0.
    q
        In (0, 1).
    adjustment
        The procedure.
    level
        What the tests are about.

    Returns
    -------
    Power
        The answer.
    """
    share = q if adjustment == "bh" else q / float((1 / np.arange(1, n_targets + 1)).sum())
    needed = max(1, ceil(round(n_targets / (share * (n_null + 1)), 9)))
    return Power(
        n_targets=n_targets,
        n_null=n_null,
        q=q,
        adjustment=adjustment,
        smallest_p=1 / (n_null + 1),
        needed=needed if needed <= n_targets else None,
        level=level,
    )
