"""What a tokenizer does of its own accord: special tokens around a text, a limit of its length."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["NO_LIMIT", "find_specials"]

NO_LIMIT = 2**62
"""A tokenizer's ``model_max_length`` where lengths are checked against the model's context."""


def find_specials(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Find the special tokens that a tokenizer puts before and after a text by itself.

    All are taken to stand before where a text is cut in another way between them than without.
    """
    whole: list[int] = tokenizer("a")["input_ids"]
    bare: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    extra = len(whole) - len(bare)
    starts = (i for i in range(extra + 1) if whole[i : i + len(bare)] == bare)
    before = next(starts, extra)
    return whole[:before], whole[before + len(bare) :]
