"""What the kernels are asked for: names of word rules and of groups, and checks of arguments."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Final, Literal, TypeAlias, get_args

import polars as pl

from mia_batch.errors import SchemaMismatchError, SettingsError

__all__ = [
    "GROUPS",
    "WORD_RULES",
    "Group",
    "WordRule",
    "as_column",
    "check_count",
    "check_rule",
    "check_series",
    "checked_groups",
]

WordRule: TypeAlias = Literal["whitespace", "space", "rouge", "unicode", "script"]
"""How a text is cut into words.

``whitespace`` cuts at white space, as ``text.split()`` does; ``space`` at U+0020 only, as
``text.split(" ")`` does, less its empty strings (newlines and tabs stay inside words). ``rouge``
takes the runs of ASCII letters and digits of the lower-cased text, as the rouge-score package
does without stemming: text of other scripts has no words. ``unicode`` takes the segments of
UAX #29 that hold a letter or a number, for text without spaces: a word in most scripts, one
character in Chinese, hiragana and Thai. Where a colon or its like follows a letter and a joiner
and a pictograph follow it, the annex ends the word before the colon; here they all are one.
``script`` is ``whitespace`` where a script has spaces between words; stretches of one that has none
(Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan ...) are cut as ``unicode`` does, and
punctuation beside them is no word."""

WORD_RULES: Final[tuple[WordRule, ...]] = get_args(WordRule)
"""Every word rule."""

Group: TypeAlias = Literal[
    "unigrams",
    "ngrams",
    "zlib",
    "lcs",
    "blocks",
    "coverage",
    "distinct",
    "characters",
    "leading",
    "matched",
]
"""Fields of ``pair_features`` that are computed only where they are asked for.

``unigrams``
    ``overlap_1`` counts the words that both texts have, each at most as often as it occurs on
    both sides.
``ngrams``
    ``overlap_2`` to ``overlap_5`` count n-grams of words likewise.
``zlib``
    ``zlib_candidate`` is the size of the candidate's words, joined by single spaces, as
    ``zlib_size`` measures it.
``lcs``
    ``lcs_words`` is the length of the longest common subsequence of words.
``blocks``
    ``longest_block_words`` is the length of the longest run of words that both texts have,
    and ``longest_block_start`` the word of the reference, counted from 0, where it first
    starts (of several such runs, the one that starts first); null where no word is shared.
    ``longest_block_chars`` and ``longest_block_chars_start`` say the same of Unicode
    characters of the raw texts, white space included. ``near_verbatim_words`` counts words
    of the reference inside common blocks of at least ``near_verbatim_min_words`` words: the
    longest block is taken first, then the longest before it and behind it on both sides,
    and so on, those of equal length from the reference's start, then the candidate's. Each
    core needs some 200 bytes of memory for a character of its longest reference.
``coverage``
    ``covered_2`` to ``covered_12`` count words of the candidate inside some span of at least
    that many words that occurs in the reference, each length for itself;
    ``covered_reference_2`` to ``covered_reference_12`` words of the reference inside such a
    span that occurs in the candidate. Spans start and end between words.
``distinct``
    ``distinct_candidate`` and ``distinct_reference`` count different words.
``characters``
    ``characters_candidate`` and ``characters_reference`` count Unicode characters of the raw
    texts, white space included; ``characters_overlap_3`` and ``characters_overlap_5`` their
    n-grams that both texts have, each at most as often as it occurs on both sides. For text
    without spaces.
``leading``
    ``leading_words`` counts the words, ``leading_characters`` the Unicode characters of the raw
    texts, white space included, before the first at which the two texts differ.
``matched``
    Fields that end in ``_matched`` say the same of the candidate cut to the reference's
    number of words: ``words_candidate_matched`` and one for each field of the other groups,
    but for those that count the reference alone. A candidate of more words than the
    reference ends with the last one kept; another stays as it is."""

GROUPS: Final[tuple[Group, ...]] = get_args(Group)
"""Every group, in the order of its fields."""

_MAX_COUNT: Final = 2**32 - 1


def as_column(name: str, column: object) -> pl.Expr:
    """Return a column's expression from the expression or the name that a user gave."""
    if isinstance(column, str):
        return pl.col(column)
    if isinstance(column, pl.Expr):
        return column
    msg = f"{name} is of type {type(column).__name__}; use an expression or the name of a column"
    raise SchemaMismatchError(msg)


def check_series(name: str, column: object) -> None:
    """Refuse what is not a series."""
    if not isinstance(column, pl.Series):
        msg = f"{name} is of type {type(column).__name__}; use a series of strings"
        raise SchemaMismatchError(msg)


def check_rule(words: str) -> None:
    """Refuse an unknown word rule."""
    if words not in WORD_RULES:
        msg = f"unknown word rule {words!r}; use one of {', '.join(WORD_RULES)}"
        raise SettingsError(msg)


def check_count(name: str, count: int) -> None:
    """Refuse what is not a whole number, at least 1."""
    try:
        is_allowed = 1 <= index(count) <= _MAX_COUNT
    except TypeError:
        is_allowed = False
    if not is_allowed:
        msg = f"{name} is {count!r}; use a whole number of 1 to {_MAX_COUNT}"
        raise SettingsError(msg)


def checked_groups(groups: Iterable[Group]) -> list[Group]:
    """Return the groups as a list, or refuse an unknown one."""
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        msg = f"groups is {groups!r}; use a list of names"
        raise SettingsError(msg)
    chosen = list(groups)
    for group in chosen:
        if group not in GROUPS:
            msg = f"unknown group {group!r}; use some of {', '.join(GROUPS)}"
            raise SettingsError(msg)
    return chosen
