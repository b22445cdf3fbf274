"""The fields of a request that say how to draw; all are sent, so that no default of theirs acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.capabilities import Capabilities
    from mia_batch.evidence.endpoint.settings import EndpointSettings

__all__ = ["common_fields", "sampling_fields"]


def common_fields(settings: EndpointSettings, max_tokens: int) -> dict[str, object]:
    """Fields that every endpoint takes.

    Parameters
    ----------
    settings
        How to draw.
    max_tokens
        Most tokens to decode.

    Returns
    -------
    dict
        Fields of the request.
    """
    return {
        "model": settings.model,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": max_tokens,
    }


def sampling_fields(
    settings: EndpointSettings, capabilities: Capabilities, *, n: int, seed: int, max_tokens: int
) -> dict[str, object]:
    """Fields of a request for samples: all that the endpoint does not refuse.

    Parameters
    ----------
    settings
        How to draw.
    capabilities
        What the endpoint takes.
    n
        Continuations.
    seed
        Seed of the first.
    max_tokens
        Most tokens to decode.

    Returns
    -------
    dict
        Fields of the request.
    """
    fields = common_fields(settings, max_tokens)
    if capabilities.n != "refused":
        fields["n"] = n
    if capabilities.seed != "refused":
        fields["seed"] = seed
    if capabilities.top_k == "honoured":
        fields["top_k"] = settings.top_k
    if capabilities.output_token_ids:
        fields["return_token_ids"] = True
    return fields
