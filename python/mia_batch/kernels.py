"""The compiled kernels as Polars expressions: text in, numbers out.

The only file that names the compiled library. Every expression is elementwise: it runs in
eager, lazy and streaming queries, over all cores and without the GIL. A literal is repeated
for every row. Null gives null. A column that is not text is a ``SchemaMismatchError``, and a
text of more than 1 GiB a ``MiaBatchError``, when the query runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import polars as pl

from mia_batch import _native
from mia_batch.errors import MiaBatchError, SchemaMismatchError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FEATURES",
    "WORD_RULES",
    "WordRule",
    "count_words",
    "pair_features",
    "zlib_size",
    "zlib_version",
]

WordRule: TypeAlias = Literal["whitespace", "space"]
"""How a text is cut into words: at white space, as ``text.split()`` does, or at U+0020 only,
as ``text.split(" ")`` does, less its empty strings (newlines and tabs stay inside words)."""

WORD_RULES: Final[tuple[WordRule, ...]] = get_args(WordRule)
"""Every word rule."""

FEATURES: Final = pl.Struct(
    dict.fromkeys(
        (
            "words_candidate",
            "words_reference",
            "overlap_1",
            "overlap_2",
            "overlap_3",
            "overlap_4",
            "overlap_5",
            "zlib_candidate",
            "words_candidate_matched",
            "overlap_1_matched",
            "overlap_2_matched",
            "overlap_3_matched",
            "overlap_4_matched",
            "overlap_5_matched",
            "zlib_candidate_matched",
        ),
        pl.UInt32,
    )
)
"""Data type of ``pair_features``."""


def pair_features(
    candidate: pl.Expr | str, reference: pl.Expr | str, *, words: WordRule = "whitespace"
) -> pl.Expr:
    """Numbers that compare each candidate with its reference, from one reading of both texts.

    ``words_candidate`` and ``words_reference`` count words. ``overlap_1`` to ``overlap_5``
    count the n-grams of words that both texts have, each at most as often as it occurs on
    both sides. ``zlib_candidate`` is the size of the candidate's words, joined by single
    spaces, as ``zlib_size`` measures it. The fields that end in ``_matched`` say the same of
    the candidate cut to the reference's number of words.

    Parameters
    ----------
    candidate
        String column: the sampled continuation.
    reference
        String column: the true continuation, aligned row by row. Rows that share one should
        stand together: it is then read once.
    words
        How texts are cut into words; another name is a ``SettingsError``.

    Returns
    -------
    Expr
        Struct column of data type ``FEATURES``, named ``features``; null, fields included,
        where either text is null.

    References
    ----------
    Clipped overlap: ROUGE-N, Lin (2004), section 2; SaMIA, Kaneko et al. (2024), equation 5.
    Size after compression: the same, equation 7.

    Examples
    --------
    >>> pairs = pl.DataFrame({"candidate": ["a b c d"], "reference": ["b c a"]})
    >>> features = pairs.select(pair_features("candidate", "reference")).unnest("features")
    >>> features.select("overlap_1", "overlap_2", "overlap_1_matched").row(0)
    (3, 1, 3)
    """
    _check_rule(words)
    pair = pl.struct(_column(candidate).alias("candidate"), _column(reference).alias("reference"))
    return pair.map_batches(
        lambda pairs: _apply(
            _native.pair_features,
            pairs.struct.field("candidate"),
            pairs.struct.field("reference"),
            words=words,
        ),
        return_dtype=FEATURES,
        is_elementwise=True,
    ).alias("features")


def zlib_size(text: pl.Expr | str) -> pl.Expr:
    """Bytes of the text after zlib at level 6, header and checksum included.

    It equals ``len(zlib.compress(text.encode()))`` where Python runs on classic zlib
    (1.2.8 to 1.3.1 agree), and does not depend on Python's own.

    Parameters
    ----------
    text
        String column.

    Returns
    -------
    Expr
        UInt32, at least 8, which is the size of the empty text; null where the text is null.
    """
    return _column(text).map_batches(
        lambda texts: _apply(_native.zlib_size, texts),
        return_dtype=pl.UInt32,
        is_elementwise=True,
    )


def count_words(text: pl.Expr | str, *, words: WordRule = "whitespace") -> pl.Expr:
    """Words of the text.

    Parameters
    ----------
    text
        String column.
    words
        How texts are cut into words; another name is a ``SettingsError``.

    Returns
    -------
    Expr
        UInt32; 0 where there is nothing but separators, null where the text is null.
    """
    _check_rule(words)
    return _column(text).map_batches(
        lambda texts: _apply(_native.count_words, texts, words=words),
        return_dtype=pl.UInt32,
        is_elementwise=True,
    )


def zlib_version() -> str:
    """Version of the zlib inside, such as ``"1.3.1"``."""
    return _native.zlib_version()


def _column(column: pl.Expr | str) -> pl.Expr:
    return pl.col(column) if isinstance(column, str) else column


def _check_rule(words: str) -> None:
    if words not in WORD_RULES:
        msg = f"unknown word rule {words!r}; use one of {', '.join(WORD_RULES)}"
        raise SettingsError(msg)


def _apply(
    kernel: Callable[..., _native.ArrowArray], *columns: pl.Series, **settings: str
) -> pl.Series:
    try:
        return pl.Series(kernel(*map(_nulls_as_text, columns), **settings))
    except TypeError as error:
        raise SchemaMismatchError(str(error)) from error
    except ValueError as error:
        raise MiaBatchError(str(error)) from error


def _nulls_as_text(column: pl.Series) -> pl.Series:
    """Give nulls of no type one, because Arrow libraries disagree on their layout."""
    return column.cast(pl.String) if column.dtype == pl.Null else column
