"""How far scores, and answers, depend on the samples that were drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.inference.monte_carlo import flips, simulated_flips, standard_errors
from mia_batch.inference.rows import AttackScores, verdict_rows
from mia_batch.inference.sides import read_sides
from mia_batch.inference.target_level import TargetTest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.inference.plan import VerdictPlan

__all__ = ["flip_rate", "score_errors"]

_LEVEL = 0.05
_NO_MEAN = "the attack takes no mean over samples, so only a second draw can tell; set second_draw"
_ONE_SAMPLE = (
    "one sample of a text shows no spread, so only a second draw can tell; set second_draw"
)
_SAME = 1e-9  # of a score and the mean of its samples' values, relative


def score_errors(values: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """Monte-Carlo standard errors of scores over their samples.

    Parameters
    ----------
    values
        ``target_id``, ``sample_index`` and Float64 ``value``: the attack on each sample alone.
    scores
        ``target_id`` and the ``score`` from all samples.

    Returns
    -------
    DataFrame
        ``target_id`` and ``standard_error``, in the unit of the score; null where fewer than two
        samples have a value, or the score is not their mean.
    """
    matrix = _matrix(values, scores)
    errors = standard_errors(matrix)
    errors[~_are_means(matrix, scores["score"].to_numpy())] = np.nan
    return scores.select("target_id", standard_error=pl.Series(errors, nan_to_null=True))


def flip_rate(
    scores: pl.DataFrame, plan: VerdictPlan, *, values: pl.DataFrame, second: pl.Series | None
) -> pl.DataFrame:
    """Share of targets whose p-value would be on the other side of 0.05 in another draw.

    Parameters
    ----------
    scores
        Rows of the scores table: targets and non-members, with the primary attack's ``score``.
    plan
        How p-values are made.
    values
        As in `score_errors`.
    second
        The score of each row from a second draw of as many samples; null where there was none, and
        draws are simulated.

    Returns
    -------
    DataFrame
        One row of the verdicts table, ``estimate`` ``flip_rate``, its value null with a reason
        where the draws cannot tell; none where there are no targets or no non-members.
    """
    sides = read_sides(scores.lazy())
    if not (sides.targets.size and sides.nulls.size):
        return verdict_rows(0)
    test = TargetTest(sides, plan)

    def decide(of_rows: NDArray[np.float64]) -> NDArray[np.bool_]:
        frames = test.rows(AttackScores(attack=plan.primary, scores=of_rows))
        p = pl.concat(frame["p_value"] for frame in frames)
        return (p <= _LEVEL).fill_null(value=False).to_numpy()

    first = scores["score"].to_numpy()
    matrix = _matrix(values, scores)
    share, reason = None, None
    if second is not None:
        again = second.to_numpy()
        lost = np.count_nonzero(np.isnan(again) & ~np.isnan(first))
        if lost:
            reason = f"{lost:,} texts have no score in the second draw"
        else:
            share = flips(first, again, decide)
    elif not _are_means(matrix, first).all():
        reason = _NO_MEAN
    elif (np.count_nonzero(~np.isnan(matrix), axis=1) == 1).any():
        reason = _ONE_SAMPLE
    else:
        share = simulated_flips(matrix, decide, seed=plan.seed)
    return verdict_rows(
        1,
        attack=plan.primary,
        level="collection",
        planned=True,
        estimate="flip_rate",
        value=share,
        method="simulated_draws" if second is None else "second_draw",
        reason=reason,
    )


def _matrix(values: pl.DataFrame, scores: pl.DataFrame) -> NDArray[np.float64]:
    """Lay out the values, a row per score and a column per sample; NaN = no sample."""
    place = scores.select("target_id", row=pl.int_range(pl.len()))
    found = values.join(place, on="target_id")
    samples = found["sample_index"].rank("dense").to_numpy().astype(np.int64) - 1
    matrix = np.full((scores.height, int(samples.max(initial=0)) + 1), np.nan)
    matrix[found["row"].to_numpy(), samples] = found["value"].fill_null(np.nan)
    return matrix


def _are_means(matrix: NDArray[np.float64], score: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each score is the mean of its samples' values; so is one that is missing."""
    there = ~np.isnan(matrix)
    n = np.maximum(there.sum(axis=1), 1)
    means = np.where(there, matrix, 0.0).sum(axis=1) / n
    return np.isnan(score) | np.isclose(means, score, rtol=_SAME, atol=1e-12)
