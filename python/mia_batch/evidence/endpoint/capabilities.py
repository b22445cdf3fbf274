"""What an endpoint was found to honour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Capabilities", "Honour"]

Honour = Literal["honoured", "ignored", "refused"]
"""``honoured``: it showed an effect; ``ignored``: accepted without one; ``refused``: an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a probe of an endpoint found; every value is JSON.

    Attributes
    ----------
    n
        Several continuations in one request. ``ignored`` also where they are copies of each other.
    seed
        Whether the same seed gives the same text twice.
    varied
        Whether texts differ at all; false says that the endpoint does not sample, whatever the
        temperature (or that the temperature is close to 0).
    top_k
        Whether ``top_k`` limits what is drawn; null where the run does not limit it.
    prompt_token_ids
        Whether a prompt may be given as token ids.
    output_token_ids
        Whether answers hold the token ids drawn (``return_token_ids``, vLLM's own field).
    echo_logprobs
        Whether the log-probability of every prompt token is given.
    max_model_len
        Most tokens of prompt and output together; null where it is not stated.
    """

    n: Honour
    seed: Honour
    varied: bool
    top_k: Honour | None
    prompt_token_ids: bool
    output_token_ids: bool
    echo_logprobs: bool
    max_model_len: int | None
