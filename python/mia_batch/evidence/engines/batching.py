"""Requests sorted into batches, and what no engine can answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mia_batch.evidence.request import Continuation

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from mia_batch.evidence.request import Request


def why_impossible(request: Request, *, max_model_len: int, vocab_size: int) -> str | None:
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


# What comes together in one batch: continuations to decode, or texts to score.

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Row:
    """One continuation to decode: the ``index``-th of a request."""

    request: Request
    index: int
    max_tokens: int

    @property
    def seed(self) -> int | None:
        return None if self.request.greedy else self.request.seed + self.index

    @property
    def prompt(self) -> list[int]:
        return self.request.context_ids or []


def take_batch(
    queue: list[Item],
    lengths: Callable[[Item], tuple[int, ...]],
    fits: Callable[..., bool],
    *,
    may_pad: bool = True,
) -> list[Item]:
    """Take the oldest and those most like it in length out of a queue, as many as fit together.

    ``fits`` takes their number and the largest of each of their ``lengths``; one always fits.
    ``may_pad`` says whether different lengths may come together. The queue is oldest first.
    """
    if not queue:
        return []
    oldest = largest = lengths(queue[0])
    batch: list[Item] = []

    def difference(item: Item) -> int:
        return sum(abs(one - other) for one, other in zip(lengths(item), oldest, strict=True))

    for item in sorted(queue, key=difference):
        larger = tuple(map(max, largest, lengths(item)))
        if batch and not (fits(len(batch) + 1, *larger) and (may_pad or lengths(item) == oldest)):
            break
        largest = larger
        batch.append(item)
    taken = set(map(id, batch))
    queue[:] = [item for item in queue if id(item) not in taken]
    return batch


def n_tokens(request: Request) -> int:
    return len(request.context_ids or ()) + len(request.text_ids or ())


def end_token_ids(*declared: int | list[int] | None) -> frozenset[int]:
    """Every token that ends a text, by any of the files of a checkpoint.

    These are the end-of-text tokens of the tokenizer, of ``config.json`` and of
    ``generation_config.json``: a number, a list of numbers, or nothing.
    """
    lists = (value if isinstance(value, list) else [value] for value in declared)
    return frozenset(end for each in lists for end in each if end is not None)


def cut_at_end(token_ids: list[int], ends: AbstractSet[int], max_tokens: int) -> Continuation:
    """Cut decoded tokens after the first end-of-text token, which stays, or ``max_tokens``."""
    kept = token_ids[:max_tokens]
    stop = next((index for index, token in enumerate(kept) if token in ends), None)
    if stop is None:
        return Continuation(token_ids=kept, finish_reason="length")
    return Continuation(token_ids=kept[: stop + 1], finish_reason="stop")
