"""Monte-Carlo error of scores: how far they depend on the samples that were drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["score_errors", "standard_errors"]

_SAME = 1e-9  # relative difference of a score and the mean of its samples' values


def standard_errors(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sd / sqrt(n) of each row of samples' values (NaN = no sample); NaN below two of them."""
    n = np.count_nonzero(~np.isnan(values), axis=1)
    many = n > 1
    errors = np.full(n.size, np.nan)
    errors[many] = np.nanstd(values[many], axis=1, ddof=1) / np.sqrt(n[many])
    return errors


def score_errors(values: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """``target_id`` and ``standard_error`` of each ``score``, in its unit.

    ``values`` has ``target_id``, ``sample_index`` and the attack's ``value`` on each sample alone.
    The error is null where fewer than two samples have a value, or the score is not their mean.
    """
    matrix = _matrix(values, scores)
    errors = standard_errors(matrix)
    errors[~_are_means(matrix, scores["score"].to_numpy())] = np.nan
    return scores.select("target_id", standard_error=pl.Series(errors, nan_to_null=True))


def _matrix(values: pl.DataFrame, scores: pl.DataFrame) -> NDArray[np.float64]:
    """Lay out the values, a row per score and a column per sample; NaN = no sample."""
    index = scores.select("target_id", row=pl.int_range(pl.len()))
    found = values.join(index, on="target_id")
    samples = found["sample_index"].rank("dense").to_numpy().astype(np.int64) - 1
    matrix = np.full((scores.height, int(samples.max(initial=0)) + 1), np.nan)
    matrix[found["row"].to_numpy(), samples] = found["value"].fill_null(np.nan)
    return matrix


def _are_means(matrix: NDArray[np.float64], score: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each score is the mean of its samples' values; so is one that is missing."""
    present = ~np.isnan(matrix)
    n = np.maximum(present.sum(axis=1), 1)
    means = np.where(present, matrix, 0.0).sum(axis=1) / n
    return np.isnan(score) | np.isclose(means, score, rtol=_SAME, atol=1e-12)
