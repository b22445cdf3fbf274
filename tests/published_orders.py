"""Sets whose order nobody has seen, by a model that likes neighbours which are alike."""

import numpy as np

from mia_batch.extras.benchmark.exact import compare_published
from mia_batch.stats import Floats

N_UNITS, N_ROWS, N_ORDERS = 3, 6, 4
LEVELS = np.array([1, 3, 6, 16]) / N_ORDERS**N_UNITS
"""Levels that p-values of so few units can have exactly."""
EXCHANGEABLE = ("independent", "alike", "wild", "series, then shuffled")
"""Kinds of rows of which every order was as likely to be published."""


def draw_rows(
    kind: str,
    n: int,
    rng: np.random.Generator,
    n_units: int = N_UNITS,
    n_rows: int = N_ROWS,
) -> Floats:
    """Draw what rows say, as one number each; shape (sets, shards, rows)."""
    rows: Floats = rng.normal(size=(n, n_units, n_rows))
    if kind == "alike":  # all rows of a set go together, those of a shard more so
        rows += 2 * rng.normal(size=(n, 1, 1)) + rng.normal(size=(n, n_units, 1))
    if kind == "wild":
        rows = np.sign(rows) * np.abs(rows) ** 5
    if kind == "series":  # each row goes on with the one before
        for place in range(1, n_rows):
            rows[..., place] += 0.9 * rows[..., place - 1]
    if kind == "series, then shuffled":
        rows = rng.permuted(draw_rows("series", n, rng, n_units, n_rows), axis=-1)
    return rows


def score_orders(rows: Floats, rng: np.random.Generator) -> Floats:
    """Score the published order of each unit and drawn ones, by a model that has seen none.

    It finds an order the likelier, the more alike neighbours are.
    """
    n = rows.shape[:2]
    drawn = np.argsort(rng.random((*n, N_ORDERS, N_ROWS)), axis=-1)
    drawn[:, :, 0] = np.arange(N_ROWS)
    ordered = np.take_along_axis(rows[:, :, None], drawn, axis=-1)
    scores: Floats = (ordered[..., 1:] * ordered[..., :-1]).sum(axis=-1)
    return scores


def measure_rates(rows: Floats, rng: np.random.Generator) -> Floats:
    """Return the share of sets with a p-value at or below each of `LEVELS`."""
    comparisons = [compare_published(s, 0) for s in score_orders(rows, rng)]
    p_values = np.array([item.p_value for item in comparisons if item is not None])
    assert p_values.size == len(rows)
    rates: Floats = (p_values[:, None] <= LEVELS + 1e-12).mean(axis=0)
    return rates
