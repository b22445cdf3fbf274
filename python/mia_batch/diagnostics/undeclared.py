"""Texts that look like parts of one book although no group says so."""

from __future__ import annotations

import calendar
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

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

_MOST_TEXTS, _MOST_CHARACTERS = 1_000, 2_000
_LEAST_TEXTS = 20
_PERMUTATIONS = 999
_LEVEL, _MORE_ALIKE = 0.01, 1.15
_BUCKETS = 1 << 16
_OFTEN, _LEAST_ROWS, _OFTENER, _NAMED = 0.15, 5, 10, 0.5
_NAMES_SHOWN = 3
_WORD = re.compile(r"[^\W\d_]{3,}")
_WITHIN = re.compile(r"[^\W\d_][,;]?\s+(?=([^\W\d_]{3,}))")  # a word that begins no sentence
_DATES = {*calendar.month_name, *calendar.day_name}
_TARGET = pl.col("role") == "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """What speaks for texts being parts of one book.

    Attributes
    ----------
    n_texts
        Texts looked at.
    ratio
        Mean similarity of neighbouring rows over that of rows at random.
    p_value
        Share of orders of the rows in which neighbours are as alike.
    named
        Share of the texts that have one of ``names``.
    names
        Names in at least 5 and 15 % of these texts, and ten times as rare in the others.
    """

    n_texts: int
    ratio: float
    p_value: float
    named: float
    names: tuple[str, ...]

    @property
    def of_one_book(self) -> bool:
        """Whether neighbours are more alike than chance by a margin, or most share its names."""
        alike = self.p_value <= _LEVEL and self.ratio >= _MORE_ALIKE
        return alike or self.named >= _NAMED


def likeness(texts: Sequence[str], others: Sequence[str]) -> Likeness | None:
    """Look whether texts, in the order of their rows, are parts of one book or of a few.

    Neighbours: the mean cosine of neighbouring rows' words (sublinear tf-idf) against 999 orders of
    the rows. It needs no other texts, and finds none in rows that were shuffled. Names: words that
    are always capitalised, mostly within sentences, and that the ``others`` hardly have. They are
    looked for where there are 20 others. None below 20 texts.
    """
    if len(texts) < _LEAST_TEXTS:
        return None
    alike = _similarity(texts)
    neighbours = float(np.diag(alike, 1).mean())
    rng = np.random.default_rng(0)
    orders = (rng.permutation(len(texts)) for _ in range(_PERMUTATIONS))
    chance = np.array([alike[order[:-1], order[1:]].mean() for order in orders])
    names = _names(texts, others) if len(others) >= _LEAST_TEXTS else ()
    return Likeness(
        n_texts=len(texts),
        ratio=neighbours / max(float(chance.mean()), 1e-9),
        p_value=float((1 + (chance >= neighbours - 1e-12).sum()) / (1 + _PERMUTATIONS)),
        named=float(np.mean([not _words(text).isdisjoint(names) for text in texts])),
        names=names,
    )


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
    loose = _loose() & ~asked_texts(targets)
    group = pl.when(loose).then(pl.lit(UNDECLARED)).otherwise("group")
    return targets.with_columns(group=group)


def undeclared_rows(targets: pl.LazyFrame) -> Iterator[dict[str, object]]:
    """Rows of check ``undeclared_books`` about non-members and targets without a group.

    Verdict of ``neighbours`` and ``named``: ``one_group`` (they count as one group), ``one_book``
    (they look like it) or ``apart``.
    """
    counted = bool(targets.select((pl.col("group") == UNDECLARED).any()).collect().item())
    for subject, found in _look(targets).items():
        if found is None:
            continue
        grouped = counted and subject == "non-members"
        verdict = ("one_group" if grouped else "one_book") if found.of_one_book else "apart"
        of = {"check": "undeclared_books", "subject": subject, "verdict": verdict}
        yield of | {"statistic": "n_texts", "value": found.n_texts}
        yield of | {"statistic": "neighbours", "value": found.ratio, "p_value": found.p_value}
        shown = ", ".join(found.names[:_NAMES_SHOWN]) or None
        yield of | {"statistic": "named", "value": found.named, "reason": shown}


def _look(targets: pl.LazyFrame) -> dict[str, Likeness | None]:
    """Look at the non-members and at the targets where the ones are compared with the others."""
    asked = asked_texts(targets)
    nulls, unknown = ~asked, _TARGET & pl.col("member").is_null()
    counts = targets.select(nulls=(nulls & _loose()).sum(), unknown=unknown.sum())
    n_nulls, n_unknown = counts.collect(engine="streaming").row(0)
    if not n_unknown:
        return {}
    of_nulls = _read(targets, nulls & _loose())
    of_targets, others = _read(targets, unknown & _loose()), _read(targets, unknown)
    looked = likeness(of_nulls, others) if n_nulls >= _LEAST_TEXTS else None
    return {"non-members": looked, "targets": likeness(of_targets, of_nulls)}


def _loose() -> pl.Expr:
    """Whether nothing says what a text belongs to: neither group nor windows of its document."""
    no_group = pl.col("group").is_null() | (pl.col("group") == UNDECLARED)
    return no_group & (pl.col("n_windows") == 1)


def _read(targets: pl.LazyFrame, which: pl.Expr) -> list[str]:
    """Read the beginnings of the first texts, in the order of the rows."""
    known = targets.filter(which, pl.col("target").is_not_null()).head(_MOST_TEXTS)
    texts = known.select(pl.col("target").str.head(_MOST_CHARACTERS))
    return texts.collect(engine="streaming")["target"].to_list()


def _similarity(texts: Sequence[str]) -> NDArray[np.float64]:
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    words = HashingVectorizer(
        n_features=_BUCKETS, token_pattern=_WORD.pattern, norm=None, alternate_sign=False
    )
    weighed = TfidfTransformer(sublinear_tf=True).fit_transform(words.transform(texts))
    alike: NDArray[np.float64] = (weighed @ weighed.T).toarray()
    return alike


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text))


def _names(texts: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Find the names that many of the texts have and few of the others, the most frequent first."""
    own, theirs = (Counter(word for text in of for word in _words(text)) for of in (texts, others))
    within = Counter(word for text in texts for word in set(_WITHIN.findall(text)))
    lower = {word for word in (*own, *theirs) if word.islower()}
    found = [
        word
        for word, n in own.items()
        if n >= max(_LEAST_ROWS, _OFTEN * len(texts))
        and word[0].isupper()
        and word.lower() not in lower
        and word not in _DATES
        and 2 * within[word] >= n
        and _OFTENER * theirs[word] / len(others) <= n / len(texts)
    ]
    return tuple(sorted(found, key=lambda word: (-own[word], word)))
