"""What no engine can answer, said the same way by all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia_batch.evidence.engine import SampleRequest

__all__ = ["why_impossible"]


def why_impossible(request: SampleRequest, *, max_model_len: int, vocab_size: int) -> str | None:
    """Why a request cannot be answered by this model.

    Parameters
    ----------
    request
        The request.
    max_model_len
        Most tokens of prompt and output together.
    vocab_size
        Tokens that the model knows.

    Returns
    -------
    str or None
        One sentence; null where nothing stands in the way.
    """
    prompt = request.prompt_token_ids
    if not prompt:
        return "the prompt has no tokens"
    if len(prompt) >= max_model_len:
        return (
            f"the prompt has {len(prompt)} tokens, which leaves no room in the model's context "
            f"of {max_model_len}"
        )
    if not 0 <= min(prompt) <= max(prompt) < vocab_size:
        return f"the prompt has a token outside the model's vocabulary of {vocab_size}"
    if request.n < 1 or request.max_tokens < 1:
        return "a request must ask for at least one sample and one token"
    return None
