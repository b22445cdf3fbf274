"""What goes to an endpoint and what comes back: text, where a local engine has token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["TextOutput", "TextRequest", "TextResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """Ask for ``n`` continuations of one prompt.

    Attributes
    ----------
    request_id
        Chosen by the caller; unique among requests in flight.
    key
        What is asked, the same in every run: ``<target_id>:<first sample_index>:<n>:<max_tokens>``.
    prompt
        The prompt as text.
    seed
        Seed of the first continuation; continuation ``i`` is asked for with ``seed + i``.
    n
        Continuations asked for, at least 1.
    max_tokens
        Most tokens to decode per continuation, at least 1.
    """

    request_id: int
    key: str
    prompt: str
    seed: int
    n: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOutput:
    """One sampled continuation.

    Attributes
    ----------
    text
        The continuation as the endpoint gave it.
    n_tokens
        Tokens decoded; null where the endpoint does not say.
    finish_reason
        ``stop`` where the model ended the text, ``length`` where ``max_tokens`` or the context
        did; null where the endpoint does not say.
    """

    text: str
    n_tokens: int | None
    finish_reason: Literal["stop", "length"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextResult:
    """The answer to one request.

    Attributes
    ----------
    request_id
        The request's.
    outputs
        ``n`` continuations in the order of their seeds; empty where ``error`` is set.
    error
        Why this one request failed; null where it did not.
    """

    request_id: int
    outputs: list[TextOutput]
    error: str | None = None
