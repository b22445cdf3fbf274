"""How an endpoint is reached, what it can do, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from mia_batch.errors import SettingsError

_SHORTEST_SECRET = 8  # a shorter key, such as "x" for a server that wants none, is in many words
CHAT_INSTRUCTION = (
    "Continue the following text verbatim, from exactly where it ends. "
    "Write only the continuation: no comment, no repetition, no quotation marks."
)
"""What a chat model is told before the prompt, unless the caller words it otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
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
        key = self.api_key
        if key is not None and not (key and all("!" <= letter <= "~" for letter in key)):
            raise SettingsError(  # before a library of HTTP quotes it in an error
                "the API key is empty or has spaces, line ends or other characters that no key "
                "has; set its environment variable again"
            )
        if self.max_cost is not None and (self.price_in is None or self.price_out is None):
            raise SettingsError(
                "setting 'max_cost' needs prices; give 'price_in' and 'price_out' beside it"
            )

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
        raise SettingsError(
            "setting 'base_url' carries a user name or password; leave them out, and set the "
            "environment variable of the key"
        )
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        usable = usable and not parts.query and not parts.fragment
    except ValueError:
        usable = False
    if not usable or not base_url.isascii() or any(map(str.isspace, base_url)):
        raise SettingsError(
            f"setting 'base_url' is {base_url!r}, which is not an address of an endpoint; "
            "write it like https://api.openai.com/v1"
        )


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
        fields: dict[str, tuple[bool, object]] = {
            "n": (self.n != "refused", n),
            "seed": (self.seed != "refused", seed),
            "top_k": (self.top_k == "honoured", top_k),
            "return_token_ids": (self.output_token_ids, True),
        }
        return {name: value for name, (is_sent, value) in fields.items() if is_sent}


_PRICED = 1_000_000
_SPECIAL_TOKENS = 16  # a text's start, and the marks of a chat template


class Tokens(NamedTuple):
    """Tokens that are paid for."""

    given: int  # of prompts
    drawn: int  # decoded

    def plus(self, other: Tokens, times: int = 1) -> Tokens:
        return Tokens(self.given + times * other.given, self.drawn + times * other.drawn)


def most_prompt_tokens(settings: ClientSettings, *, prompt_bytes: int, prompts: int = 1) -> int:
    """Bound the tokens of prompts with so many bytes in UTF-8, whatever the tokenizer.

    No usual tokenizer makes more tokens than a text has bytes; special tokens come on top. English
    prose has about a quarter as many.
    """
    instruction = len(settings.chat_instruction.encode()) if settings.chat else 0
    return prompt_bytes + prompts * (instruction + _SPECIAL_TOKENS)


class Ledger:
    """What has been spent, earlier processes of the run included, and what may be in flight."""

    def __init__(self, settings: ClientSettings, spent: Tokens) -> None:
        self._settings = settings
        self._spent = spent
        self._reserved = Tokens(0, 0)
        self._open = 0

    @property
    def spent(self) -> float | None:
        """Money spent so far; None where a price is unknown."""
        return money(self._settings, self._spent)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight that could turn out cheaper than reserved."""
        return self._open == 0

    def fits(self, most: Tokens) -> bool:
        limit = self._settings.max_cost
        cost = money(self._settings, self._spent.plus(self._reserved).plus(most))
        return limit is None or cost is None or cost <= limit

    def reserve(self, most: Tokens) -> None:
        self._open += 1
        self._reserved = self._reserved.plus(most)

    def settle(self, most: Tokens, used: Tokens) -> None:
        self._open -= 1
        self._reserved = self._reserved.plus(most, -1)
        self._spent = self._spent.plus(used)


def money(settings: ClientSettings, tokens: Tokens) -> float | None:
    """Price tokens; None where a price is unknown."""
    if settings.price_in is None or settings.price_out is None:
        return None
    return (tokens.given * settings.price_in + tokens.drawn * settings.price_out) / _PRICED
