"""What an endpoint's client follows, from settings and environment."""

from __future__ import annotations

import os

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint import CHAT_INSTRUCTION, EndpointSettings
from mia_batch.models.tokens import Tokenizer
from mia_batch.settings.model import Settings

__all__ = ["endpoint_settings", "endpoint_tokenizer"]


def endpoint_settings(settings: Settings) -> EndpointSettings:
    """Return what the client follows; the key comes from the environment variable named."""
    key = os.environ.get(settings.api_key_env)
    default = Settings.model_fields["api_key_env"].default
    if key is None and settings.api_key_env != default:
        msg = (
            f"setting 'api_key_env' is {settings.api_key_env!r}, but there is no such environment "
            "variable; set it to the endpoint's key"
        )
        raise SettingsError(msg)
    return EndpointSettings(
        base_url=settings.base_url or "",
        model=settings.model,
        api_key=key,
        chat=settings.chat,
        chat_instruction=settings.chat_instruction or CHAT_INSTRUCTION,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        max_concurrency=settings.max_concurrency,
        timeout=settings.timeout,
        max_retries=settings.max_retries,
        price_in=settings.price_in,
        price_out=settings.price_out,
        max_cost=settings.max_cost,
    )


def endpoint_tokenizer(settings: Settings) -> Tokenizer | None:
    """Load the tokenizer that is named for the endpoint; None where none is."""
    if settings.tokenizer is None:
        return None
    return Tokenizer.load(settings.tokenizer, setting="tokenizer")
