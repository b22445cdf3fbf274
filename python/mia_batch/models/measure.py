"""How long prompts and references are in tokens: counted, or estimated where nobody can count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Measure", "estimate_tokens", "estimated_tokens"]

_BYTES_PER_TOKEN = 4  # of English prose; other text has fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Lengths of a prompt and its reference; ids are None where lengths are estimated."""

    prompt_token_ids: list[int] | None
    prompt_tokens: int
    reference_tokens: int


def estimated_tokens(column: str) -> pl.Expr:
    """Estimate the lengths of a column's texts as `estimate_tokens` does; 0 of null."""
    n_bytes = pl.col(column).str.len_bytes().fill_null(0).cast(pl.Int64)
    return (n_bytes + _BYTES_PER_TOKEN - 1) // _BYTES_PER_TOKEN


def estimate_tokens(prefixes: Sequence[str], references: Sequence[str]) -> list[Measure]:
    """Estimate lengths where no tokenizer is at hand: a token for every four bytes of UTF-8."""
    return [
        Measure(
            prompt_token_ids=None,
            prompt_tokens=-(-len(prefix.encode()) // _BYTES_PER_TOKEN),
            reference_tokens=-(-len(reference.encode()) // _BYTES_PER_TOKEN),
        )
        for prefix, reference in zip(prefixes, references, strict=True)
    ]
