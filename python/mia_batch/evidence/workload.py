"""How much there is to decode, counted before anything is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.evidence.budget import Budget
    from mia_batch.models.measure import Measure

__all__ = ["PAPER_TOKENS", "Workload"]

PAPER_TOKENS = 1024
"""Tokens of prompt and output to which the SaMIA paper decodes."""


@dataclass(slots=True, kw_only=True)
class Workload:
    """Sums over the targets that are to be sampled.

    Attributes
    ----------
    prefixes, samples
        Prompts given to the model, and continuations of them.
    too_long
        Targets whose prefix leaves no room to continue.
    prompt_bytes
        Bytes of the prompts in UTF-8, each counted once.
    first_tokens
        Most tokens to decode at the first attempt.
    most_tokens
        Most tokens to decode if every candidate stays too short at every attempt.
    paper_tokens
        Most tokens that decoding to the paper's length would have taken.
    """

    prefixes: int = 0
    samples: int = 0
    too_long: int = 0
    prompt_bytes: int = 0
    first_tokens: int = 0
    most_tokens: int = 0
    paper_tokens: int = 0

    def add(self, prefix: str, measure: Measure, n_samples: int, budget: Budget) -> None:
        """Count one target.

        Parameters
        ----------
        prefix
            The target's prefix.
        measure
            Lengths of its two parts.
        n_samples
            Continuations to sample.
        budget
            How many tokens to decode.
        """
        prompt, reference = measure.prompt_tokens, measure.reference_tokens
        first = budget.first(prompt, reference)
        if prompt == 0 or first <= 0:
            self.too_long += 1
            return
        self.prefixes += 1
        self.samples += n_samples
        self.prompt_bytes += len(prefix.encode())
        self.first_tokens += n_samples * first
        self.most_tokens += n_samples * budget.most(prompt, reference)
        self.paper_tokens += n_samples * max(0, PAPER_TOKENS - prompt)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the sums as name and text."""
        yield "prefixes", f"{self.prefixes:,}"
        yield "samples", f"{self.samples:,}"
        if self.too_long:
            yield "prefixes without room to continue", f"{self.too_long:,}"
        yield "tokens to decode", f"{self.first_tokens:,}, at most {self.most_tokens:,}"

    def outcome(self, decoded: int) -> str:
        """Say what was decoded beside what the paper's length would have taken.

        Parameters
        ----------
        decoded
            Tokens decoded.

        Returns
        -------
        str
            A sentence.
        """
        each = decoded / self.prefixes if self.prefixes else 0.0
        return (
            f"decoded {decoded:,} tokens, {each:,.0f} a target; to the paper's "
            f"{PAPER_TOKENS:,} tokens it would have been up to {self.paper_tokens:,}"
        )
