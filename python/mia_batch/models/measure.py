"""How long prompts and references are in tokens: counted, or estimated where nobody can count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Measure", "estimate_tokens"]

_BYTES_PER_TOKEN = 4  # of English prose; other text has fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Lengths of one target's two parts.

    Attributes
    ----------
    prompt_token_ids
        The prompt, special tokens included; null where it is only estimated.
    prompt_tokens
        Tokens of the prompt; 0 where there is nothing to continue.
    reference_tokens
        Tokens of the reference.
    """

    prompt_token_ids: list[int] | None
    prompt_tokens: int
    reference_tokens: int


def estimate_tokens(prefixes: Sequence[str], references: Sequence[str]) -> list[Measure]:
    """Estimate lengths from the texts' bytes, for models whose tokenizer is not at hand.

    Parameters
    ----------
    prefixes
        First parts of the targets.
    references
        Their second parts, as many.

    Returns
    -------
    list of Measure
        One per target: a token for every four bytes of UTF-8, rounded up.
    """
    return [
        Measure(
            prompt_token_ids=None,
            prompt_tokens=-(-len(prefix.encode()) // _BYTES_PER_TOKEN),
            reference_tokens=-(-len(reference.encode()) // _BYTES_PER_TOKEN),
        )
        for prefix, reference in zip(prefixes, references, strict=True)
    ]
