"""What of a text names somebody or something: names and numbers, by one stated rule."""

from __future__ import annotations

import polars as pl

__all__ = ["names_in", "numbers_in"]

_REST = r"[\p{L}\p{M}]*(?:['-][\p{L}\p{M}]+)*"
_TITLES = r"\b(Mr|Mrs|Ms|Dr|St|Prof|Mme|Mlle|Sr|Sra)\."
_OPENING = r"[\s'\"_*\p{Pi}\p{Ps}\p{Pd}\x{A1}\x{BF}]*"
_STARTS = rf"(^|[.!?:\x{{2026}}]['\"_*\p{{Pf}}\p{{Pe}}]*\s){_OPENING}\p{{L}}{_REST}"
_FIRST_PERSON = ["I", "I'm", "I'll", "I've", "I'd"]


def names_in(text: pl.Expr) -> pl.Expr:
    """List the names in a text: words with a first capital letter that begin no sentence.

    A sentence begins with the text and after ``.``, ``!``, ``?``, ``:`` or an ellipsis, quotation
    marks and brackets aside; the point of a title such as ``Mr.`` ends none. "I" is no name. The
    rule finds proper nouns of English and its like, misses those that begin a sentence, and takes
    other capitals (headings, German nouns) for names.
    """
    plain = text.str.replace_all("\u2019", "'", literal=True).str.replace_all(_TITLES, "$1")
    inner = plain.str.replace_all(_STARTS, "$1 ")
    words = inner.str.extract_all(rf"\b\p{{Lu}}{_REST}")
    return words.list.filter(~pl.element().is_in(_FIRST_PERSON))


def numbers_in(text: pl.Expr) -> pl.Expr:
    """List the numbers in a text: strings of digits, with points and commas between digits."""
    return text.str.extract_all(r"\p{Nd}+(?:[.,]\p{Nd}+)*")
