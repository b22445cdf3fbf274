"""Whatever continues texts, as the collector sees it: text goes out, text comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mia_batch.evidence.engine import FinishReason

__all__ = ["Source", "TextOutput", "TextRequest", "TextResult"]


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
    prompt_token_ids
        The prompt as the model's own tokenizer encodes it; null where only the source knows how.
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
    prompt_token_ids: list[int] | None = None
    seed: int
    n: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOutput:
    """One sampled continuation.

    Attributes
    ----------
    text
        The continuation: what follows the prompt, special tokens removed.
    n_tokens
        Tokens decoded; null where the source does not say.
    finish_reason
        ``stop`` where the model ended the text, ``length`` where ``max_tokens`` or the context
        did; null where the source does not say.
    """

    text: str
    n_tokens: int | None
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextResult:
    """The answer to one request.

    Attributes
    ----------
    request_id
        The request's.
    outputs
        ``n`` continuations in the order of their seeds; empty where ``error`` is set.
    prompt
        The prompt as it came back from the model's tokenizer; null where nobody decoded it.
    error
        Why this one request failed; null where it did not.
    """

    request_id: int
    outputs: list[TextOutput]
    prompt: str | None = None
    error: str | None = None


class Source(Protocol):
    """Answers requests in any order, many at once."""

    def has_room(self, *, requests: int, samples: int) -> bool:
        """Whether more should be submitted while so many requests and samples are in flight."""

    def submit(self, request: TextRequest) -> None:
        """Queue a request; returns at once."""

    def results(self, timeout: float | None = None) -> list[TextResult]:
        """Wait for answers.

        Parameters
        ----------
        timeout
            Seconds to wait for the first; null = as long as it takes.

        Returns
        -------
        list of TextResult
            At least one, except where the time passed before.

        Raises
        ------
        EngineError
            If no request can be answered any more; what was finished before comes first.
        """
