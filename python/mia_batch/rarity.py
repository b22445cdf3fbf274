"""Rarity: how often a model says each n-gram elsewhere, and shared n-grams weighed by it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import dataframely as dy
import polars as pl

import mia_batch._native as _native  # noqa: PLR0402 - from would import the package's own page
from mia_batch.kernel_arguments import WordRule, as_column, check_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["RARITY_FIELDS", "Rarity", "RarityTable"]

RARITY_FIELDS = tuple(
    pl.Field(name, pl.Float64()) for name in ("rarity_leading", "rarity_1", "rarity_2", "rarity_3")
)
"""What `RarityTable.weigh` gives."""

_BITS = 22


class Rarity(dy.Schema):
    """One row per entry of a view's `RarityTable` that is not 0."""

    model = dy.String(primary_key=True)
    view = dy.String(primary_key=True)
    entry = dy.UInt32(primary_key=True)
    count = dy.UInt32()
    n_groups = dy.UInt32()
    """Groups that were counted, the same in every row of a view."""


@dataclass(frozen=True, slots=True)
class RarityTable:
    """In how many groups of texts a model says each n-gram of one to three words.

    The table has a fixed size, 2^22 entries: n-grams whose hashes begin alike share one, so that
    with millions of different n-grams a count may be too large.

    Attributes
    ----------
    native
        The compiled table.
    n_groups
        How many groups were counted; a text without a group is one of its own.
    counted
        Which of the candidates that are weighed were counted; None = all.
    """

    native: _native.RarityTable
    n_groups: int
    counted: pl.Expr | None = None

    @classmethod
    def count(
        cls, batches: Iterable[pl.DataFrame], *, n_groups: int, words: WordRule
    ) -> RarityTable:
        """Count the ``candidate`` of rows whose ``row`` numbers the group.

        Rows of one group come one after the other; groups may come in any order.
        """
        check_rule(words)
        native = _native.RarityTable(_BITS)
        for batch in batches:
            groups = batch["row"].cast(pl.UInt32).rechunk()
            native.add(batch["candidate"], groups, words=words)
        return cls(native, n_groups)

    @classmethod
    def stored(cls, rows: pl.DataFrame, *, counted: pl.Expr | None = None) -> RarityTable:
        """Take up a table of rows of one view."""
        counts = pl.zeros(1 << _BITS, pl.UInt32, eager=True)
        counts = counts.scatter(rows["entry"], rows["count"])
        n_groups = rows["n_groups"].max() or 0
        return cls(_native.RarityTable.counted(counts.rechunk()), int(str(n_groups)), counted)

    def __reduce__(self) -> tuple[Callable[..., RarityTable], tuple[pl.DataFrame]]:
        """Send the counts: the compiled table cannot be pickled."""
        return partial(RarityTable.stored, counted=self.counted), (self.rows("", ""),)

    def rows(self, model: str, view: str) -> pl.DataFrame:
        """Give the entries that are not 0 as rows of the schema `Rarity`."""
        counts = pl.DataFrame({"count": pl.Series(self.native.counts())}).with_row_index("entry")
        return counts.filter(pl.col("count") > 0).select(
            model=pl.lit(model),
            view=pl.lit(view),
            entry="entry",
            count="count",
            n_groups=pl.lit(self.n_groups, pl.UInt32),
        )

    def weigh(
        self, candidate: pl.Expr | str, reference: pl.Expr | str, *, words: WordRule
    ) -> pl.Expr:
        """Weigh what a candidate, cut to the reference's number of words, shares with it.

        The weight of an n-gram g is ``ln(T / (1 + df))``: df is the number of other groups among
        whose candidates the model says g at least once. What a candidate shares was said in its own
        group, so where that was counted 1 + df is the count over all groups. T is the number of
        groups, and one more where some texts were not counted: the same for all texts.

        Parameters
        ----------
        candidate
            String column: the sampled continuation.
        reference
            String column: the true continuation.
        words
            How texts are cut into words.

        Returns
        -------
        Expr
            Struct column of Float64, at least 0, null where either text is null:
            ``rarity_leading``, the sum of weights of the words with which both begin, and
            ``rarity_1`` to ``rarity_3``, that of shared n-grams, each as often as both have it.

        References
        ----------
        Inverse document frequency, Spärck Jones (1972); clipped overlap, Lin (2004), section 2.
        """
        total = self.n_groups if self.counted is None else self.n_groups + 1
        counted = pl.lit(value=True) if self.counted is None else self.counted
        texts = as_column("candidate", candidate), as_column("reference", reference)
        others = (~counted).cast(pl.UInt32)
        kernel = partial(self.native.weigh, words=words, total=total)
        return pl.map_batches(
            [*(text.cast(pl.String) for text in texts), others],
            lambda columns: pl.Series(kernel(*_broadcast(*columns))),
            return_dtype=pl.Struct(list(RARITY_FIELDS)),
            is_elementwise=True,
        ).alias("rarity")


def _broadcast(
    candidate: pl.Series, reference: pl.Series, others: pl.Series
) -> tuple[pl.Series, pl.Series, pl.Series]:
    whole = others if others.len() > 1 else others.new_from_index(0, candidate.len())
    return candidate, reference, whole.rechunk()
