"""Requests sorted into batches, and what no engine can answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mia_batch.evidence.request import Continuation

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from mia_batch.evidence.request import Request


# What no engine can answer, said the same way by all of them.


def why_impossible(request: Request, *, max_model_len: int, vocab_size: int) -> str | None:
    """Why a request, in token ids, cannot be answered by this model."""
    context, text = request.context_ids or [], request.text_ids or []
    if request.kind == "samples":
        if not context:
            return "the prompt has no tokens"
        if len(context) >= max_model_len:
            return (
                f"the prompt has {len(context)} tokens, which leaves no room in the model's "
                f"context of {max_model_len}"
            )
        if request.n < 1 or request.max_tokens < 1:
            return "a request must ask for at least one sample and one token"
    else:
        n_tokens = len(context) + len(text)
        if not context or not text:
            return f"a text of {n_tokens} tokens has none to score from token {len(context)} on"
        if n_tokens > max_model_len:
            return (
                f"the text has {n_tokens} tokens, more than the model's context of {max_model_len}"
            )
    ids = [*context, *text]
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        what = "prompt" if request.kind == "samples" else "text"
        return f"the {what} has a token outside the model's vocabulary of {vocab_size}"
    return None


# Which continuations are decoded in one batch.


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Row:
    """One continuation to decode: the ``index``-th of a request."""

    request: Request
    index: int
    max_tokens: int

    @property
    def seed(self) -> int | None:
        """Seed of this continuation; None where nothing is drawn."""
        return None if self.request.greedy else self.request.seed + self.index

    @property
    def prompt(self) -> list[int]:
        """Token ids to continue."""
        return self.request.context_ids or []


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Room that a batch takes: rows, the longest prompt, and the most tokens of any row."""

    n_rows: int = 0
    n_prompt: int = 0
    n_output: int = 0

    def plus(self, row: Row) -> Shape:
        """Shape of the batch with one more row."""
        return Shape(
            n_rows=self.n_rows + 1,
            n_prompt=max(self.n_prompt, len(row.prompt)),
            n_output=max(self.n_output, row.max_tokens),
        )


def take_batch(rows: list[Row], fits: Callable[[Shape], bool]) -> list[Row]:
    """Take the oldest row and those most like it out of a queue, as many as fit together.

    One row always fits; the queue is oldest first.
    """
    if not rows:
        return []
    oldest = rows[0]
    shape = Shape()
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: _difference(row, oldest)):
        larger = shape.plus(row)
        if batch and not fits(larger):
            break
        shape = larger
        batch.append(row)
    taken = {id(row) for row in batch}
    rows[:] = [row for row in rows if id(row) not in taken]
    return batch


def _difference(row: Row, other: Row) -> int:
    return abs(len(row.prompt) - len(other.prompt)) + abs(row.max_tokens - other.max_tokens)


# Which texts are scored in one batch.


def n_tokens(request: Request) -> int:
    """Tokens of context and text."""
    return len(request.context_ids or ()) + len(request.text_ids or ())


def take_texts(
    queue: list[Request], *, most_texts: int, most_tokens: int, may_pad: bool
) -> list[Request]:
    """Take the oldest text and those nearest to it in length out of a queue, as many as fit.

    Every text counts as long as the longest; one is always taken. ``may_pad`` says whether texts of
    different lengths may come together.
    """
    if not queue:
        return []
    length = n_tokens(queue[0])
    batch: list[Request] = []
    longest = 0
    for request in sorted(queue, key=lambda request: abs(n_tokens(request) - length)):
        own = n_tokens(request)
        longest = max(longest, own)
        full = len(batch) == most_texts or (len(batch) + 1) * longest > most_tokens
        if batch and (full or not (may_pad or own == length)):
            break
        batch.append(request)
    taken = set(map(id, batch))
    queue[:] = [request for request in queue if id(request) not in taken]
    return batch


# Where a continuation ends.


def end_token_ids(*declared: int | list[int] | None) -> frozenset[int]:
    """Every token that ends a text, by any of the files of a checkpoint.

    These are the end-of-text tokens of the tokenizer, of ``config.json`` and of
    ``generation_config.json``: a number, a list of numbers, or nothing.
    """
    ends: set[int] = set()
    for value in declared:
        if value is not None:
            ends.update(value if isinstance(value, list) else [value])
    return frozenset(ends)


def cut_at_end(token_ids: list[int], ends: AbstractSet[int], max_tokens: int) -> Continuation:
    """Cut decoded tokens after the first end-of-text token, which stays, or ``max_tokens``."""
    kept = token_ids[:max_tokens]
    stop = next((index for index, token in enumerate(kept) if token in ends), None)
    if stop is None:
        return Continuation(token_ids=kept, finish_reason="length")
    return Continuation(token_ids=kept[: stop + 1], finish_reason="stop")
