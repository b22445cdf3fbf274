"""Which texts are scored in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia_batch.evidence.request import Request

__all__ = ["n_tokens", "take_texts"]


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
