"""How to reach an endpoint, how it shall draw tokens, and how much it may be asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.capabilities import Capabilities

__all__ = ["CHAT_INSTRUCTION", "EndpointSettings"]

_SHORTEST_SECRET = 8  # a shorter key, such as "x" for a server that wants none, is in many words
CHAT_INSTRUCTION = (
    "Continue the following text verbatim, from exactly where it ends. "
    "Write only the continuation: no comment, no repetition, no quotation marks."
)
"""What a chat model is told before the prompt, unless the caller words it otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """Everything that the client of an OpenAI-compatible endpoint follows."""

    base_url: str  # up to and including the version, such as https://api.openai.com/v1
    model: str  # its name at the endpoint
    api_key: str | None = field(default=None, repr=False)  # a bearer token, never shown or stored
    chat: bool = False  # ask /chat/completions instead of /completions
    chat_instruction: str = CHAT_INSTRUCTION
    temperature: float = 1.0  # this and the next two as in `Decoding`
    top_k: int = 50
    top_p: float = 1.0
    requests_per_minute: float | None = None  # this and the next are kept by the client itself
    tokens_per_minute: float | None = None
    max_concurrency: int = 32  # requests in flight
    timeout: float = 600.0  # seconds that one answer may take
    max_retries: int = 8  # of one request
    price_in: float | None = None  # money per million tokens of prompt; None = unknown
    price_out: float | None = None  # the same of output
    max_cost: float | None = None  # money that the run never exceeds; needs both prices

    def __post_init__(self) -> None:
        _check_address(self.base_url)
        _check_key(self.api_key)
        if self.max_cost is not None and (self.price_in is None or self.price_out is None):
            msg = "setting 'max_cost' needs prices; give 'price_in' and 'price_out' beside it"
            raise SettingsError(msg)

    def redact(self, text: str) -> str:
        """Take the key out of a text that came from elsewhere, unless it is too short to be one."""
        key = self.api_key or ""
        return text.replace(key, "[key]") if len(key) >= _SHORTEST_SECRET else text

    def sample_identity(self, found: Capabilities) -> dict[str, object]:
        """Describe what changes a sample, as JSON values; only equal ones may share answers.

        The key is no part of it.
        """
        dialect = found.dialect
        return {
            "base_url": self.base_url.rstrip("/"),
            "model": self.model,
            "chat_instruction": self.chat_instruction if self.chat else None,
            "temperature": self.temperature,
            "top_k": self.top_k if found.top_k == "honoured" else None,
            "top_p": self.top_p,
            "fields not sent": sorted(dialect.withdrawn),
            "fields against thinking": dialect.added,
            "tokens for thinking": dialect.thinking,
            "prompt before the answer": dialect.repeats_prompt,
        }


def _check_address(base_url: str) -> None:
    if "@" in base_url.partition("://")[2].partition("/")[0]:
        msg = (
            "setting 'base_url' carries a user name or password; leave them out, and set the "
            "environment variable of the key"
        )
        raise SettingsError(msg)
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    else:
        usable = usable and not parts.query and not parts.fragment and base_url.isascii()
    if not usable or any(letter.isspace() for letter in base_url):
        msg = (
            f"setting 'base_url' is {base_url!r}, which is not an address of an endpoint; "
            "write it like https://api.openai.com/v1"
        )
        raise SettingsError(msg)


def _check_key(api_key: str | None) -> None:
    """Refuse a key that HTTP cannot carry, before a library quotes it in an error."""
    if api_key is None:
        return
    if not api_key or not all("!" <= letter <= "~" for letter in api_key):
        msg = (
            "the API key is empty or has spaces, line ends or other characters that no key has; "
            "set its environment variable again"
        )
        raise SettingsError(msg)
