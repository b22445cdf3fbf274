"""How many tokens to decode for one candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

__all__ = ["Budget", "DecodeScope"]

DecodeScope = Literal["matched", "whole"]
"""``matched``: only as far as the reference is long; ``whole``: to the paper's full length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Rule for the tokens to decode.

    ``matched`` decodes as many tokens as the reference has, with a margin, and more where a
    candidate stays short of the reference's words; ``whole`` decodes to ``max_length`` tokens of
    prompt and output together (the SaMIA paper: 1024). With a single attempt the first budget is
    twice as large, because some words take more tokens than others; ``max_attempts`` None is until
    the context is full. ``spare`` is the least margin, in tokens. ``most_new`` is the
    most, however short the prompt is.
    """

    scope: DecodeScope
    max_length: int
    max_model_len: int
    max_attempts: int | None = None
    spare: int = 8
    most_new: int | None = None

    def room(self, prompt_tokens: int) -> int:
        """Most tokens that may ever be decoded after a prompt; 0 or less where it does not fit."""
        limit = self.max_model_len
        if self.scope == "whole":
            limit = min(limit, self.max_length)
        room = limit - prompt_tokens
        return room if self.most_new is None else min(room, self.most_new)

    def first(self, prompt_tokens: int, reference_tokens: int) -> int:
        """Tokens to decode at first.

        The margin, a quarter and ``spare`` tokens, lets most candidates reach the reference's
        number of words at the first attempt: words of sampled text vary in length.
        """
        room = self.room(prompt_tokens)
        if self.scope == "whole":
            return room
        usual = reference_tokens + reference_tokens // 4 + self.spare
        return min(usual if self.max_attempts != 1 else 2 * usual, room)

    def expected(self, prompt_tokens: pl.Expr, reference_tokens: pl.Expr) -> pl.Expr:
        """Give `first` of columns, and 0 where there is no room."""
        limit = self.max_length if self.scope == "whole" else self.max_model_len
        most = pl.min_horizontal(limit - prompt_tokens, self.most_new)
        if self.scope == "matched":
            usual = reference_tokens + reference_tokens // 4 + self.spare
            most = pl.min_horizontal(usual if self.max_attempts != 1 else 2 * usual, most)
        return most.clip(lower_bound=0)

    def next(self, prompt_tokens: int, tried: int, attempts: int) -> int | None:
        """Tokens to decode after ``attempts`` of which the last, of ``tried``, were too few.

        None where there is no room for more, or no further attempt.
        """
        room = self.room(prompt_tokens)
        if tried >= room or attempts == self.max_attempts:
            return None
        return min(2 * tried, room)

    def most(self, prompt_tokens: int, reference_tokens: int) -> int:
        """Tokens that are decoded if every attempt is too short, all attempts added up."""
        total, attempts = 0, 0
        budget: int | None = self.first(prompt_tokens, reference_tokens)
        while budget is not None and self.scope == "matched":
            total, attempts = total + budget, attempts + 1
            budget = self.next(prompt_tokens, budget, attempts)
        return total or self.room(prompt_tokens)
