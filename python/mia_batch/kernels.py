"""The compiled kernels as Polars expressions: text in, numbers out.

Only this file, `complexity`, `extraction` and `rarity` name the compiled library. Every expression
is elementwise: it runs in eager, lazy and streaming queries, over all cores and without the GIL. A
literal is repeated for every row. Null gives null. A column that is not text is a
``SchemaMismatchError``, and a text of more than 1 GiB or with bytes that are not UTF-8 a
``MiaBatchError``, when the query runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

import mia_batch._native as _native  # noqa: PLR0402 - from would import the package's own page
from mia_batch.errors import MiaBatchError, SchemaMismatchError
from mia_batch.kernel_arguments import (
    GROUPS,
    WORD_RULES,
    Group,
    WordRule,
    as_column,
    check_count,
    check_rule,
    check_series,
    checked_groups,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "FEATURES",
    "GROUPS",
    "WORD_RULES",
    "Group",
    "WordRule",
    "apply_kernel",
    "count_words",
    "fields",
    "pair_features",
    "shared_runs",
    "word_spans",
    "zlib_size",
]

_SPANS: Final = pl.Struct({"starts": pl.List(pl.UInt32), "ends": pl.List(pl.UInt32)})

_DEFAULT_GROUPS: Final[tuple[Group, ...]] = ("unigrams", "ngrams", "zlib", "matched")


def fields(groups: Iterable[Group] = _DEFAULT_GROUPS) -> pl.Struct:
    """Give the data type of ``pair_features`` for a choice of groups.

    Parameters
    ----------
    groups
        Names of groups in any order; another name is a ``SettingsError``.

    Returns
    -------
    Struct
        Fields of UInt32, in order.

    Examples
    --------
    >>> [field.name for field in fields(["lcs"]).fields]
    ['words_candidate', 'words_reference', 'lcs_words']
    """
    return pl.Struct(dict.fromkeys(_native.pair_fields(checked_groups(groups)), pl.UInt32))


FEATURES: Final = fields()
"""Data type of ``pair_features`` with ``unigrams``, ``ngrams``, ``zlib`` and ``matched``."""


def pair_features(
    candidate: pl.Expr | str,
    reference: pl.Expr | str,
    *,
    words: WordRule = "whitespace",
    groups: Iterable[Group] = _DEFAULT_GROUPS,
    near_verbatim_min_words: int = 8,
) -> pl.Expr:
    """Numbers that compare each candidate with its reference, from one reading of both texts.

    ``words_candidate`` and ``words_reference`` count words. The other fields come in groups, in
    the order of ``fields(groups)``; ``Group`` says what they count.

    Parameters
    ----------
    candidate
        String column: the sampled continuation.
    reference
        String column: the true continuation, aligned row by row. Rows that share one should
        stand together: it is then read once.
    words
        How texts are cut into words; another name is a ``SettingsError``.
    groups
        What to compute; what is left out costs nothing. Another name is a ``SettingsError``, and
        so is a string instead of a list.
    near_verbatim_min_words
        Words of the shortest block that ``near_verbatim_words`` counts, at least 1; else a
        ``SettingsError``.

    Returns
    -------
    Expr
        Struct column of data type ``fields(groups)``, named ``features``: UInt32, at least 0;
        null, fields included, where either text is null.

    References
    ----------
    Clipped overlap: ROUGE-N, Lin (2004), section 2; SaMIA, Kaneko et al. (2024), equation 5.
    Size after compression: the same, equation 7. Longest common subsequence: ROUGE-L, Lin
    (2004), section 3.1. Coverage: Hallinan et al. (2025), arXiv:2508.09603, whose code matches
    detokenised text and finds spans of one length only. Near-verbatim blocks: the matching of
    Ratcliff and Metzener (1988), as in Python's ``difflib``. Ahmed et al. (2026),
    arXiv:2601.02671, begin their near-verbatim recall of whole books with it, then join blocks
    across gaps of up to 2 words, keep those of at least 20, join again across up to 10 and keep
    those of at least 100; blocks are not joined here. Character n-grams: as chrF, Popović (2015),
    counts them, but with white space.

    Examples
    --------
    >>> pairs = pl.DataFrame({"candidate": ["a b c d"], "reference": ["b c a"]})
    >>> features = pairs.select(pair_features("candidate", "reference")).unnest("features")
    >>> features.select("overlap_1", "overlap_2", "overlap_1_matched").row(0)
    (3, 1, 3)
    """
    check_rule(words)
    groups = checked_groups(groups)
    check_count("near_verbatim_min_words", near_verbatim_min_words)
    kernel = partial(
        _native.pair_features,
        words=words,
        groups=groups,
        near_verbatim_min_words=near_verbatim_min_words,
    )
    pair = pl.struct(
        as_column("candidate", candidate).alias("candidate"),
        as_column("reference", reference).alias("reference"),
    )
    return pair.map_batches(
        lambda pairs: apply_kernel(kernel, *pairs.struct.unnest()),
        return_dtype=fields(groups),
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

    References
    ----------
    The stream: RFC 1950 and RFC 1951; what of it is chosen, zlib 1.3.1, deflate.c and trees.c.
    SaMIA divides by this size: Kaneko et al. (2024), equation 7.
    """
    return _elementwise(text, _native.zlib_size, pl.UInt32())


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

    References
    ----------
    ``unicode``: Unicode Standard Annex 29, section 4. ``rouge``: the package rouge-score.
    """
    check_rule(words)
    return _elementwise(text, partial(_native.count_words, words=words), pl.UInt32())


def shared_runs(
    texts: pl.Series, others: pl.Series, *, run_words: int, words: WordRule = "whitespace"
) -> pl.DataFrame:
    """Count runs of words of each text that occur in any of the others.

    Runs are compared by hashes of 64 bits. Memory: 30 to 50 bytes per word of the others.

    Parameters
    ----------
    texts
        String column.
    others
        String column of any length; nulls have no runs.
    run_words
        Words of a run, at least 1; else a ``SettingsError``.
    words
        How texts are cut into words; another name is a ``SettingsError``. Only ``rouge`` ignores
        case.

    Returns
    -------
    DataFrame
        One row per text, UInt32, null where the text is null. ``runs`` counts the places where a
        run starts: 0 where the text has fewer words. ``shared`` counts those whose run some other
        text has, too. ``other`` is the row of the first of ``others`` that has the first shared
        run; null where none is shared.

    References
    ----------
    Runs of words that training and test data share: Brown et al. (2020), arXiv:2005.14165,
    appendix C, which takes runs of 8 to 13 words.

    Examples
    --------
    >>> shared_runs(pl.Series(["a b c d"]), pl.Series(["x", "b c d"]), run_words=2).row(0)
    (3, 2, 1)
    """
    check_rule(words)
    check_count("run_words", run_words)
    check_series("texts", texts)
    check_series("others", others)
    kernel = partial(_native.shared_runs, words=words, run_words=run_words)
    return apply_kernel(kernel, texts, others).struct.unnest()


def word_spans(text: pl.Expr | str, *, words: WordRule = "whitespace") -> pl.Expr:
    """Start and end of each word of the text.

    Parameters
    ----------
    text
        String column.
    words
        How texts are cut into words; another name is a ``SettingsError``.

    Returns
    -------
    Expr
        Struct column of two lists of UInt32, a number for each word in order: ``starts``, the
        characters before its first, and ``ends``, those before what follows its last, so that
        ``text[start:end]`` is the word as it stands in the text. Null where the text is null.

    References
    ----------
    As for `count_words`.

    Examples
    --------
    >>> pl.select(word_spans(pl.lit("“né”, 我们"), words="unicode")).item()
    {'starts': [1, 6, 7], 'ends': [3, 7, 8]}
    """
    check_rule(words)
    return _elementwise(text, partial(_native.word_spans, words=words), _SPANS)


def _elementwise(
    text: pl.Expr | str, kernel: Callable[..., _native.ArrowArray], dtype: pl.DataType
) -> pl.Expr:
    return as_column("text", text).map_batches(
        lambda texts: apply_kernel(kernel, texts), return_dtype=dtype, is_elementwise=True
    )


def apply_kernel(kernel: Callable[..., _native.ArrowArray], *columns: pl.Series) -> pl.Series:
    """Call the compiled library; its errors become ours."""
    try:
        return pl.Series(kernel(*map(_nulls_as_text, columns)))
    except TypeError as error:
        raise SchemaMismatchError(str(error)) from error
    except ValueError as error:
        raise MiaBatchError(str(error)) from error


def _nulls_as_text(column: pl.Series) -> pl.Series:
    """Give nulls of no type one, because Arrow libraries disagree on their layout."""
    return column.cast(pl.String) if column.dtype == pl.Null else column
