"""What no engine can answer, said the same way by all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia_batch.evidence.engine import SampleRequest
    from mia_batch.evidence.scorer import ScoreRequest

__all__ = ["why_impossible", "why_unscorable"]


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
    if _is_foreign(prompt, vocab_size):
        return f"the prompt has a token outside the model's vocabulary of {vocab_size}"
    if request.n < 1 or request.max_tokens < 1:
        return "a request must ask for at least one sample and one token"
    return None


def why_unscorable(request: ScoreRequest, *, max_model_len: int, vocab_size: int) -> str | None:
    """Why a text cannot be scored by this model.

    Parameters
    ----------
    request
        The request.
    max_model_len
        Most tokens of a text.
    vocab_size
        Tokens that the model knows.

    Returns
    -------
    str or None
        One sentence; null where nothing stands in the way.
    """
    n_tokens = len(request.token_ids)
    if not 1 <= request.first < n_tokens:
        return f"a text of {n_tokens} tokens has none to score from token {request.first} on"
    if n_tokens > max_model_len:
        return f"the text has {n_tokens} tokens, more than the model's context of {max_model_len}"
    if _is_foreign(request.token_ids, vocab_size):
        return f"the text has a token outside the model's vocabulary of {vocab_size}"
    return None


def _is_foreign(token_ids: list[int], vocab_size: int) -> bool:
    return not 0 <= min(token_ids) <= max(token_ids) < vocab_size
