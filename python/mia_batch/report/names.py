"""Text that others wrote, such as names, in each form: nothing runs, links or turns direction."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from typing import Any

import polars as pl
import polars.selectors as cs

HIDDEN = (  # controls, marks that turn the direction of text, and signs without width
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    r"\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_HIDDEN = re.compile(HIDDEN)
_MARKDOWN = re.compile(
    r"[\\`*{}\[\]#!|<>~&$]|(?<!\w)_|_(?!\w)|^[-+]|:(?=//)|(?<=www)\.|@"
)
_SIGNS = {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}
_LATEX: dict[int, Any] = str.maketrans(
    _SIGNS | {sign: f"\\{sign}" for sign in "&%$#_{}"}
)
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")


def code(letter: str) -> str:
    return f"U+{ord(letter):04X}"


def shown(text: str) -> str:
    """Make hidden characters visible as ``[U+202E]``."""
    return _HIDDEN.sub(lambda found: f"[{code(found[0])}]", text)


def in_a_line(text: str) -> str:
    return " ".join(shown(text).split())


def markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", in_a_line(text))


def latex(text: str) -> str:
    return in_a_line(text).translate(_LATEX)


def html(text: str) -> str:
    return escape(in_a_line(text))


def cell(text: str) -> str:
    """Write a cell of a spreadsheet, which would take some text for a formula."""
    return ("'" if _FORMULA.match(text) else "") + shown(text)


FORMS: dict[str, Callable[[str], str]] = {
    "md": markdown,
    "latex": latex,
    "html": html,
    "csv": cell,
}


def as_csv(table: pl.DataFrame) -> str:
    """Write a table for spreadsheets: its text, and the names of its columns."""
    texts = table.select(cs.string()).get_columns()
    return table.with_columns(map(_cells, texts)).rename(cell).write_csv()


def _cells(texts: pl.Series) -> pl.Series:
    written = [None if text is None else cell(text) for text in texts]
    return pl.Series(texts.name, written, pl.String)
