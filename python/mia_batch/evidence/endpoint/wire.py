"""Settings, requests and replies of an endpoint, in the wire format of completions and chats."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, product
from typing import Annotated, Any, ClassVar, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from mia_batch.errors import EngineError, SettingsError, describe_error
from mia_batch.evidence.endpoint.stream import (
    REASONING,
    StreamError,
    is_stream,
    join_stream,
    join_text_parts,
)
from mia_batch.evidence.request import Answer, Continuation, FinishReason, Request
from mia_batch.evidence.token_texts import MINUS_INFINITY, read_bytes_token
from mia_batch.models.tokens import Tokenizer
from mia_batch.schemas import FILTERED

# A shorter key, such as "x" for a server that wants none, is in many words
_SHORTEST_SECRET = 8
CHAT_INSTRUCTION = (
    "Continue the following text verbatim, from exactly where it ends. "
    "Write only the continuation: no comment, no repetition, no quotation marks."
)
"""What stands before the prompt of a chat model, unless the caller words it otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Everything that the client of an OpenAI-compatible endpoint follows."""

    base_url: str  # up to and including the version, such as https://api.openai.com/v1
    model: str  # its name at the endpoint
    # A bearer token, never shown or stored
    api_key: str | None = field(default=None, repr=False)
    chat: bool = False  # ask /chat/completions instead of /completions
    chat_instruction: str = CHAT_INSTRUCTION
    temperature: float = 1.0  # this and the next two as in `Decoding`
    top_k: int = 50
    top_p: float = 1.0
    # This and the next are kept by the client itself
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrency: int = 32  # requests in flight
    timeout: float = 600.0  # seconds that one answer may take
    max_retries: int = 8  # of one request
    price_in: float | None = None  # money per million tokens of prompt; None = unknown
    price_out: float | None = None  # the same of output
    batch_price: float = 0.5  # of a batch service, as a share of the prices
    max_cost: float | None = None  # money that the run never exceeds; needs both prices

    def __post_init__(self) -> None:
        _check_address(self.base_url)
        _check_kind(self.base_url, chat=self.chat)
        key = self.api_key
        is_printable = all("!" <= letter <= "~" for letter in key or "")
        if key is not None and not (key and is_printable):
            raise SettingsError(  # before a library of HTTP quotes it in an error
                "the API key is empty or has spaces, line ends or other characters that"
                " no key has; set its environment variable again"
            )
        has_prices = self.price_in is not None and self.price_out is not None
        if self.max_cost is not None and not has_prices:
            raise SettingsError(
                "max_cost= needs prices; give price_in= and price_out= as well"
            )

    def redact(self, text: str) -> str:
        """Remove the key from a text that came from elsewhere, unless it is too short to be one."""
        key = self.api_key or ""
        return text.replace(key, "[key]") if len(key) >= _SHORTEST_SECRET else text

    def sample_identity(self, capabilities: Capabilities) -> dict[str, object]:
        """Describe what changes a sample, as JSON values; only equal ones may share answers."""
        # The key is no part of it.
        dialect = capabilities.dialect
        return {
            "base_url": self.base_url.rstrip("/"),
            "model": self.model,
            "chat_instruction": self.chat_instruction if self.chat else None,
            "temperature": self.temperature,
            "top_k": self.top_k if capabilities.top_k == "honoured" else None,
            "top_p": self.top_p,
            "fields not sent": sorted(dialect.withdrawn),
            "fields against thinking": dialect.added,
            "tokens for thinking": dialect.thinking,
            "prompt before the answer": dialect.repeats_prompt,
        }


_SECRET = re.compile(r"key|token|secret|sig|pass|code|auth", re.IGNORECASE)


def _check_address(base_url: str) -> None:
    host = base_url.partition("://")[2].partition("/")[0]
    if "@" in host:
        raise SettingsError(
            "base_url= carries a user name or password; leave them out, and set the "
            "environment variable of the key"
        )
    is_address = base_url.isascii() and not any(map(str.isspace, base_url))
    secrets = []
    try:
        parts = urlsplit(base_url)
        is_web = parts.scheme in {"http", "https"} and bool(parts.hostname)
        if not is_web or parts.port == 0 or parts.fragment:
            is_address = False
        names = [name for name, _ in parse_qsl(parts.query)]
        secrets = [name for name in names if _SECRET.search(name)]
    except ValueError:
        is_address = False
    if secrets:
        raise SettingsError(
            f"base_url= carries {secrets[0]!r} behind its question mark, and a run"
            " keeps its address; leave it out, and set the environment variable of"
            " the key"
        )
    if not is_address:
        raise SettingsError(
            f"base_url= is {base_url!r}, which is not an address of an endpoint; "
            "write it like https://api.openai.com/v1"
        )


CHATS = "/chat/completions"
COMPLETIONS = "/completions"


def _check_kind(base_url: str, *, chat: bool) -> None:
    """Check that an address which names what is asked names what is to be asked."""
    path = urlsplit(base_url).path.rstrip("/")
    names_chats = path.endswith(CHATS)
    if names_chats and not chat:
        raise SettingsError(
            f"base_url= ends with {CHATS}, where chats are asked; add chat=, or leave"
            f" {CHATS} out to have texts completed"
        )
    if chat and path.endswith(COMPLETIONS) and not names_chats:
        raise SettingsError(
            f"base_url= ends with {COMPLETIONS}, where texts are completed; leave chat="
            f" out, or leave {COMPLETIONS} out to ask chats"
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

Support = Literal["honoured", "ignored", "refused"]
"""Of a field: ``honoured``: it showed an effect; ``ignored``: accepted without one;
``refused``: an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How requests must be written for an endpoint, and what its answers hold with the answer."""

    limit: str = "max_tokens"  # name of the field with the most tokens to decode
    withdrawn: tuple[str, ...] = ()  # fields that it refuses: they are not sent
    # What keeps the model from thinking
    added: dict[str, Any] = field(default_factory=dict)
    # Tokens for thoughts that cannot be kept off, on top of the answer's
    thinking: int = 0
    repeats_prompt: bool = False  # whether the prompt stands before each answer
    lead: int = 0  # tokens for what stands before a continuation, on top of it
    says_prompt: bool = False  # whether that can be the whole prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a probe of an endpoint found; every value is JSON."""

    dialect: Dialect = field(default_factory=Dialect)
    # Whether temperature 0 gives the same text twice
    greedy: Support | None = None
    # Of `NEUTRAL`, whether values act
    neutral: dict[str, Support] = field(default_factory=dict)

    # Several continuations in one request; copies count as ``ignored``
    n: Support = "refused"
    seed: Support = "refused"  # whether the same seed gives the same text twice
    # False: it does not sample, or the temperature is 0 or close to it
    varied: bool = False
    top_k: Support | None = None  # None where the run does not limit it
    # Whether answers hold token ids (``return_token_ids``, vLLM's)
    output_token_ids: bool = False
    # ``logprob_token_ids``; None where it is not asked for
    named_token: Support | None = None
    # Most likely next tokens that it lists on request, as far as tried
    top_logprobs: int = 0
    nudge: Support | None = None  # ``logit_bias``; None where it is not needed
    token_id_names: bool = False  # whether it then names tokens by their ids
    # See `mia_batch.evidence.dress`
    dress: list[dict[str, str]] = field(default_factory=list)
    # What answers call the model, if that is no form of its name
    serves: str | None = None
    # Whether answers count the prompt's tokens, so that cut prompts can be found
    counts_prompts: bool = True
    # Tokens of prompt and output together; None = not stated
    max_model_len: int | None = None
    # Prompts that it keeps, so that it reads only what the next one adds: the slots of
    # llama.cpp's server. None = another server
    prompt_slots: int | None = None

    def sampling_fields(self, *, n: int, seed: int, top_k: int) -> dict[str, object]:
        """Build the fields of a draw that the endpoint takes."""
        fields: dict[str, object] = {}
        if self.n != "refused":
            fields["n"] = n
        if self.seed != "refused":
            fields["seed"] = seed
        if self.top_k == "honoured":
            fields["top_k"] = top_k
        if self.output_token_ids:
            fields["return_token_ids"] = True
        if self.prompt_slots is not None:
            fields["cache_prompt"] = True
        return fields


# Tokens and money.

_PRICED = 1_000_000
_BYTES_A_TOKEN = 3  # at least, of most texts
_SPECIAL_TOKENS = 16  # a text's start, and the marks of a chat template


class Tokens(NamedTuple):
    """Tokens that are paid for."""

    prompt: int
    output: int  # decoded

    def plus(self, tokens: Tokens, times: int = 1) -> Tokens:
        return Tokens(
            self.prompt + times * tokens.prompt,
            self.output + times * tokens.output,
        )


NO_TOKENS = Tokens(0, 0)


def most_prompt_tokens(
    settings: ClientSettings, *, prompt_bytes: int, prompts: int = 1
) -> int:
    """Bound the tokens of prompts with so many bytes in UTF-8, whatever the tokenizer."""
    # No usual tokenizer makes more tokens than a text has bytes; special tokens come on
    # top. English prose has about a quarter as many.
    instruction = len(settings.chat_instruction.encode()) if settings.chat else 0
    return prompt_bytes + prompts * (instruction + _SPECIAL_TOKENS)


MOST_BYTES_PER_TOKEN = 8  # on the mean of a text; usual tokenizers have half as many


def least_tokens(text: str) -> int:
    """Count the tokens that a text has at least, whatever the tokenizer."""
    return max(len(text.split()), len(text.encode()) // MOST_BYTES_PER_TOKEN)


def paid_for(
    stated: Tokens, request: WireRequest, texts: Iterable[str | None]
) -> Tokens:
    """Return what a server says was used, but no less than what was sent and what came."""
    n_sent = max(
        least_tokens(request.prompt),
        request.limit.prompt // MOST_BYTES_PER_TOKEN,
    )
    n_received = sum(least_tokens(text) for text in texts if text is not None)
    n_sent = min(n_sent, request.limit.prompt)
    n_received = min(n_received, request.limit.output)
    return Tokens(max(stated.prompt, n_sent), max(stated.output, n_received))


def money(
    settings: ClientSettings, tokens: Tokens, batch_tokens: Tokens = NO_TOKENS
) -> float | None:
    """Compute the price of tokens, sent and in batches; None where prices are unknown."""
    if settings.price_in is None or settings.price_out is None:
        return None
    share = settings.batch_price
    n_prompt = tokens.prompt + share * batch_tokens.prompt
    n_output = tokens.output + share * batch_tokens.output
    return (n_prompt * settings.price_in + n_output * settings.price_out) / _PRICED


class CostLimitError(EngineError):
    """The money that a run may cost is spent."""


class Ledger:
    """What has been spent, earlier processes of the run included, and what may be in flight."""

    def __init__(
        self,
        settings: ClientSettings,
        spent: Tokens,
        batch_spent: Tokens = NO_TOKENS,
    ) -> None:
        self._settings = settings
        self._spent = spent
        self._batch_spent = batch_spent
        self._reserved = Tokens(0, 0)
        self._open = 0

    @property
    def spent(self) -> float | None:
        return money(self._settings, self._spent, self._batch_spent)

    @property
    def left(self) -> float | None:
        """What may still be spent; None without a limit."""
        limit, spent = self._settings.max_cost, self.spent
        return None if limit is None or spent is None else limit - spent

    @property
    def idle(self) -> bool:
        """True where nothing is in flight that could turn out cheaper than reserved."""
        return self._open == 0

    def fits(self, tokens: Tokens) -> bool:
        limit = self._settings.max_cost
        total = self._spent.plus(self._reserved).plus(tokens)
        cost = money(self._settings, total, self._batch_spent)
        return limit is None or cost is None or cost <= limit

    def reserve(self, tokens: Tokens) -> None:
        self._open += 1
        self._reserved = self._reserved.plus(tokens)

    def settle(self, reserved: Tokens, paid: Tokens) -> None:
        self._open -= 1
        self._reserved = self._reserved.plus(reserved, -1)
        self._spent = self._spent.plus(paid)


# What replies say.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer that came whole."""

    status: int
    headers: Mapping[str, str]  # found by names in lower case
    body: bytes  # unpacked


_LONGEST = 300
_LONGEST_TOKEN = 256  # characters; the longest of usual tokenizers have 128
_LONGEST_START = 4096  # of a server that counts tokens in its own way
_FINISHES: dict[str, FinishReason] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence"), "stop"),
    **dict.fromkeys(("complete", "done"), "stop"),
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "model_length"), "length"
    ),
}
_FAILURES = frozenset({"error", "abort", "aborted", "cancelled", "canceled"})
_FILTERS = {
    *("content_filter", "content_filtered", "safety", "recitation", "blocklist"),
    *("prohibited_content", "spii", "sensitive", "guardrail_intervened"),
}
"""Finish reasons of all dialects, in lower case. Others, empty ones and null say nothing."""
# Of an error that says so of the prompt; in lower case
_FILTER_CODES = frozenset({"content_filter", "responsibleaipolicyviolation"})
_FILTER_RESULTS = ("content_filter_result", "content_filter_results")
_THOUGHTS = re.compile(
    r"\s*(?:<(think|thinking|thought|reasoning)>.*?</\1>|\[THINK\].*?\[/THINK\]|◁think▷.*?◁/think▷)\s*",
    re.S | re.I,
)
_THOUGHT_BEGINS = re.compile(
    r"\s*(?:<(?:think|thinking|thought|reasoning)>|\[THINK\]|◁think▷)", re.I
)
_THOUGHT_ENDS = re.compile(
    r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]|◁/think▷", re.I
)
_REFUSES = re.compile(
    r"\s*(?:(?:I['\u2019]?m|I am) (?:really |very )?sorry,? but I\b"
    r"|Sorry,? (?:but )?I (?:can['\u2019]?t|cannot)\b"
    r"|I (?:can['\u2019]?t|cannot|can not|won['\u2019]?t|am unable to|am not able to) "
    r"(?:assist|help|continue|provide|reproduce|comply|fulfil|share|do that|complete)"
    r"|As an AI\b)",
    re.I,
)
"""How chat models begin a refusal in English; others show by being the same about every text."""
_LAST_WORD = re.compile(r"\s+\S*\Z|\ufffd+\Z")
# Characters; a continuation may begin with the words of a shorter one
_LONG_PROMPT = 32
_Count = Annotated[int, Field(ge=0, lt=2**40)]

_ONLY_THOUGHTS = Continuation(
    answer="thinking",
    reason="the model spent its tokens on thoughts and gave no answer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a reply with status 2xx brought."""

    continuations: dict[int, Continuation]  # those that can be used, by index
    tokens: Tokens | None = None  # paid for; None where it does not say
    problem: str | None = None  # why not all that it holds can be used
    document: dict[str, Any]  # the whole body
    sent_at: str | None = None  # when the request was sent, in UTC
    # Whether the provider filtered the prompt, so that no sample of it can be drawn
    is_prompt_filtered: bool = False

    @property
    def system_fingerprint(self) -> str | None:
        return self._stated("system_fingerprint")

    @property
    def served_model(self) -> str | None:
        return self._stated("model")

    def _stated(self, name: str) -> str | None:
        value = self.document.get(name)
        return shorten(value) if isinstance(value, str) and value else None

    @property
    def text(self) -> str:
        first = self.continuations.get(0)
        return "" if first is None else first.text or ""


class Refusal(NamedTuple):
    """What a reply with an error status says."""

    codes: frozenset[str]  # the error's ``code`` and ``type``, as far as they are there
    is_json: bool
    sentence: str  # status and the endpoint's own message, shortened, without the key


class _Usage(BaseModel, strict=True):
    prompt_tokens: _Count
    completion_tokens: _Count = 0


class _Choice(BaseModel, strict=True):
    index: int | None = None
    token_ids: list[int] | None = None


def read_usage(document: dict[str, Any]) -> Tokens | None:
    """Read what a reply says was paid for; None where it does not."""
    try:
        return Tokens(*dict(_Usage.model_validate(document.get("usage"))).values())
    except ValidationError:
        return None


def read_refusal(reply: Reply, settings: ClientSettings) -> Refusal:
    """Read what a reply with an error status says."""
    decoded = decode_object(reply.body)
    document = decoded or {}
    error = document.get("error", document)
    if not isinstance(error, dict):
        error = {"message": error}
    codes = [str(error[name]) for name in ("code", "type") if error.get(name)]
    message = error.get("message") or error.get("detail")
    if 300 <= reply.status < 400:
        message = f"a redirect to {reply.headers.get('location', 'nowhere')}"
    elif message is None:
        message = reply.body.decode(errors="replace")
    sentence = shorten(settings.redact(str(message))) or "no message"
    return Refusal(
        codes=frozenset(codes),
        is_json=decoded is not None,
        sentence=f"status {reply.status}: {sentence}",
    )


def decode_object(body: bytes) -> dict[str, object] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def shorten(text: str) -> str:
    """Make one line of a foreign text: no mark-up, at most about 300 printable characters."""
    mark_up = r"<(script|style).*?</\1>|<[^>]*>"
    bare = re.sub(mark_up, " ", text[:20_000], flags=re.S | re.I)
    printable = (letter if letter.isprintable() else " " for letter in bare)
    line = " ".join("".join(printable).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def _redact(value: Any, redact: Callable[[str], str]) -> Any:
    """Remove the key from every text of a JSON value."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redact(element, redact) for element in value]
    if isinstance(value, dict):
        return {
            redact(name): _redact(element, redact) for name, element in value.items()
        }
    return value


def _object(value: object) -> dict[str, Any]:
    """Return a JSON object as it is, and nothing in place of anything else."""
    return value if isinstance(value, dict) else {}


def _read_finish(choice: dict[str, Any]) -> str:
    finish = choice.get("finish_reason")
    return finish.strip().lower() if isinstance(finish, str) else ""


def _read_withheld(choice: dict[str, Any]) -> Continuation | None:
    """Read why a provider or a model gives no answer; None where it gives one."""
    finish = _read_finish(choice)
    if finish in _FAILURES:
        raise ValueError(f"the endpoint ended it with {finish!r}")
    if finish in _FILTERS:
        hits = _list_filters(choice.get("content_filter_results"))
        causes = shorten(", ".join([finish, *hits]))
        reason = f"{FILTERED} the answer ({causes})"
        return Continuation(answer="filtered", reason=reason)
    refusal = _object(choice.get("message")).get("refusal")
    if isinstance(refusal, str) and refusal:
        return _refused(refusal)
    return None


def _list_filters(results: object) -> list[str]:
    """List the filters that a provider names as those which stopped a text."""
    return [
        str(name)
        for name, result in _object(results).items()
        if _object(result).get("filtered") is True
    ]


def _read_filtered_prompt(document: dict[str, Any]) -> str | None:
    """Read why a provider, as Azure does, filtered a prompt; None where it did not."""
    error = _object(document.get("error"))
    inner_error = _object(error.get("innererror"))
    codes = []
    for part in (error, inner_error):
        code = part.get("code")
        if isinstance(code, str) and code:
            codes.append(code)
    hits: list[str] = []
    for name in _FILTER_RESULTS:
        hits += _list_filters(inner_error.get(name))
    for name in ("prompt_filter_results", "prompt_annotations"):
        results = document.get(name)
        for result in results if isinstance(results, list) else []:
            hits += _list_filters(_object(result).get("content_filter_results"))
    has_code = not _FILTER_CODES.isdisjoint(code.lower() for code in codes)
    has_choices = bool(document.get("choices"))
    is_filtered = has_code if error else bool(hits) and not has_choices
    if not is_filtered:
        return None
    causes = dict.fromkeys([*codes, *hits]) or ["content_filter"]
    return f"{FILTERED} the prompt ({shorten(', '.join(causes))})"


def _refused(sentence: str) -> Continuation:
    reason = f"the model refused: {shorten(sentence)}"
    return Continuation(answer="refusal", reason=reason)


def _read_reply(text: str) -> Continuation:
    """Remove the thoughts from what a chat model says, and find refusals."""
    without_thoughts = _THOUGHTS.sub("", text, count=1)
    bare = _THOUGHT_ENDS.split(without_thoughts)[-1]
    if _THOUGHT_BEGINS.match(bare):
        return _ONLY_THOUGHTS
    has_thoughts = bare != text
    if has_thoughts:
        bare = bare.lstrip("\n")
    if not bare.strip():
        empty = Continuation(answer="empty", reason="the answer is empty")
        return _ONLY_THOUGHTS if has_thoughts else empty
    if _REFUSES.match(bare):
        return _refused(bare)
    return Continuation(text=bare, answer="thought_removed" if has_thoughts else "text")


# The formats of requests.


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as it goes over the wire, for ``n`` continuations from index ``first`` on."""

    payload: dict[str, object]
    n: int
    first: int
    limit: Tokens  # the most that it can use
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """The format of ``/completions``, which others vary."""

    path: ClassVar[str] = COMPLETIONS
    # Whether a chat model answers, which thinks and refuses
    converses: ClassVar[bool] = False
    # Whether the journal keeps tokens of a choice, not its text
    lists: ClassVar[bool] = False
    settings: ClientSettings
    dialect: Dialect = field(default_factory=Dialect, kw_only=True)

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        return {"prompt": prompt}

    def prompt(self, request: Request) -> str:
        return request.context + request.text

    def rest(self, request: Request) -> Request:
        """Ask for what follows the answer so far; if that has no words, ask the prompt again."""
        # The last word may be a part of one, which would be cut into other tokens as a
        # prompt. Text that is unusually long for its tokens is not paid for as a
        # prompt.
        partial = request.partial or Continuation()
        words = _LAST_WORD.sub("", partial.text or "")
        is_long = len(words.encode()) > MOST_BYTES_PER_TOKEN * (partial.n_tokens or 0)
        if not words.strip() or is_long:
            return replace(request, partial=None)
        whole_words = replace(partial, text=words)
        return replace(request, partial=whole_words).rest()

    def fields(
        self, request: Request, _capabilities: Capabilities
    ) -> dict[str, object]:
        """Build the fields of what is asked for besides a continuation."""
        if request.nudge is None:
            return {}
        token, nats = request.nudge
        return {"logit_bias": {str(token): nats}}

    def write(
        self,
        prompt: str,
        fields: dict[str, object],
        *,
        n: int,
        max_tokens: int,
        first: int = 0,
    ) -> WireRequest:
        """Write all fields, so that no default of the endpoint acts; ``fields`` come last."""
        settings = self.settings
        dialect = self.dialect
        prompt_bytes = len(prompt.encode())
        max_tokens += dialect.thinking + dialect.lead
        if dialect.says_prompt:
            max_tokens += prompt_bytes // _BYTES_A_TOKEN
        acting = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            **NEUTRAL,
        }
        for name in dialect.withdrawn:
            acting.pop(name, None)
        payload = {
            "model": settings.model,
            **acting,
            **dialect.added,
            dialect.limit: max_tokens,
            **self.prompt_fields(prompt),
            **fields,
        }
        prompt_tokens = most_prompt_tokens(settings, prompt_bytes=prompt_bytes)
        limit = Tokens(prompt_tokens, n * max_tokens)
        return WireRequest(payload, n, first, limit, prompt)

    def rewrite(self, request: WireRequest, prompt: str) -> WireRequest:
        """Write a request anew about another prompt."""
        payload = request.payload | self.prompt_fields(prompt)
        n_bytes = len(prompt.encode())
        prompt_tokens = most_prompt_tokens(self.settings, prompt_bytes=n_bytes)
        limit = Tokens(prompt_tokens, request.limit.output)
        return WireRequest(payload, request.n, 0, limit, prompt)

    def text(self, choice: dict[str, Any]) -> object:
        """Find the text of a choice; anything but a string cannot be used."""
        return choice.get("text")

    def answer(
        self,
        request: Request,
        continuations: list[Continuation],
        _capabilities: Capabilities,
    ) -> Answer:
        """Build the answer to a request from its choices, in the order of their seeds."""
        return Answer(request_id=request.request_id, continuations=continuations)

    def read(self, body: bytes, request: WireRequest) -> Choices:
        """Read a reply of up to ``n`` choices; one that is not what was asked for has nothing."""
        # What the reply says of the key is taken out before anything is kept.
        decoded = self._decode(body)
        if isinstance(decoded, str):
            return Choices(continuations={}, problem=decoded, document={})
        document: dict[str, Any] = _redact(decoded, self.settings.redact)
        filtered = self._build_filtered(document, request)
        if filtered is not None:
            return filtered
        continuations, problem = self._read_choices(document, request)
        return Choices(
            continuations=continuations,
            tokens=read_usage(document),
            problem=problem,
            document=document,
        )

    def _decode(self, body: bytes) -> dict[str, Any] | str:
        """Decode an answer that came whole or as a stream; a text says what is wrong."""
        if is_stream(body):  # although `stream` is false in the request
            try:
                return join_stream(body)
            except StreamError as error:
                detail = shorten(self.settings.redact(error.detail))
                return f"{error}: {detail}" if detail else str(error)
        decoded = decode_object(body)
        if decoded is not None:
            return decoded
        text = self.settings.redact(body.decode(errors="replace"))
        return f"it is not JSON: {shorten(text) or 'nothing'}"

    def read_filtered(self, reply: Reply, request: WireRequest) -> Choices | None:
        """Read an error that says of the prompt that it was filtered; None of any other."""
        document = decode_object(reply.body) if 400 <= reply.status < 500 else None
        if document is None:
            return None
        return self._build_filtered(_redact(document, self.settings.redact), request)

    def _build_filtered(
        self, document: dict[str, Any], request: WireRequest
    ) -> Choices | None:
        """Build what a filtered prompt brings: no sample of it, now or later."""
        reason = _read_filtered_prompt(document)
        if reason is None:
            return None
        continuation = Continuation(answer="filtered", reason=reason)
        return Choices(
            continuations=dict.fromkeys(range(request.n), continuation),
            # The provider has read the prompt, and counts it
            tokens=read_usage(document) or Tokens(0, 0),
            document=document,
            is_prompt_filtered=True,
        )

    def _read_choices(
        self, document: dict[str, Any], request: WireRequest
    ) -> tuple[dict[int, Continuation], str | None]:
        """Read the choices that can be used, by index, and why others cannot."""
        n = request.n
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices:
            error = document.get("error")
            message = f": {shorten(str(error))}" if error else ""
            return {}, f"it holds no choices{message}"
        if len(choices) > n:
            return {}, f"it holds {len(choices)} choices where {n} were asked for"
        n_thoughts = 0
        n_tokens = None
        if len(choices) == 1:  # else it is that of all together
            n_thoughts = _count_thoughts(document)
            usage = read_usage(document)
            if usage is not None:
                n_tokens = max(0, usage.output - n_thoughts)
        offset = _first_index(choices, n)
        continuations: dict[int, Continuation] = {}
        problem = None
        for position, choice in enumerate(choices):
            try:
                index, continuation = self._read_choice(
                    choice, request.prompt, n_tokens, n_thoughts
                )
                index = position if index is None else index
                self._check_length(continuation.text or "", request)
                if index == 1 or n > 1:
                    index -= offset
                if not 0 <= index < n or index in continuations:
                    return {}, f"its choices have index {index} twice or beyond {n - 1}"
                continuations[index] = continuation
            except ValueError as error:
                cause = describe_error(error).partition(": ")[2]
                problem = f"choice {position} cannot be used ({cause})"
        return continuations, problem

    def _check_length(self, text: str, request: WireRequest) -> None:
        tokens = request.limit.output // max(1, request.n)
        if not self.lists and len(text) > _LONGEST_START + _LONGEST_TOKEN * tokens:
            raise ValueError(
                f"its text has {len(text):,} characters, far beyond {tokens} tokens"
            )

    def _read_choice(
        self, item: object, prompt: str, n_tokens: int | None, n_thoughts: int
    ) -> tuple[int | None, Continuation]:
        """Read a choice; `ValueError` if it is of no use, and may be of use the next time."""
        if not isinstance(item, dict):
            raise ValueError("it is not an object")  # noqa: TRY004 - one kind for all that is wrong
        continuation = self._read_continuation(item, prompt, n_thoughts)
        choice = _Choice.model_validate(item)
        if choice.token_ids is not None:
            n_tokens = len(choice.token_ids)
        finish = _FINISHES.get(_read_finish(item))
        continuation = replace(continuation, n_tokens=n_tokens, finish_reason=finish)
        return choice.index, continuation

    def _read_continuation(
        self, choice: dict[str, Any], prompt: str, n_thoughts: int
    ) -> Continuation:
        withheld = _read_withheld(choice)
        if withheld is not None:
            return withheld
        text = self.text(choice)
        message = _object(choice.get("message"))
        has_thoughts = n_thoughts > 0 or any(map(message.get, REASONING))
        if text in (None, "") and has_thoughts:
            return _ONLY_THOUGHTS
        if not isinstance(text, str):
            raise ValueError("it holds no text")  # noqa: TRY004 - one kind for all that is wrong
        # Which no file can hold
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError("its text is not valid Unicode")
        continuation = _read_reply(text) if self.converses else Continuation(text=text)
        may_repeat = self.dialect.repeats_prompt or len(prompt) >= _LONG_PROMPT
        if continuation.text is None or not may_repeat:
            return continuation
        return _remove_prompt(continuation, continuation.text, prompt)


def _count_thoughts(document: dict[str, Any]) -> int:
    """Read the tokens of thoughts that a reply with one choice counts."""
    usage = _object(document.get("usage"))
    details = _object(usage.get("completion_tokens_details"))
    n_tokens = details.get("reasoning_tokens")
    return n_tokens if type(n_tokens) is int and n_tokens > 0 else 0


def _first_index(choices: list[Any], n: int) -> int:
    """Return where the count of choices begins: some servers count from 1."""
    indices = sorted(str(_object(choice).get("index")) for choice in choices)
    from_one = sorted(map(str, range(1, n + 1)))
    return 1 if n == 1 or indices == from_one else 0


def _remove_prompt(continuation: Continuation, text: str, prompt: str) -> Continuation:
    """Remove a repeated prompt from an answer."""
    stripped = prompt.strip()
    if text.startswith(prompt):
        bare = text[len(prompt) :]
    elif stripped and text.lstrip().startswith(stripped):
        bare = text.lstrip()[len(stripped) :]
    else:
        return continuation
    if bare.strip():
        return Continuation(text=bare, answer="prompt_removed")
    reason = "the answer is the prompt and nothing more"
    return Continuation(answer="prompt_repeated", reason=reason)


class Chat(RequestFormat):
    """Instruction and prompt go as one user message; the reply is the continuation."""

    # One message, because the templates of some models take no system message.

    path = CHATS
    converses = True

    def rest(self, request: Request) -> Request:
        """Ask anew: a reply starts over, and does not go on from another."""
        return replace(request, partial=None)

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        content = f"{self.settings.chat_instruction}\n\n{prompt}"
        return {"messages": [{"role": "user", "content": content}]}

    def fields(self, request: Request, capabilities: Capabilities) -> dict[str, object]:
        """Put a question or a conversation as it is: no text is to be continued."""
        if request.sends_messages:
            return {"messages": json.loads(request.context)["messages"]}
        if not request.question:
            return super().fields(request, capabilities)
        return {"messages": [{"role": "user", "content": request.context}]}

    def text(self, choice: dict[str, Any]) -> object:
        return join_text_parts(_object(choice.get("message")).get("content"))


_NO_LOGPROB = (
    "the endpoint gives a token a log-probability that is not a number up to 0"
)


class Echo(RequestFormat):
    """The format of a request for log-probabilities of a prompt."""

    lists = True

    # One token is drawn and thrown away, because not every endpoint takes a request for
    # none. The journal keeps tokens and log-probabilities as JSON, in its column of
    # texts.

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        return {"prompt": prompt, "echo": True, "logprobs": 1}

    def text(self, choice: dict[str, Any]) -> object:
        logprobs = choice.get("logprobs")
        if not isinstance(logprobs, dict):
            return None
        return json.dumps([logprobs.get("tokens"), logprobs.get("token_logprobs")])

    @staticmethod
    def parse_listing(text: str | None) -> tuple[object, object]:
        """Parse the tokens and log-probabilities that the journal keeps."""
        tokens, logprobs = json.loads(text or "[null, null]")
        return tokens, logprobs

    def answer(
        self,
        request: Request,
        continuations: list[Continuation],
        _capabilities: Capabilities,
    ) -> Answer:
        """Read the echo, of which no more tokens are kept than were asked for."""
        (continuation,) = continuations
        if continuation.reason is not None:
            return request.failed(continuation.reason)
        listing = self.parse_listing(continuation.text)
        echo = read_echo(
            *listing,
            request.context,
            request.text,
            n_drawn=continuation.n_tokens,
        )
        if isinstance(echo, str):
            return request.failed(echo)
        bos, logprob = echo
        n_wanted = request.text_tokens
        if len(logprob) < (n_wanted or 0):
            error = (
                f"the text has {len(logprob)} tokens, fewer than the {n_wanted} wanted"
            )
            return request.failed(error, is_eligible=False)
        tokens: dict[str, NDArray[np.generic]] = {"logprob": logprob[:n_wanted]}
        return Answer(request_id=request.request_id, tokens=tokens, bos=bos)


def read_echo(
    tokens: object, logprobs: object, context: str, text: str, *, n_drawn: int | None
) -> tuple[bool, NDArray[np.float32]] | str:
    """Read whether a special token came first, and the log-probabilities of the text's tokens."""
    # Nothing that does not fit the prompt is believed: then the reason is returned.
    mismatch = "the endpoint's log-probabilities are not one for each token"
    if not isinstance(tokens, list) or not isinstance(logprobs, list):
        return mismatch
    is_text = all(isinstance(token, str) for token in tokens)
    if len(tokens) != len(logprobs) or not is_text:
        return mismatch
    pieces = list(map(read_bytes_token, tokens))
    prompt = (context + text).encode()
    n = len(pieces)
    # A token that was drawn may be without text
    ends = (n,) if n_drawn == 0 else (n - 1, n)
    for end, bos in product(ends, (0, 1)):
        if b"".join(pieces[bos:end]) == prompt:
            break
    else:
        return "the endpoint's tokens, put together, are not the prompt"
    lengths = map(len, pieces[bos:end])
    starts = list(accumulate(lengths, initial=0))[:-1]
    n_context = len(context.encode())
    first = bos + sum(start < n_context for start in starts)
    unscored = int(first == 0)  # nothing precedes the first token
    values = logprobs[first + unscored : end]
    if not values:
        return "the text has no token that something precedes"
    if not all(map(is_logprob, values)):
        return _NO_LOGPROB
    return bos == 1, np.array([math.nan] * unscored + values, np.float32)


def is_logprob(value: object) -> bool:
    """Check for a number up to 0, and none that stands for minus infinity."""
    return isinstance(value, (int, float)) and MINUS_INFINITY < value <= 0


_BY_ID = re.compile(r"token_id:([0-9]+)")  # how vLLM names a token by its id
# Probability of what is not listed, as far as rounding lets it be known
_LEAST_UNLISTED = 1e-4
ListedTokens = list[tuple[str, float]]
"""Tokens that an endpoint lists at a position, by the names that it has for them."""


@dataclass(frozen=True)
class NextToken(RequestFormat):
    """The format of a request about the first token of a text after its context."""

    # The token that is drawn is the most likely one, and always thrown away. The
    # journal keeps the tokens that are listed as JSON, in its column of texts.

    tokenizer: Tokenizer
    converses: ClassVar[bool] = False
    lists: ClassVar[bool] = True

    def prepare(self, request: Request) -> Request | Answer:
        """Find the ids of the true token, or of all answers, and the prompt before them."""
        # The endpoint must cut that as it is cut here. A chat reply starts anew,
        # without a space.
        prompt: str | None = request.context
        if self.settings.chat:
            texts = [request.text.lstrip()]
            if request.question:
                texts = request.text.split()
            ids = list(chain.from_iterable(self.tokenizer.encode(texts)))
        else:
            special, context_ids, ids = self.tokenizer.encode_after(
                request.context, request.text
            )
            prompt = self._find_prompt(request, special + context_ids)
        no_answers = request.why_no_answers(ids)
        if no_answers:
            return request.failed(no_answers, passes=0)
        if not ids:
            error = "the text has 0 tokens, fewer than the 1 wanted"
            return request.failed(error, passes=0, is_eligible=False)
        if prompt is None:
            error = (
                "the endpoint would cut the words before the text in another way alone"
            )
            return request.failed(error, passes=0)
        text_ids = ids if request.question else ids[:1]
        return replace(request, context=prompt, text_ids=text_ids)

    def _find_prompt(self, request: Request, token_ids: list[int]) -> str | None:
        """Find a prompt that has just these tokens; None if no prompt has."""
        # The last token before the text may reach into it.
        for end in range(len(request.text)):
            prompt = request.context + request.text[:end]
            if self.tokenizer.encode_prompts([prompt])[0] == token_ids:
                return prompt
        return None

    def prompt(self, request: Request) -> str:
        return request.context

    def listing_fields(
        self, n: int, tokens: Sequence[int] = (), *, by_id: bool = False
    ) -> dict[str, object]:
        """Ask for the ``n`` most likely tokens, or for ``n`` that are named by their ids."""
        fields: dict[str, object] = {"logprobs": n}
        if self.settings.chat:
            fields = {"logprobs": True, "top_logprobs": n}
        if by_id:
            fields["return_tokens_as_token_ids"] = True
        if tokens:
            fields["logprob_token_ids"] = [*tokens]
        return fields

    def fields(self, request: Request, capabilities: Capabilities) -> dict[str, object]:
        """Ask for the tokens by name where that is honoured, else for the most likely."""
        n = capabilities.top_logprobs
        tokens: list[int] = []
        if capabilities.named_token == "honoured" and request.text_ids:
            tokens = request.text_ids
            n = len(tokens)
        listing = self.listing_fields(n, tokens, by_id=capabilities.token_id_names)
        return super().fields(request, capabilities) | listing

    def text(self, choice: dict[str, Any]) -> object:
        match choice.get("logprobs"):
            case {"content": [{"top_logprobs": [*entries]}, *_]}:
                objects = [entry for entry in entries if isinstance(entry, dict)]
                pairs = [
                    (entry.get("token"), entry.get("logprob")) for entry in objects
                ]
            case {"top_logprobs": [dict(entries), *_]}:
                pairs = [*entries.items()]
            case _:
                return None
        for name, value in pairs:
            if not (isinstance(name, str) and isinstance(value, (int, float))):
                return None
        return json.dumps(pairs) if pairs else None

    @staticmethod
    def parse_listing(text: str | None) -> ListedTokens:
        """Parse the listed tokens that the journal keeps."""
        return [(name, value) for name, value in json.loads(text or "[]")]

    def reply_text(self, choice: dict[str, Any]) -> object:
        return super().text(choice)

    def answer(
        self,
        request: Request,
        continuations: list[Continuation],
        capabilities: Capabilities,
    ) -> Answer:
        """Read what the listing says of the tokens; bounds alone do not tell answers apart."""
        (continuation,) = continuations
        if continuation.reason is not None:
            return request.failed(continuation.reason)
        listed = self.parse_listing(continuation.text)
        token_ids = request.text_ids or []
        exact = capabilities.named_token == "honoured"
        logprobs: list[float] = []
        is_bound: list[bool] = []
        for token in token_ids:
            value = read_next_token(listed, token, self.tokenizer, exact=exact)
            if isinstance(value, str):
                return request.failed(value)
            logprobs.append(value[0])
            is_bound.append(value[1])
        if request.question and all(is_bound):
            error = (
                f"none of the answers is among the {capabilities.top_logprobs} tokens"
                " listed"
            )
            return request.failed(error)
        special, _, _ = self.tokenizer.encode_after("", "")
        tokens: dict[str, NDArray[np.generic]] = {
            "token_ids": np.array(token_ids, np.uint32),
            "logprob": np.array(logprobs, np.float32),
        }
        if "vocabulary_mean" in request.columns:
            mean = most_mean([value for _, value in listed], exact=exact)
            tokens["vocabulary_mean"] = np.array([mean], np.float32)
        return Answer(
            request_id=request.request_id,
            tokens=tokens,
            bos=bool(special) and not self.settings.chat,
            bounded=any(is_bound),
        )


class NextChatToken(NextToken, Chat):
    """The same of a chat, about the first token of the reply."""


def most_mean(values: list[float], *, exact: bool) -> float:
    """Bound the mean log-probability over the vocabulary from above, by those that are listed."""
    # A token that is not listed is less likely than the likeliest; where none is asked
    # for by name, than all that are listed. Together they have what those leave.
    unlisted = max(1 - math.fsum(map(math.exp, values)), 0.0)
    likeliest = max(values) if exact else min(values)
    bound = min(likeliest, math.log(max(unlisted, _LEAST_UNLISTED)))
    return math.fsum(math.exp(value) * value for value in values) + unlisted * bound


def is_id(name: str) -> bool:
    return _BY_ID.fullmatch(name) is not None


def find_ids(listed: ListedTokens, tokenizer: Tokenizer) -> list[int | None]:
    """Find which tokens are listed, by id or by a text that no other has; else None."""
    ids: list[int | None] = []
    for name, _ in listed:
        if is_id(name):
            ids.append(int(name.partition(":")[2]))
        else:
            ids.append(tokenizer.ids_by_text.get(name))
    return ids


def read_next_token(
    listed: ListedTokens, token: int, tokenizer: Tokenizer, *, exact: bool
) -> tuple[float, bool] | str:
    """Read a token's log-probability, and whether it is an upper bound; or why it is missing."""
    # A token that is not listed is less likely than all that are, and has no more than
    # they leave. Where it was asked for by name, ``exact``, it must be there.
    values = [value for _, value in listed]
    pairs = zip(values, find_ids(listed, tokenizer), strict=True)
    true_values = {value for value, listed_id in pairs if listed_id == token}
    if not all(map(is_logprob, true_values if exact else values)):
        return _NO_LOGPROB
    if len(true_values) > 1:
        return "the endpoint gives the true token several log-probabilities"
    unlisted = 1.0 if exact else 1 - math.fsum(map(math.exp, values))
    if unlisted < -_LEAST_UNLISTED:
        return "the probabilities of the endpoint's tokens add up to more than 1"
    if true_values:
        return true_values.pop(), False
    by_text = not all(is_id(name) for name, _ in listed)
    if by_text and tokenizer.ids_by_text.get(tokenizer.token_text(token)) != token:
        return (
            "the endpoint names tokens by their text, and others have that of the true"
            " token"
        )
    if exact:
        return "the endpoint's answer does not name the true token"
    bound = math.log(max(unlisted, _LEAST_UNLISTED))
    return min(*values, bound), True
