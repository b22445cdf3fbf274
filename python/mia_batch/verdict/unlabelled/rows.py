"""Rows of the verdicts table from numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.schemas import Verdicts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mia_batch.verdict.unlabelled.plan import PlanLevel, VerdictPlan

__all__ = ["AttackScores", "verdict_rows"]

_TYPES = Verdicts.create_empty().schema


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackScores:
    """Scores of one attack.

    Attributes
    ----------
    attack
        Its name.
    scores
        One per row of the scores table, float64; NaN = unscored.
    """

    attack: str
    scores: NDArray[np.float64]

    def planned(self, plan: VerdictPlan, level: PlanLevel | None = None) -> bool:
        """Whether the plan names this attack, and the level if one is given."""
        return self.attack == plan.primary and level in (None, plan.level)


def verdict_rows(height: int, **columns: Any) -> pl.DataFrame:
    """Make rows of the verdicts table.

    Parameters
    ----------
    height
        How many.
    **columns
        By name: an array or series of this length, or one value for all rows; NaN becomes null,
        and so does what is not given.

    Returns
    -------
    DataFrame
        The rows, of schema ``Verdicts``.
    """
    made = []
    for name, dtype in _TYPES.items():
        value = columns.get(name)
        alone = value is None or isinstance(value, str | bool | int | float)
        series = pl.Series(name, [value] if alone else value, strict=False).cast(dtype)
        if dtype.is_float():
            series = series.fill_nan(None)
        made.append(series.new_from_index(0, height) if alone else series)
    return pl.DataFrame(made)
