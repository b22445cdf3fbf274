"""Which texts are scored in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia_batch.evidence.scorer import ScoreRequest

__all__ = ["take_texts"]


def take_texts(
    queue: list[ScoreRequest], *, most_texts: int, most_tokens: int, may_pad: bool
) -> list[ScoreRequest]:
    """Take the oldest text and those nearest to it in length out of a queue, as many as fit.

    Parameters
    ----------
    queue
        Requests, oldest first; what is taken is removed.
    most_texts
        Most texts of a batch.
    most_tokens
        Most tokens of a batch, every text as long as the longest; one text is always taken.
    may_pad
        Whether texts of different lengths may come together.

    Returns
    -------
    list of ScoreRequest
        At least one, unless the queue is empty.
    """
    if not queue:
        return []
    length = len(queue[0].token_ids)
    batch: list[ScoreRequest] = []
    longest = 0
    for request in sorted(queue, key=lambda request: abs(len(request.token_ids) - length)):
        n_tokens = len(request.token_ids)
        longest = max(longest, n_tokens)
        full = len(batch) == most_texts or (len(batch) + 1) * longest > most_tokens
        if batch and (full or not (may_pad or n_tokens == length)):
            break
        batch.append(request)
    taken = set(map(id, batch))
    queue[:] = [request for request in queue if id(request) not in taken]
    return batch
