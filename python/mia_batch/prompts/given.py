"""Prompts that are variants of the target, several of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.schemas import Prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["given", "numbered"]

_NO_FURTHER = "the text has no further neighbour"


def given(targets: pl.DataFrame, *, column: str, n: int) -> pl.DataFrame:
    """Take the first n texts of a column of lists."""
    rows = [
        row
        for target_id, texts in targets.select("target_id", column).iter_rows()
        for row in numbered(target_id, texts or (), range(n))
    ]
    return pl.DataFrame(rows, schema_overrides=Prompts.create_empty().schema)


def numbered(
    target_id: str, texts: Sequence[str | None], indices: range, reason: str | None = None
) -> list[dict[str, Any]]:
    """Give some texts of a target their numbers; those that are not there have a reason."""
    found = [texts[index] if index < len(texts) else None for index in indices]
    return [
        {
            "target_id": target_id,
            "view_index": index,
            "context": "",
            "text": text,
            "reason": (reason or _NO_FURTHER) if text is None else None,
        }
        for index, text in zip(indices, found, strict=True)
    ]
