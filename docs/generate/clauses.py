"""Clauses of law and standards, with the rows of a run that speak to them."""

from __future__ import annotations

from itertools import groupby

from docs.generate.markdown import code, table
from mia_batch.report.html.page import NOT_TESTED, Clause, clauses

__all__ = ["sections"]


def sections() -> str:
    """One section per text: its clauses, what they ask, and where a run answers."""
    return "\n".join(
        f"## {name}\n\n{_table([*of])}"
        for name, of in groupby(clauses(), lambda each: each.text)
    )


def _table(of: list[Clause]) -> str:
    rows = (
        (
            each.at,
            each.asks,
            ", ".join(map(code, each.rows)) or f"{NOT_TESTED} by an audit",
        )
        for each in of
    )
    return (
        f"Source: {of[0].source}.\n\n{table(('clause', 'asks', 'answered by'), rows)}"
    )
