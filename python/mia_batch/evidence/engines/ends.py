"""Where a continuation ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.evidence.request import Continuation

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

__all__ = ["cut_at_end", "end_token_ids"]


def end_token_ids(*declared: int | list[int] | None) -> frozenset[int]:
    """Every token that ends a text, by any of the files of a checkpoint.

    These are the end-of-text tokens of the tokenizer, of ``config.json`` and of
    ``generation_config.json``: a number, a list of numbers, or nothing.
    """
    ends: set[int] = set()
    for value in declared:
        if value is not None:
            ends.update(value if isinstance(value, list) else [value])
    return frozenset(ends)


def cut_at_end(token_ids: list[int], ends: AbstractSet[int], max_tokens: int) -> Continuation:
    """Cut decoded tokens after the first end-of-text token, which stays, or ``max_tokens``."""
    kept = token_ids[:max_tokens]
    stop = next((index for index, token in enumerate(kept) if token in ends), None)
    if stop is None:
        return Continuation(token_ids=kept, finish_reason="length")
    return Continuation(token_ids=kept[: stop + 1], finish_reason="stop")
