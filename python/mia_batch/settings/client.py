"""What an endpoint's client follows, from settings and environment."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

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
    names = {each.name for each in fields(EndpointSettings)} - {"api_key"}
    given: dict[str, Any] = {name: getattr(settings, name) for name in names}
    given["base_url"] = given["base_url"] or ""
    given["chat_instruction"] = given["chat_instruction"] or CHAT_INSTRUCTION
    return EndpointSettings(**given, api_key=key)


def endpoint_tokenizer(settings: Settings) -> Tokenizer | None:
    """Load the tokenizer that is named for the endpoint; None where none is."""
    if settings.tokenizer is None:
        return None
    return Tokenizer.load(settings.tokenizer, setting="tokenizer")
