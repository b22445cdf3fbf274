"""Markdown that more than one generated part is made of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["code", "table"]

_CODE_OR_BAR = re.compile(r"(`+).*?\1|\|")


def code(text: str) -> str:
    """Show text as code; "" for nothing."""
    return f"`{text}`" if text else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; a cell is Markdown of one line."""
    lines = [
        heads,
        ["---"] * len(heads),
        *([_cell(cell) for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    """Escape bars outside code; inside, none ends a cell."""
    line = " ".join(text.split())
    return _CODE_OR_BAR.sub(lambda found: "\\|" if found[0] == "|" else found[0], line)
