"""What a tokenizer does of its own accord: special tokens around a text, a limit of its length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["NO_LIMIT", "find_specials", "why_of_another"]

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


def why_of_another(tokenizer: PreTrainedTokenizerBase, config: Any) -> str | None:  # noqa: ANN401
    """Say what shows that a tokenizer is of another model than a configuration, if something does.

    Tokens that were added to a tokenizer can be more than the model has, which no text of a corpus
    has. An end of texts that is the default of its architecture may never have been set.
    """
    text_config, added = config.get_text_config(), set(tokenizer.added_tokens_decoder)
    size, own = text_config.vocab_size, tokenizer.eos_token_id
    highest = max(set(tokenizer.get_vocab().values()) - added, default=0)
    if highest >= size:
        return f"has the token {highest}, and the model has {size:,} tokens"
    declared = text_config.eos_token_id
    ends = declared if isinstance(declared, list) else [declared]
    strange = {None, getattr(type(text_config), "eos_token_id", None)}
    if own is None or own in ends or any(end in strange or end in added for end in ends):
        return None
    return f"ends texts with token {own}, and the model's config.json with {ends[0]}"
