"""How to reach an endpoint, how it shall draw tokens, and how much it may be asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from mia_batch.errors import SettingsError

__all__ = ["CHAT_INSTRUCTION", "EndpointSettings"]

CHAT_INSTRUCTION = (
    "Continue the following text verbatim, from exactly where it ends. "
    "Write only the continuation: no comment, no repetition, no quotation marks."
)
"""What a chat model is told before the prompt, unless the caller words it otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """Everything that the client of an OpenAI-compatible endpoint follows.

    Attributes
    ----------
    base_url
        Address up to and including the version, such as ``https://api.openai.com/v1``.
    model
        The model's name at the endpoint.
    api_key
        Sent as a bearer token; null = none is sent. It is never shown or stored.
    chat
        Ask ``/chat/completions`` instead of ``/completions``.
    chat_instruction
        What a chat model is told before the prompt.
    temperature, top_k, top_p
        How tokens are drawn, as in :class:`~mia_batch.evidence.engine.Decoding`.
    requests_per_minute, tokens_per_minute
        Limits that the client keeps by itself; null = none.
    max_concurrency
        Most requests in flight.
    timeout
        Seconds that one answer may take.
    max_retries
        Times that one request is repeated.
    price_in, price_out
        Money per million tokens of prompt, and of output; null = unknown.
    max_cost
        Money that the run never exceeds; null = no limit. Needs both prices.

    Raises
    ------
    SettingsError
        If the address, the key or the limit of cost cannot be used.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    chat: bool = False
    chat_instruction: str = CHAT_INSTRUCTION
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrency: int = 32
    timeout: float = 600.0
    max_retries: int = 8
    price_in: float | None = None
    price_out: float | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        _check_address(self.base_url)
        _check_key(self.api_key)
        if self.max_cost is not None and (self.price_in is None or self.price_out is None):
            msg = "setting 'max_cost' needs prices; give 'price_in' and 'price_out' beside it"
            raise SettingsError(msg)

    def redact(self, text: str) -> str:
        """Take the key out of a text that came from elsewhere."""
        return text.replace(self.api_key, "[key]") if self.api_key else text

    def sample_identity(self, *, sends_top_k: bool) -> dict[str, object]:
        """Describe what changes a sample, as JSON values; the key is not among it.

        Parameters
        ----------
        sends_top_k
            Whether ``top_k`` reaches the model.

        Returns
        -------
        dict
            Answers may be shared only where this is equal.
        """
        return {
            "base_url": self.base_url.rstrip("/"),
            "model": self.model,
            "chat_instruction": self.chat_instruction if self.chat else None,
            "temperature": self.temperature,
            "top_k": self.top_k if sends_top_k else None,
            "top_p": self.top_p,
        }


def _check_address(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
        usable = usable and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    else:
        if parts.username is not None or parts.password is not None:
            msg = (
                "setting 'base_url' carries a user name or password; leave them out, and set the "
                "environment variable of the key"
            )
            raise SettingsError(msg)
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
