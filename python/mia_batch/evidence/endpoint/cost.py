"""What requests cost: the most that they can, and what they did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.settings import EndpointSettings

__all__ = ["Estimate", "Ledger", "Tokens", "estimate_cost", "most_prompt_tokens"]

_PRICED = 1_000_000
_SPECIAL_TOKENS = 16  # a text's start, and the marks of a chat template


class Tokens(NamedTuple):
    """Tokens that are paid for: those of prompts, and those decoded."""

    given: int
    drawn: int

    def plus(self, other: Tokens) -> Tokens:
        """Add the tokens of another request."""
        return Tokens(self.given + other.given, self.drawn + other.drawn)

    def minus(self, other: Tokens) -> Tokens:
        """Take off the tokens of another request."""
        return Tokens(self.given - other.given, self.drawn - other.drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The most that a run can use.

    Attributes
    ----------
    tokens_in, tokens_out
        Most tokens of prompts, and of output.
    cost
        Most money; null where a price is unknown.
    """

    tokens_in: int
    tokens_out: int
    cost: float | None


def most_prompt_tokens(settings: EndpointSettings, *, prompt_bytes: int, prompts: int = 1) -> int:
    """Count the most tokens that prompts can have without knowing the tokenizer.

    No usual tokenizer makes more tokens than a text has bytes in UTF-8; special tokens come on
    top. English prose has about a quarter as many.

    Parameters
    ----------
    settings
        Whether a chat instruction goes before each prompt.
    prompt_bytes
        Bytes of all prompts in UTF-8.
    prompts
        Number of prompts.

    Returns
    -------
    int
        An upper bound.
    """
    instruction = len(settings.chat_instruction.encode()) if settings.chat else 0
    return prompt_bytes + prompts * (instruction + _SPECIAL_TOKENS)


def estimate_cost(
    settings: EndpointSettings,
    *,
    prompts: int,
    prompt_bytes: int,
    samples: int,
    max_tokens: int,
    honours_n: bool,
) -> Estimate:
    """Bound what a run can use, before its first request.

    Parameters
    ----------
    settings
        Prices, and whether a chat instruction goes before each prompt.
    prompts
        Prompts to send.
    prompt_bytes
        Bytes of all prompts in UTF-8.
    samples
        Samples of each prompt.
    max_tokens
        Most tokens to decode for one sample of each prompt, added up over the prompts.
    honours_n
        Whether one request can ask for all samples of a prompt; else the prompt is paid for with
        each sample.

    Returns
    -------
    Estimate
        The bound; retries of lost answers are not in it.
    """
    times = 1 if honours_n else samples
    bound = most_prompt_tokens(settings, prompt_bytes=prompt_bytes, prompts=prompts)
    tokens = Tokens(times * bound, samples * max_tokens)
    return Estimate(
        tokens_in=tokens.given,
        tokens_out=tokens.drawn,
        cost=_money(settings, tokens),
    )


class Ledger:
    """What has been spent, and what requests in flight may still cost.

    Parameters
    ----------
    settings
        Prices and limit.
    spent
        Tokens paid for before, by earlier processes of the same run.
    """

    def __init__(self, settings: EndpointSettings, spent: Tokens) -> None:
        self._settings = settings
        self._spent = spent
        self._reserved = Tokens(0, 0)
        self._open = 0

    @property
    def spent(self) -> float | None:
        """Money spent so far; null where a price is unknown."""
        return _money(self._settings, self._spent)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight that could turn out cheaper than reserved."""
        return self._open == 0

    def fits(self, most: Tokens) -> bool:
        """Tell whether a request stays within the limit, all in flight counted at their maximum.

        Parameters
        ----------
        most
            The most that the request can use.

        Returns
        -------
        bool
            True without a limit.
        """
        limit = self._settings.max_cost
        cost = _money(self._settings, self._spent.plus(self._reserved).plus(most))
        return limit is None or cost is None or cost <= limit

    def reserve(self, most: Tokens) -> None:
        """Note a request that is sent.

        Parameters
        ----------
        most
            The most that it can use.
        """
        self._open += 1
        self._reserved = self._reserved.plus(most)

    def settle(self, most: Tokens, used: Tokens) -> None:
        """Note how a request ended.

        Parameters
        ----------
        most
            What was reserved for it.
        used
            What it used.
        """
        self._open -= 1
        self._reserved = self._reserved.minus(most)
        self._spent = self._spent.plus(used)


def _money(settings: EndpointSettings, tokens: Tokens) -> float | None:
    if settings.price_in is None or settings.price_out is None:
        return None
    return (tokens.given * settings.price_in + tokens.drawn * settings.price_out) / _PRICED
