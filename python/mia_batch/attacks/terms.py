"""What the formulas of several attacks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["AGGREGATES", "among", "mean", "ngrams", "share", "total"]


def among(pairs: Iterable[tuple[str, str]]) -> pl.Expr:
    """Whether a row is of one of these models and views."""
    return pl.any_horizontal(
        (pl.col("model") == model) & (pl.col("view") == view) for model, view in sorted(pairs)
    )


def mean(term: pl.Expr) -> pl.Expr:
    """Mean of a term over candidates, tokens or texts, the same to the bit on every machine.

    Nulls are left out; where nothing is left, the mean is null.

    The sum of a list adds its items one by one in float64, in their order. Polars' ``mean()`` and
    ``sum()`` add in an order that depends on threads and processor.
    """
    n = term.count()
    return pl.when(n > 0).then(total(term) / n)


def total(term: pl.Expr) -> pl.Expr:
    """Sum of a term, 0 where nothing but nulls is there, the same to the bit likewise."""
    return term.drop_nulls().implode().list.sum()


def share(part: str | pl.Expr, whole: str | pl.Expr) -> pl.Expr:
    """Share of one count in another, float64 in [0, 1]; 0 where both are 0."""
    parts = pl.col(part) if isinstance(part, str) else part
    wholes = pl.col(whole) if isinstance(whole, str) else whole
    return parts / wholes.clip(lower_bound=1)


def ngrams(words: str, n: int) -> pl.Expr:
    """Count the n-grams of a text of so many words; 0 or less where it is shorter than n."""
    return pl.col(words).cast(pl.Int64) - (n - 1)


AGGREGATES: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "": mean,
    "_max": pl.Expr.max,
    "_median": pl.Expr.median,
    "_min": pl.Expr.min,
}
"""Ways to make one number of a target's samples, by the ending of the attack's name."""
