"""Write foreign text, such as names, so that nothing runs, links or turns direction."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from typing import Any

import polars as pl
import polars.selectors as cs
from rich.cells import cell_len

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


def cut_middle(name: str, width: int) -> str:
    """Return both ends of a name, in as many columns of a terminal."""
    if cell_len(name) <= width:
        return name
    tail = name[max(len(name) - width // 2, 0) :]
    while cell_len(tail) > (width - 1) // 2:
        tail = tail[1:]
    room = width - 1 - cell_len(tail)
    head = name[:room]
    while cell_len(head) > room:
        head = head[:-1]
    return f"{head}…{tail}"


def write_code_point(letter: str) -> str:
    return f"U+{ord(letter):04X}"


def reveal_hidden(text: str) -> str:
    """Make hidden characters visible as ``[U+202E]``."""
    return _HIDDEN.sub(lambda match: f"[{write_code_point(match[0])}]", text)


def join_lines(text: str) -> str:
    return " ".join(reveal_hidden(text).split())


def markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", join_lines(text))


def latex(text: str) -> str:
    return join_lines(text).translate(_LATEX)


def html(text: str) -> str:
    return escape(join_lines(text))


def cell(text: str) -> str:
    """Write a cell of a spreadsheet, which would take some text for a formula."""
    mark_of_text = "'" if _FORMULA.match(text) else ""
    return mark_of_text + reveal_hidden(text)


FORMS: dict[str, Callable[[str], str]] = {
    "md": markdown,
    "latex": latex,
    "html": html,
    "csv": cell,
}


def as_csv(table: pl.DataFrame) -> str:
    """Write a table for spreadsheets: its text, and the names of its columns."""
    text_columns = table.select(cs.string()).get_columns()
    escaped = table.with_columns(map(_escape_column, text_columns))
    return escaped.rename(cell).write_csv()


def _escape_column(texts: pl.Series) -> pl.Series:
    cells = [None if text is None else cell(text) for text in texts]
    return pl.Series(texts.name, cells, pl.String)
