"""Where a continuation ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.evidence.engine import SampleOutput

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

__all__ = ["cut_at_end", "end_token_ids"]


def end_token_ids(*declared: int | list[int] | None) -> frozenset[int]:
    """Every token that ends a text, by any of the files of a checkpoint.

    Parameters
    ----------
    *declared
        The end-of-text token of the tokenizer, of ``config.json`` and of
        ``generation_config.json``: a number, a list of numbers, or nothing.

    Returns
    -------
    frozenset of int
        All of them together.
    """
    ends: set[int] = set()
    for value in declared:
        if value is not None:
            ends.update(value if isinstance(value, list) else [value])
    return frozenset(ends)


def cut_at_end(token_ids: list[int], ends: AbstractSet[int], max_tokens: int) -> SampleOutput:
    """Cut decoded tokens after the first end-of-text token or after ``max_tokens``.

    Parameters
    ----------
    token_ids
        What was decoded, possibly too much.
    ends
        The end-of-text tokens.
    max_tokens
        Most tokens to keep.

    Returns
    -------
    SampleOutput
        The continuation, the end-of-text token included.
    """
    kept = token_ids[:max_tokens]
    stop = next((place for place, token in enumerate(kept) if token in ends), None)
    if stop is None:
        return SampleOutput(token_ids=kept, finish_reason="length")
    return SampleOutput(token_ids=kept[: stop + 1], finish_reason="stop")
