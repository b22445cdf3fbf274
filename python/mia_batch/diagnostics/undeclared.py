"""Texts that look like parts of one book although no group says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "UNDECLARED",
    "Likeness",
    "asked_texts",
    "likeness",
    "undeclared_rows",
    "with_undeclared",
]

UNDECLARED = "undeclared book"
"""The group of non-members that look like parts of one book."""

_MOST_TEXTS, _MOST_CHARACTERS, _LEAST_TEXTS = 1_000, 2_000, 20
_PERMUTATIONS, _LEVEL, _MORE_ALIKE = 999, 0.01, 1.15
_TARGET = pl.col("role") == "target"


class Likeness(NamedTuple):
    """Mean similarity of neighbouring rows over that of rows at random, and its p-value."""

    ratio: float
    p_value: float

    @property
    def of_one_book(self) -> bool:
        """Whether neighbours are more alike than chance, and by a margin."""
        return self.p_value <= _LEVEL and self.ratio >= _MORE_ALIKE


def likeness(texts: Sequence[str]) -> Likeness | None:
    """Compare the cosine (sublinear tf-idf) of neighbouring rows with 999 orders of the rows.

    None below 20 texts. Rows that were shuffled show nothing.
    """
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    if len(texts) < _LEAST_TEXTS:
        return None
    words = HashingVectorizer(
        n_features=1 << 16, token_pattern=r"[^\W\d_]{3,}", norm=None, alternate_sign=False
    )
    weighed = TfidfTransformer(sublinear_tf=True).fit_transform(words.transform(texts))
    alike = (weighed @ weighed.T).toarray()
    neighbours, rng = np.diag(alike, 1).mean(), np.random.default_rng(0)
    orders = (rng.permutation(len(texts)) for _ in range(_PERMUTATIONS))
    chance = np.array([alike[order[:-1], order[1:]].mean() for order in orders])
    p_value = (1 + (chance >= neighbours - 1e-12).sum()) / (1 + _PERMUTATIONS)
    return Likeness(float(neighbours / max(chance.mean(), 1e-9)), float(p_value))


def asked_texts(targets: pl.LazyFrame) -> pl.Expr:
    """Label targets that are compared with nulls true, and the nulls false."""
    non_member = pl.col("role") == "non_member"
    any_given = targets.select(non_member.any()).collect(engine="streaming").item()
    null = non_member if any_given else _TARGET & ~pl.col("member")
    return pl.when(null).then(pl.lit(value=False)).when(_TARGET).then(pl.lit(value=True))


def with_undeclared(targets: pl.LazyFrame) -> pl.LazyFrame:
    """Give non-members without a group one group where they look like parts of one book.

    A table without such is returned itself.
    """
    found = _look(targets).get("non-members")
    if found is None or not found.of_one_book:
        return targets
    group = pl.when(_loose() & ~asked_texts(targets)).then(pl.lit(UNDECLARED)).otherwise("group")
    return targets.with_columns(group=group)


def undeclared_rows(targets: pl.LazyFrame) -> Iterator[dict[str, object]]:
    """Rows of check ``undeclared_books`` about non-members and targets without a group.

    Verdict: ``one_group`` (they count as one), ``one_book`` (they look like one) or ``apart``.
    """
    counted = targets.select((pl.col("group") == UNDECLARED).any()).collect(engine="streaming")
    for subject, found in _look(targets).items():
        if found is not None:
            grouped = counted.item() and subject == "non-members"
            verdict = ("one_group" if grouped else "one_book") if found.of_one_book else "apart"
            yield {
                "check": "undeclared_books",
                "subject": subject,
                "statistic": "likeness_of_neighbours",
                "value": found.ratio,
                "p_value": found.p_value,
                "verdict": verdict,
            }


def _look(targets: pl.LazyFrame) -> dict[str, Likeness | None]:
    """Look at the first non-members and targets where these are compared with those."""
    unknown = _TARGET & pl.col("member").is_null()
    if not targets.select(unknown.any()).collect(engine="streaming").item():
        return {}
    found = {}
    for subject, which in (("non-members", ~asked_texts(targets)), ("targets", unknown)):
        texts = targets.filter(which, _loose(), pl.col("target").is_not_null()).head(_MOST_TEXTS)
        begin = texts.select(pl.col("target").str.head(_MOST_CHARACTERS))
        found[subject] = likeness(begin.collect(engine="streaming")["target"].to_list())
    return found


def _loose() -> pl.Expr:
    """Whether nothing says what a text belongs to: neither group nor windows of its document."""
    no_group = pl.col("group").is_null() | (pl.col("group") == UNDECLARED)
    return no_group & (pl.col("n_windows") == 1)
