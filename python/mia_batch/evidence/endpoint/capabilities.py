"""What an endpoint was found to honour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["NEUTRAL", "Capabilities", "Dialect", "Honour"]

NEUTRAL: dict[str, object] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "stream": False,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Fields that would act on the draw, with the values at which they do nothing."""

Honour = Literal["honoured", "ignored", "refused"]
"""``honoured``: it showed an effect; ``ignored``: accepted without one; ``refused``: an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How requests must be written for an endpoint, and what its answers hold beside the answer."""

    limit: str = "max_tokens"  # name of the field with the most tokens to decode
    withdrawn: tuple[str, ...] = ()  # fields that it refuses: they are not sent
    added: dict[str, Any] = field(default_factory=dict)  # what keeps the model from thinking
    thinking: int = 0  # tokens for thoughts that cannot be kept off, beside those of the answer
    repeats_prompt: bool = False  # whether the prompt stands before each answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a probe of an endpoint found; every value is JSON."""

    dialect: Dialect = field(default_factory=Dialect)
    greedy: Honour | None = None  # whether temperature 0 gives the same text twice
    neutral: dict[str, Honour] = field(default_factory=dict)  # of `NEUTRAL`, whether values act

    n: Honour = "refused"  # several continuations in one request; copies count as ``ignored``
    seed: Honour = "refused"  # whether the same seed gives the same text twice
    varied: bool = False  # False: it does not sample, or the temperature is 0 or close to it
    top_k: Honour | None = None  # None where the run does not limit it
    output_token_ids: bool = False  # whether answers hold token ids (``return_token_ids``, vLLM's)
    named_token: Honour | None = None  # ``logprob_token_ids``; None where it is not asked for
    top_logprobs: int = 0  # most likely next tokens that it lists on request, as far as tried
    token_id_names: bool = False  # whether it then names tokens by their ids
    serves: str | None = None  # what answers call the model, if that is no form of its name
    max_model_len: int | None = None  # tokens of prompt and output together; None = not stated

    def sampling_fields(self, *, n: int, seed: int, top_k: int) -> dict[str, object]:
        """Fields of a request that say how to draw: all that the endpoint does not refuse."""
        fields: dict[str, object] = {}
        if self.n != "refused":
            fields["n"] = n
        if self.seed != "refused":
            fields["seed"] = seed
        if self.top_k == "honoured":
            fields["top_k"] = top_k
        if self.output_token_ids:
            fields["return_token_ids"] = True
        return fields
