"""Tokens of a masked model as text, and as points of its embedding space."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["TokenText", "Vocabulary"]

_CUT = "\N{REPLACEMENT CHARACTER}"
"""What bytes decode to that are no whole character."""


class TokenText(NamedTuple):
    """A text by the tokens of a masked model, special ones left out."""

    text: str
    token_ids: list[int]
    spans: list[tuple[int, int]]
    """First character of each token, less whitespace, and the one after the last."""
    places: list[int]
    """Tokens that can be replaced: those of whole characters that are no whitespace."""

    def replace(self, pieces: Sequence[tuple[int, str, bool | None]]) -> str:
        """Put other texts for some tokens, ascending; all else stays, character by character.

        Each is a token's place, its new text, and whether a space is to precede it: None for
        whatever precedes it now.
        """
        parts, done = [], 0
        for place, new, spaced in pieces:
            start, end = self.spans[place]
            before = self.text[done:start]
            if spaced and start and not before[-1:].isspace():
                before += " "
            elif spaced is False:
                before = before.removesuffix(" ")
            parts += [before, new]
            done = end
        return "".join([*parts, self.text[done:]])


class Vocabulary:
    """What a masked model can put for a token: tokens that are text, none of them special.

    ``ids`` are theirs, ascending.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._decoded = self._after_another()
        special = set(tokenizer.all_special_ids)
        self.ids = np.array(
            [
                token
                for token, text in enumerate(self._decoded)
                if token not in special and text.strip() and _CUT not in text
            ]
        )

    def cut(self, text: str) -> TokenText:
        """Cut a text into tokens."""
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids: list[int] = encoded["input_ids"]
        spans = [_trim(text, *span) for span in encoded["offset_mapping"]]
        usable = set(self.ids.tolist())
        ends = [0, *(end for _, end in spans)]
        starts = [*(start for start, _ in spans[1:]), len(text)]
        places = [
            place
            for place, (start, end) in enumerate(spans)
            if ids[place] in usable and ends[place] <= start < end <= starts[place]
        ]
        return TokenText(text, ids, spans, places)

    def written(self, token: int, instead_of: int) -> tuple[str, bool | None]:
        """Say how a token is written for another, and whether a space precedes it.

        None where both begin a word, or both go on with one: then nothing before them changes.
        """
        new, old = self._decoded[token], self._decoded[instead_of]
        spaced = new[:1].isspace()
        return new.strip(), None if spaced == old[:1].isspace() else spaced

    def mirror(self, token_ids: Sequence[int], others: Sequence[int]) -> list[int]:
        """Find the token nearest to where each other one lies, on the opposite side of a token.

        Euclidean distance to 2 E(t) - E(t+), in the matrix of the model's input embeddings; of two
        that are as near, the one with the smaller id.
        """
        matrix = self._model.get_input_embeddings().weight.detach()
        points = 2 * matrix[list(token_ids)] - matrix[list(others)]
        usable, half_squares = self._usable
        nearness = points @ usable.T - half_squares  # minus half the squared distance, less |p|^2
        found: list[int] = self.ids[nearness.argmax(1).cpu().numpy()].tolist()
        return found

    @cached_property
    def _usable(self) -> tuple[Tensor, Tensor]:
        """Embeddings of the tokens that are text, and half of each one's squared length."""
        matrix = self._model.get_input_embeddings().weight.detach()
        usable: Tensor = matrix[self.ids.tolist()]
        return usable, usable.square().sum(1) / 2

    def _after_another(self) -> list[str]:
        """Decode each token as within a text: with its space, without marks of its place."""
        known = min(len(self._tokenizer), self._model.config.vocab_size)
        anchor = self._tokenizer.encode("a", add_special_tokens=False)[-1:]
        options = {"clean_up_tokenization_spaces": False}
        (first,) = self._tokenizer.batch_decode([anchor], **options)
        both = self._tokenizer.batch_decode([[*anchor, i] for i in range(known)], **options)
        return [text.removeprefix(first) for text in both]


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Leave whitespace out at both ends of a span."""
    inner = text[start:end]
    return start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())
