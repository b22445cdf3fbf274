"""The table of documents and the conclusions, for those who paste them elsewhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs
from markupsafe import Markup

from mia_batch.report.html.documents import document_tables
from mia_batch.report.html.text import plain

if TYPE_CHECKING:
    from mia_batch.report.html.contents import Contents

__all__ = ["as_csv", "as_markdown"]

_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>~&$-])")


def as_markdown(contents: Contents) -> str:
    """Write conclusions as a list and each table of documents below it; all text is escaped."""
    lines = [f"* {_escaped(sentence)}" for sentence in contents.conclusions]
    for table in document_tables(contents, ()):
        columns = [column for column in table.columns if "curves.y" not in column.sources]
        lines += ["", f"## {_escaped(table.title)}", ""]
        lines.append(_line([_escaped(column.heading) for column in columns]))
        lines.append(_line(["---"] * len(columns)))
        for row in table.rows:
            cells = (Markup(column.write(row)).striptags() for column in columns)
            lines.append(_line([_escaped(cell) for cell in cells]))
    return "\n".join(lines) + "\n"


def as_csv(contents: Contents) -> str:
    """Write the roll-up as it is, or where there is none the scores of the texts.

    Text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    rows = contents.frame("rollup")
    if rows.is_empty():
        rows = contents.frame("scores")
    formula = cs.string().str.contains(r"^[=+\-@\t\r]")
    safe = pl.when(formula).then(pl.lit("'") + cs.string()).otherwise(cs.string())
    return rows.with_columns(safe.name.keep()).write_csv()


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", " ".join(plain(text).split()))
