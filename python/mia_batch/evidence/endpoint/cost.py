"""What requests cost: the most that they can, and what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.settings import EndpointSettings

__all__ = ["Ledger", "Tokens", "money", "most_prompt_tokens"]

_PRICED = 1_000_000
_SPECIAL_TOKENS = 16  # a text's start, and the marks of a chat template


class Tokens(NamedTuple):
    """Tokens that are paid for."""

    given: int  # of prompts
    drawn: int  # decoded

    def plus(self, other: Tokens) -> Tokens:
        """Add the tokens of another request."""
        return Tokens(self.given + other.given, self.drawn + other.drawn)

    def minus(self, other: Tokens) -> Tokens:
        """Take off the tokens of another request."""
        return Tokens(self.given - other.given, self.drawn - other.drawn)


def most_prompt_tokens(settings: EndpointSettings, *, prompt_bytes: int, prompts: int = 1) -> int:
    """Bound the tokens of prompts with so many bytes in UTF-8, whatever the tokenizer.

    No usual tokenizer makes more tokens than a text has bytes; special tokens come on top. English
    prose has about a quarter as many.
    """
    instruction = len(settings.chat_instruction.encode()) if settings.chat else 0
    return prompt_bytes + prompts * (instruction + _SPECIAL_TOKENS)


class Ledger:
    """What has been spent, earlier processes of the run included, and what may be in flight."""

    def __init__(self, settings: EndpointSettings, spent: Tokens) -> None:
        self._settings = settings
        self._spent = spent
        self._reserved = Tokens(0, 0)
        self._open = 0

    @property
    def spent(self) -> float | None:
        """Money spent so far; None where a price is unknown."""
        return money(self._settings, self._spent)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight that could turn out cheaper than reserved."""
        return self._open == 0

    def fits(self, most: Tokens) -> bool:
        """Whether a request stays within the limit, all in flight counted at their maximum."""
        limit = self._settings.max_cost
        cost = money(self._settings, self._spent.plus(self._reserved).plus(most))
        return limit is None or cost is None or cost <= limit

    def reserve(self, most: Tokens) -> None:
        """Note the most that a request can use, which is sent."""
        self._open += 1
        self._reserved = self._reserved.plus(most)

    def settle(self, most: Tokens, used: Tokens) -> None:
        """Note what a request has used of what was reserved for it."""
        self._open -= 1
        self._reserved = self._reserved.minus(most)
        self._spent = self._spent.plus(used)


def money(settings: EndpointSettings, tokens: Tokens) -> float | None:
    """Price tokens; None where a price is unknown."""
    if settings.price_in is None or settings.price_out is None:
        return None
    return (tokens.given * settings.price_in + tokens.drawn * settings.price_out) / _PRICED
