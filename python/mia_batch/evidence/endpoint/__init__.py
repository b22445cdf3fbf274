"""Endpoints that speak OpenAI's protocol: text goes out, text comes back, every answer is kept."""

from mia_batch.evidence.endpoint.client import Endpoint
from mia_batch.evidence.endpoint.wire import (
    CHAT_INSTRUCTION,
    Capabilities,
    ClientSettings,
)

__all__ = ["CHAT_INSTRUCTION", "Capabilities", "ClientSettings", "Endpoint"]
