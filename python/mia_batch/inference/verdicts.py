"""Scores to verdicts where membership is unknown: p-values and estimates, one attack at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.inference.canary_level import CanaryTest
from mia_batch.inference.estimates import ContaminationEstimates
from mia_batch.inference.group_level import GroupTest
from mia_batch.inference.monte_carlo import refuse_unequal_samples
from mia_batch.inference.rows import AttackScores, verdict_rows
from mia_batch.inference.sides import read_sides
from mia_batch.inference.target_level import TargetTest
from mia_batch.tables.numbers import read_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from mia_batch.inference.plan import VerdictPlan
    from mia_batch.inference.sides import Sides

    _Test = Callable[[AttackScores], Iterable[pl.DataFrame]]

__all__ = ["verdicts"]

_NO_NULL = "no text is known to be outside the training data: give non-members"


def verdicts(
    scores: pl.LazyFrame,
    attacks: Sequence[str],
    plan: VerdictPlan,
    *,
    blind_warns: bool = False,
) -> Iterator[pl.DataFrame]:
    """Test every target, group, collection and set of canaries by every attack.

    Memory holds the keys of all rows and the scores of one attack.

    Parameters
    ----------
    scores
        The scores table with the targets' ``role``; without it every row has role ``target``. A
        score that is no finite number counts as missing.
    attacks
        Columns of it, the primary one among them.
    plan
        How; what it does not name is computed as well and marked ``planned`` = false.
    blind_warns
        Whether the labels of the calibration data can be told apart without the model.

    Yields
    ------
    DataFrame
        Rows of the verdicts table: for each attack the targets; where texts share groups or
        documents, or the plan is about groups, the groups and the collection; the contamination
        rate; the canaries. At least one frame comes.

    Raises
    ------
    SettingsError
        If the primary attack is not among the attacks.
    RequestError
        If targets and nulls have different numbers of samples, or a set of canaries is incomplete.
    """
    if plan.primary not in attacks:
        msg = f"the primary attack {plan.primary!r} is not computed; name one of {list(attacks)}"
        raise SettingsError(msg)
    sides = read_sides(scores, named=plan.level != "target")
    if "n_samples" in scores.collect_schema() and sides.targets.size and sides.nulls.size:
        counts = scores.select("n_samples").collect(engine="streaming").to_series().to_numpy()
        refuse_unequal_samples(counts[sides.targets], counts[sides.nulls])
    tests = list(_tests(sides, plan, blind_warns=blind_warns))
    yield verdict_rows(0)
    for attack in attacks:
        found = AttackScores(attack=attack, scores=_finite(scores, attack, sides.target_id.len()))
        for test in tests:
            yield from test(found)


def _tests(sides: Sides, plan: VerdictPlan, *, blind_warns: bool) -> Iterator[_Test]:
    """Prepare the tests that there are texts for."""
    if sides.targets.size and sides.nulls.size:
        yield TargetTest(sides, plan).rows
        if plan.level != "target" or sides.shares(sides.targets, sides.nulls):
            yield GroupTest(sides, plan).rows
        yield ContaminationEstimates(sides, plan, blind_warns=blind_warns).rows
    elif sides.targets.size:
        yield _no_null
    if sides.published.size + sides.twins.size:
        yield CanaryTest(sides, plan).rows


def _no_null(found: AttackScores) -> Iterator[pl.DataFrame]:
    yield verdict_rows(
        1, attack=found.attack, level="collection", planned=False, n_null=0, reason=_NO_NULL
    )


def _finite(scores: pl.LazyFrame, attack: str, size: int) -> NDArray[np.float64]:
    """Read the scores of one attack; NaN where there is no finite number."""
    found = read_numbers(scores, pl.col(attack).cast(pl.Float64), size, np.float64)
    found[~np.isfinite(found)] = np.nan
    return found
