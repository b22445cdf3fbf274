"""What no engine can answer, said the same way by all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia_batch.evidence.request import Request

__all__ = ["why_impossible"]


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
