"""Markdown that more than one generated part is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["code", "table"]


def code(text: str) -> str:
    """Show text as code; "" for nothing."""
    return f"`{text}`" if text else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; a cell is Markdown of one line."""
    lines = [heads, ["---"] * len(heads), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
