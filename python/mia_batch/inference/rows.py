"""Rows of the verdicts table from numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.schemas import Verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from mia_batch.inference.plan import PlanLevel, VerdictPlan

    Column = pl.Series | NDArray[np.generic] | Sequence[str | None] | Sequence[int] | float | None

__all__ = ["AttackScores", "typed_rows", "verdict_rows", "withhold"]

_TYPES = Verdicts.create_empty().schema


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackScores:
    """Scores of one attack, one per row of the scores table; NaN = unscored."""

    attack: str
    scores: NDArray[np.float64]

    def planned(self, plan: VerdictPlan, level: PlanLevel | None = None) -> bool:
        """Whether the plan names this attack, and the level if one is given."""
        return self.attack == plan.primary and level in (None, plan.level)


def verdict_rows(height: int, **columns: Column) -> pl.DataFrame:
    """Make rows of the verdicts table, as `typed_rows` does."""
    return typed_rows(_TYPES, height, columns)


def withhold(rows: pl.DataFrame, reason: str) -> pl.DataFrame:
    """Take p-values and estimates against non-members out of verdicts, and say why."""
    numbers = ("p_value", "q_value", "sensitivity_bound", "value", "low", "high")
    compared = pl.col("versus") == "non_members"
    return rows.with_columns(
        pl.when(~compared).then(pl.col(*numbers)),
        reason=pl.when(compared).then(pl.lit(reason)).otherwise("reason"),
    )


def typed_rows(
    types: Mapping[str, pl.DataType], height: int, columns: Mapping[str, Column]
) -> pl.DataFrame:
    """Make rows from arrays, or one value for all; NaN becomes null, as does what is not given."""
    made = []
    for name, dtype in types.items():
        value = columns.get(name)
        if value is None or isinstance(value, str | float | int):
            made.append(pl.Series(name, [value], dtype=dtype).new_from_index(0, height))
        else:
            series = pl.Series(name, value).cast(dtype)
            made.append(series.fill_nan(None) if dtype.is_float() else series)
    return pl.DataFrame(made)
