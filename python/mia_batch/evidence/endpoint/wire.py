"""Settings, requests and replies of an endpoint, in the wire format of completions and chats."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from mia_batch.errors import SettingsError, describe_error
from mia_batch.evidence.request import Answer, Continuation, FinishReason, Request
from mia_batch.models.tokens import Tokenizer

_SHORTEST_SECRET = (
    8  # a shorter key, such as "x" for a server that wants none, is in many words
)
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
    requests_per_minute: float | None = (
        None  # this and the next are kept by the client itself
    )
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
        if key is not None and not (
            key and all("!" <= letter <= "~" for letter in key)
        ):
            raise SettingsError(  # before a library of HTTP quotes it in an error
                "the API key is empty or has spaces, line ends or other characters that"
                " no key has; set its environment variable again"
            )
        if self.max_cost is not None and (
            self.price_in is None or self.price_out is None
        ):
            raise SettingsError(
                "max_cost= needs prices; give price_in= and price_out= as well"
            )

    def redact(self, text: str) -> str:
        """Take the key out of a text that came from elsewhere, unless it is too short to be one."""
        key = self.api_key or ""
        return text.replace(key, "[key]") if len(key) >= _SHORTEST_SECRET else text

    def sample_identity(self, found: Capabilities) -> dict[str, object]:
        """Describe what changes a sample, as JSON values; only equal ones may share answers."""
        # The key is no part of it.
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


_SECRET = re.compile(r"key|token|secret|sig|pass|code|auth", re.IGNORECASE)


def _check_address(base_url: str) -> None:
    if "@" in base_url.partition("://")[2].partition("/")[0]:
        raise SettingsError(
            "base_url= carries a user name or password; leave them out, and set the "
            "environment variable of the key"
        )
    try:
        parts = urlsplit(base_url)
        usable = (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.port != 0
        )
        usable = usable and not parts.fragment
        secrets = [name for name, _ in parse_qsl(parts.query) if _SECRET.search(name)]
    except ValueError:
        usable, secrets = False, []
    if secrets:
        raise SettingsError(
            f"base_url= carries {secrets[0]!r} behind its question mark, and a run"
            " keeps its address; leave it out, and set the environment variable of"
            " the key"
        )
    if not usable or not base_url.isascii() or any(map(str.isspace, base_url)):
        raise SettingsError(
            f"base_url= is {base_url!r}, which is not an address of an endpoint; "
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
    """How requests must be written for an endpoint, and what its answers hold with the answer."""

    limit: str = "max_tokens"  # name of the field with the most tokens to decode
    withdrawn: tuple[str, ...] = ()  # fields that it refuses: they are not sent
    # What keeps the model from thinking
    added: dict[str, Any] = field(default_factory=dict)
    thinking: int = (
        0  # tokens for thoughts that cannot be kept off, on top of the answer's
    )
    repeats_prompt: bool = False  # whether the prompt stands before each answer
    lead: int = 0  # tokens for what stands before a continuation, on top of it
    says_prompt: bool = False  # whether that can be the whole prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a probe of an endpoint found; every value is JSON."""

    dialect: Dialect = field(default_factory=Dialect)
    greedy: Honour | None = None  # whether temperature 0 gives the same text twice
    # Of `NEUTRAL`, whether values act
    neutral: dict[str, Honour] = field(default_factory=dict)

    n: Honour = (
        "refused"  # several continuations in one request; copies count as ``ignored``
    )
    seed: Honour = "refused"  # whether the same seed gives the same text twice
    varied: bool = (
        False  # False: it does not sample, or the temperature is 0 or close to it
    )
    top_k: Honour | None = None  # None where the run does not limit it
    output_token_ids: bool = (
        False  # whether answers hold token ids (``return_token_ids``, vLLM's)
    )
    named_token: Honour | None = (
        None  # ``logprob_token_ids``; None where it is not asked for
    )
    top_logprobs: int = (
        0  # most likely next tokens that it lists on request, as far as tried
    )
    nudge: Honour | None = None  # ``logit_bias``; None where it is not needed
    token_id_names: bool = False  # whether it then names tokens by their ids
    # See `mia_batch.evidence.dress`
    dress: list[dict[str, str]] = field(default_factory=list)
    serves: str | None = (
        None  # what answers call the model, if that is no form of its name
    )
    max_model_len: int | None = (
        None  # tokens of prompt and output together; None = not stated
    )

    def sampling_fields(self, *, n: int, seed: int, top_k: int) -> dict[str, object]:
        fields: dict[str, object] = {"n": n} if self.n != "refused" else {}
        fields |= {"seed": seed} if self.seed != "refused" else {}
        fields |= {"top_k": top_k} if self.top_k == "honoured" else {}
        return fields | ({"return_token_ids": True} if self.output_token_ids else {})


# Tokens and money.

_PRICED = 1_000_000
_BYTES_A_TOKEN = 3  # at least, of most texts
_SPECIAL_TOKENS = 16  # a text's start, and the marks of a chat template


class Tokens(NamedTuple):
    """Tokens that are paid for."""

    given: int  # of prompts
    drawn: int  # decoded

    def plus(self, other: Tokens, times: int = 1) -> Tokens:
        return Tokens(
            self.given + times * other.given, self.drawn + times * other.drawn
        )


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
    """Take what a server says was used, but no less than what was sent and what came."""
    sent = max(least_tokens(request.prompt), request.most.given // MOST_BYTES_PER_TOKEN)
    came = sum(least_tokens(text) for text in texts if text is not None)
    least = Tokens(min(sent, request.most.given), min(came, request.most.drawn))
    return Tokens(max(stated.given, least.given), max(stated.drawn, least.drawn))


def money(settings: ClientSettings, tokens: Tokens) -> float | None:
    if settings.price_in is None or settings.price_out is None:
        return None
    return (
        tokens.given * settings.price_in + tokens.drawn * settings.price_out
    ) / _PRICED


class Ledger:
    """What has been spent, earlier processes of the run included, and what may be in flight."""

    def __init__(self, settings: ClientSettings, spent: Tokens) -> None:
        self._settings = settings
        self._spent = spent
        self._reserved = Tokens(0, 0)
        self._open = 0

    @property
    def spent(self) -> float | None:
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
_REASONING = ("reasoning_content", "reasoning", "thinking")
_LAST_WORD = re.compile(r"\s+\S*\Z|\ufffd+\Z")
_LONG_PROMPT = (
    32  # characters; a continuation may begin with the words of a shorter one
)
_Count = Annotated[int, Field(ge=0, lt=2**40)]

_ONLY_THOUGHTS = Continuation(
    answer="thinking",
    reason="the model spent its tokens on thoughts and gave no answer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a reply with status 2xx brought."""

    found: dict[int, Continuation]  # those that can be used, by index
    used: Tokens | None = None  # paid for; None where it does not say
    problem: str | None = None  # why not all that it holds can be used
    document: dict[str, Any]  # the whole body
    sent: str | None = None  # when the request was, in UTC

    @property
    def system_fingerprint(self) -> str | None:
        return self._stated("system_fingerprint")

    @property
    def served_model(self) -> str | None:
        return self._stated("model")

    def _stated(self, name: str) -> str | None:
        said = self.document.get(name)
        return shorten(said) if isinstance(said, str) and said else None

    @property
    def text(self) -> str:
        return (self.found[0].text or "") if 0 in self.found else ""


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


_EVENTS = (b"data:", b"event:", b":")  # lines of a stream of events
STREAMED = "it is a stream of events, although `stream` is false in the request"


def read_refusal(reply: Reply, settings: ClientSettings) -> Refusal:
    decoded = decode_object(reply.body)
    document = decoded or {}
    error = document.get("error", document)
    if not isinstance(error, dict):
        error = {"message": error}
    codes = frozenset(str(error[name]) for name in ("code", "type") if error.get(name))
    message = error.get("message") or error.get("detail")
    if 300 <= reply.status < 400:
        message = f"a redirect to {reply.headers.get('location', 'nowhere')}"
    elif message is None:
        message = reply.body.decode(errors="replace")
    said = shorten(settings.redact(str(message))) or "no message"
    return Refusal(codes, decoded is not None, f"status {reply.status}: {said}")


def decode_object(body: bytes) -> dict[str, object] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def shorten(text: str) -> str:
    """Make one line of a foreign text: no mark-up, at most about 300 printable characters."""
    bare = re.sub(
        r"<(script|style).*?</\1>|<[^>]*>", " ", text[:20_000], flags=re.S | re.I
    )
    line = " ".join("".join(c if c.isprintable() else " " for c in bare).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(each, redact) for each in value]
    if isinstance(value, dict):
        return {redact(name): _redacted(each, redact) for name, each in value.items()}
    return value


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _finish_of(choice: dict[str, Any]) -> str:
    finish = choice.get("finish_reason")
    return finish.strip().lower() if isinstance(finish, str) else ""


def _held_back(choice: dict[str, Any]) -> Continuation | None:
    finish = _finish_of(choice)
    if finish in _FAILURES:
        raise ValueError(f"the endpoint ended it with {finish!r}")
    if finish in _FILTERS:
        results = _object(choice.get("content_filter_results")).items()
        hit = [name for name, each in results if any(_object(each).values())]
        said = shorten(", ".join([finish, *map(str, hit)]))
        reason = f"the provider filtered the answer ({said})"
        return Continuation(answer="filtered", reason=reason)
    refusal = _object(choice.get("message")).get("refusal")
    if isinstance(refusal, str) and refusal:
        return Continuation(
            answer="refusal", reason=f"the model refused: {shorten(refusal)}"
        )
    return None


def _spoken(text: str) -> Continuation:
    """Take the thoughts off what a chat model says, and tell a refusal."""
    bare = _THOUGHT_ENDS.split(_THOUGHTS.sub("", text, count=1))[-1]
    if _THOUGHT_BEGINS.match(bare):
        return _ONLY_THOUGHTS
    thought = bare != text
    bare = bare.lstrip("\n") if thought else bare
    if not bare.strip():
        nothing = Continuation(answer="empty", reason="the answer is empty")
        return _ONLY_THOUGHTS if thought else nothing
    if _REFUSES.match(bare):
        return Continuation(
            answer="refusal", reason=f"the model refused: {shorten(bare)}"
        )
    return Continuation(text=bare, answer="thought_removed" if thought else "text")


# The formats of requests.


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as it goes over the wire, for ``n`` continuations from index ``first`` on."""

    payload: dict[str, object]
    n: int
    first: int
    most: Tokens  # the most that it can use
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """The format of ``/completions``, which others vary."""

    path: ClassVar[str] = "/completions"
    converses: ClassVar[bool] = (
        False  # whether a chat model answers, which thinks and refuses
    )
    lists: ClassVar[bool] = (
        False  # whether what is kept of a choice are tokens, not its text
    )
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
        kept = replace(partial, text=words)
        return replace(request, partial=kept).rest()

    def fields(
        self, request: Request, _capabilities: Capabilities
    ) -> dict[str, object]:
        """Say what is asked for besides a continuation, as the endpoint takes it."""
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
        settings, dialect = self.settings, self.dialect
        acting = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            **NEUTRAL,
        }
        most = max_tokens + dialect.thinking + dialect.lead
        if dialect.says_prompt:
            most += len(prompt.encode()) // _BYTES_A_TOKEN
        payload = {
            "model": settings.model,
            **{
                name: value
                for name, value in acting.items()
                if name not in dialect.withdrawn
            },
            **dialect.added,
            dialect.limit: most,
            **self.prompt_fields(prompt),
            **fields,
        }
        sent = most_prompt_tokens(settings, prompt_bytes=len(prompt.encode()))
        return WireRequest(payload, n, first, Tokens(sent, n * most), prompt)

    def text(self, choice: dict[str, Any]) -> object:
        """Find the text of a choice; anything but a string cannot be used."""
        return choice.get("text")

    def answer(
        self,
        request: Request,
        continuations: list[Continuation],
        _capabilities: Capabilities,
    ) -> Answer:
        """Make the answer to a request of its choices, in the order of their seeds."""
        return Answer(request_id=request.request_id, continuations=continuations)

    def read(self, body: bytes, request: WireRequest) -> Choices:
        """Read a reply of up to ``n`` choices; one that is not what was asked for has nothing."""
        # What the reply says of the key is taken out before anything is kept.
        decoded = decode_object(body)
        if decoded is None:
            quoted = (
                shorten(self.settings.redact(body.decode(errors="replace")))
                or "nothing"
            )
            is_stream = body.lstrip().startswith(_EVENTS)
            fault = STREAMED if is_stream else f"it is not JSON: {quoted}"
            return Choices(found={}, problem=fault, document={})
        document: dict[str, Any] = _redacted(decoded, self.settings.redact)
        found, problem = self._choices(document, request)
        return Choices(
            found=found, used=read_usage(document), problem=problem, document=document
        )

    def _choices(
        self, document: dict[str, Any], request: WireRequest
    ) -> tuple[dict[int, Continuation], str | None]:
        n, raw = request.n, document.get("choices")
        if not isinstance(raw, list) or not raw:
            said = document.get("error")
            return {}, "it holds no choices" + (
                f": {shorten(str(said))}" if said else ""
            )
        if len(raw) > n:
            return {}, f"it holds {len(raw)} choices where {n} were asked for"
        # Else it is that of all together
        used = read_usage(document) if len(raw) == 1 else None
        details = _object(
            _object(document.get("usage")).get("completion_tokens_details")
        )
        thinking = details.get("reasoning_tokens") if len(raw) == 1 else 0
        thinking = thinking if type(thinking) is int and thinking > 0 else 0
        drawn = None if used is None else max(0, used.drawn - thinking)
        # Some servers count choices from 1.
        indices = [_object(item).get("index") for item in raw]
        first = (
            1
            if n == 1 or sorted(map(str, indices)) == sorted(map(str, range(1, n + 1)))
            else 0
        )
        found: dict[int, Continuation] = {}
        problem = None
        for position, item in enumerate(raw):
            try:
                index, continuation = self._choice(
                    item, request.prompt, drawn, thinking
                )
                index = position if index is None else index
                self._check_length(continuation.text or "", request)
                index -= first if index == 1 or n > 1 else 0
                if not 0 <= index < n or index in found:
                    return {}, f"its choices have index {index} twice or beyond {n - 1}"
                found[index] = continuation
            except ValueError as error:
                cause = describe_error(error).partition(": ")[2]
                problem = f"choice {position} cannot be used ({cause})"
        return found, problem

    def _check_length(self, text: str, request: WireRequest) -> None:
        tokens = request.most.drawn // max(1, request.n)
        if not self.lists and len(text) > _LONGEST_START + _LONGEST_TOKEN * tokens:
            raise ValueError(
                f"its text has {len(text):,} characters, far beyond {tokens} tokens"
            )

    def _choice(
        self, item: object, prompt: str, drawn: int | None, thinking: int
    ) -> tuple[int | None, Continuation]:
        """Read a choice; `ValueError` if it is of no use, and may be of use the next time."""
        if not isinstance(item, dict):
            raise ValueError("it is not an object")  # noqa: TRY004 - one kind for all that is wrong
        found = self._find(item, prompt, thinking)
        choice = _Choice.model_validate(item)
        n_tokens = drawn if choice.token_ids is None else len(choice.token_ids)
        finish = _FINISHES.get(_finish_of(item))
        return choice.index, replace(found, n_tokens=n_tokens, finish_reason=finish)

    def _find(self, choice: dict[str, Any], prompt: str, thinking: int) -> Continuation:
        if (held := _held_back(choice)) is not None:
            return held
        text, message = self.text(choice), _object(choice.get("message"))
        if text in (None, "") and (thinking > 0 or any(map(message.get, _REASONING))):
            return _ONLY_THOUGHTS
        if not isinstance(text, str):
            raise ValueError("it holds no text")  # noqa: TRY004 - one kind for all that is wrong
        # Which no file can hold
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError("its text is not valid Unicode")
        found = _spoken(text) if self.converses else Continuation(text=text)
        if found.text is None:
            return found
        if not self.dialect.repeats_prompt and len(prompt) < _LONG_PROMPT:
            return found
        bare = found.text.lstrip()
        if found.text.startswith(prompt):
            bare = found.text[len(prompt) :]
        elif prompt.strip() and bare.startswith(prompt.strip()):
            bare = bare[len(prompt.strip()) :]
        else:
            return found
        if bare.strip():
            return Continuation(text=bare, answer="prompt_removed")
        reason = "the answer is the prompt and nothing more"
        return Continuation(answer="prompt_repeated", reason=reason)


class Chat(RequestFormat):
    """Instruction and prompt go as one user message; the reply is the continuation."""

    # One message, because the templates of some models take no system message.

    path = "/chat/completions"
    converses = True

    def rest(self, request: Request) -> Request:
        """Ask anew: a reply starts over, and does not go on from another."""
        return replace(request, partial=None)

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        content = f"{self.settings.chat_instruction}\n\n{prompt}"
        return {"messages": [{"role": "user", "content": content}]}

    def fields(self, request: Request, capabilities: Capabilities) -> dict[str, object]:
        """Put a question as it is: no text is to be continued."""
        if not request.question:
            return super().fields(request, capabilities)
        return {"messages": [{"role": "user", "content": request.context}]}

    def text(self, choice: dict[str, Any]) -> object:
        content = _object(choice.get("message")).get("content")
        if not isinstance(content, list):
            return content
        parts = [part for part in content if _object(part).get("type") == "text"]
        return "".join(str(part.get("text", "")) for part in parts)


_LEAST = -9999.0  # what servers write for minus infinity
_NO_LOGPROB = (
    "the endpoint gives a token a log-probability that is not a number up to 0"
)
# How OpenAI writes a part of a character
_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")


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
    def listed(text: str | None) -> tuple[object, object]:
        tokens, logprobs = json.loads(text or "[null, null]")
        return tokens, logprobs

    def answer(
        self,
        request: Request,
        continuations: list[Continuation],
        _capabilities: Capabilities,
    ) -> Answer:
        """Read the echo, of which no more tokens are kept than were asked for."""
        (echoed,) = continuations
        listed = self.listed(echoed.text)
        found = read_echo(
            *listed, request.context, request.text, n_drawn=echoed.n_tokens
        )
        if isinstance(found, str):
            return request.failed(found)
        bos, logprob = found
        if len(logprob) < (request.text_tokens or 0):
            n, wanted = len(logprob), request.text_tokens
            error = f"the text has {n} tokens, fewer than the {wanted} wanted"
            return request.failed(error, asked=False)
        tokens: dict[str, NDArray[np.generic]] = {
            "logprob": logprob[: request.text_tokens]
        }
        return Answer(request_id=request.request_id, tokens=tokens, bos=bos)


def read_echo(
    tokens: object, logprobs: object, context: str, text: str, *, n_drawn: int | None
) -> tuple[bool, NDArray[np.float32]] | str:
    """Read whether a special token came first, and the log-probabilities of the text's tokens."""
    # Nothing that does not fit the prompt is believed: then the reason is returned.
    if not (isinstance(tokens, list) and isinstance(logprobs, list)) or (
        len(tokens) != len(logprobs)
        or not all(isinstance(each, str) for each in tokens)
    ):
        return "the endpoint's log-probabilities are not one for each token"
    pieces = [
        (
            bytes.fromhex(part[1].replace("\\x", ""))
            if part
            else token.encode(errors="replace")
        )
        for token, part in zip(tokens, map(_BYTES.fullmatch, tokens), strict=True)
    ]
    prompt, n = (context + text).encode(), len(pieces)
    # A token that was drawn may be without text
    ends = (n,) if n_drawn == 0 else (n - 1, n)
    places = ((bos, end) for end in ends for bos in (0, 1))
    where = [place for place in places if b"".join(pieces[slice(*place)]) == prompt]
    if not where:
        return "the endpoint's tokens, put together, are not the prompt"
    bos, end = where[0]
    starts = list(accumulate(map(len, pieces[bos:end]), initial=0))[:-1]
    first = bos + sum(start < len(context.encode()) for start in starts)
    unscored = int(first == 0)  # nothing precedes the first token
    values = logprobs[first + unscored : end]
    if not values:
        return "the text has no token that something precedes"
    if not all(map(is_logprob, values)):
        return _NO_LOGPROB
    return bos == 1, np.array([math.nan] * unscored + values, np.float32)


def is_logprob(value: object) -> bool:
    """Whether it is a number up to 0, and none that stands for minus infinity."""
    return isinstance(value, (int, float)) and _LEAST < value <= 0


_BY_ID = re.compile(r"token_id:([0-9]+)")  # how vLLM names a token by its id
_LEAST_LEFT = (
    1e-4  # probability of what is not listed, as far as rounding lets it be known
)
Listed = list[tuple[str, float]]
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
        if self.settings.chat:
            prompt: str | None = request.context
            texts = (
                request.text.split() if request.question else [request.text.lstrip()]
            )
            ids = [token for each in self.tokenizer.encode(texts) for token in each]
        else:
            special, before, ids = self.tokenizer.encode_after(
                request.context, request.text
            )
            # The last token before the text may reach into it.
            prompts = (
                request.context + request.text[:end] for end in range(len(request.text))
            )
            encoded = (
                (each, self.tokenizer.encode_prompts([each])[0]) for each in prompts
            )
            prompt = next(
                (each for each, found in encoded if found == special + before), None
            )
        if no_answers := request.why_no_answers(ids):
            return request.failed(no_answers, passes=0)
        if ids and prompt is not None:
            return replace(
                request, context=prompt, text_ids=ids if request.question else ids[:1]
            )
        error = "the endpoint would cut the words before the text in another way alone"
        if not ids:
            error = "the text has 0 tokens, fewer than the 1 wanted"
        return request.failed(error, passes=0, asked=bool(ids))

    def prompt(self, request: Request) -> str:
        return request.context

    def listing(
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
        """Name the tokens that are wanted where that is honoured, else ask for the most likely."""
        by_id, tokens = capabilities.token_id_names, request.text_ids or []
        named = tokens if capabilities.named_token == "honoured" else []
        listing = self.listing(
            len(named) or capabilities.top_logprobs, named, by_id=by_id
        )
        return super().fields(request, capabilities) | listing

    def text(self, choice: dict[str, Any]) -> object:
        match choice.get("logprobs"):
            case {"content": [{"top_logprobs": [*entries]}, *_]}:
                objects = [each for each in entries if isinstance(each, dict)]
                listed = [(each.get("token"), each.get("logprob")) for each in objects]
            case {"top_logprobs": [dict(entries), *_]}:
                listed = [*entries.items()]
            case _:
                return None
        usable = all(
            isinstance(n, str) and isinstance(v, (int, float)) for n, v in listed
        )
        return json.dumps(listed) if listed and usable else None

    @staticmethod
    def listed(text: str | None) -> Listed:
        return [(name, value) for name, value in json.loads(text or "[]")]

    def said(self, choice: dict[str, Any]) -> object:
        return super().text(choice)

    def answer(
        self,
        request: Request,
        continuations: list[Continuation],
        capabilities: Capabilities,
    ) -> Answer:
        """Read what the listing says of the tokens; bounds alone do not tell answers apart."""
        (continuation,) = continuations
        listed, tokens = self.listed(continuation.text), request.text_ids or []
        exact = capabilities.named_token == "honoured"
        found = []
        for token in tokens:
            read = read_next_token(listed, token, self.tokenizer, exact=exact)
            if isinstance(read, str):
                return request.failed(read)
            found.append(read)
        logprobs, bounded = zip(*found, strict=True)
        if request.question and all(bounded):
            error = (
                f"none of the answers is among the {capabilities.top_logprobs} tokens"
                " listed"
            )
            return request.failed(error)
        special, _, _ = self.tokenizer.encode_after("", "")
        numbers: dict[str, NDArray[np.generic]] = {
            "token_ids": np.array(tokens, np.uint32)
        }
        numbers["logprob"] = np.array(logprobs, np.float32)
        if "vocabulary_mean" in request.columns:
            most = most_mean([value for _, value in listed], exact=exact)
            numbers["vocabulary_mean"] = np.array([most], np.float32)
        return Answer(
            request_id=request.request_id,
            tokens=numbers,
            bos=bool(special) and not self.settings.chat,
            bounded=any(bounded),
        )


class NextChatToken(NextToken, Chat):
    """The same of a chat, about the first token of the reply."""


def most_mean(values: list[float], *, exact: bool) -> float:
    """Bound the mean log-probability over the vocabulary from above, by those that are listed."""
    # A token that is not listed is less likely than the likeliest; where none is asked
    # for by name, than all that are listed. Together they have what those leave.
    left = max(1 - math.fsum(map(math.exp, values)), 0.0)
    most = min((max if exact else min)(values), math.log(max(left, _LEAST_LEFT)))
    return math.fsum(math.exp(value) * value for value in values) + left * most


def is_id(name: str) -> bool:
    return _BY_ID.fullmatch(name) is not None


def named_ids(listed: Listed, tokenizer: Tokenizer) -> list[int | None]:
    """Tell which tokens are listed, by id or by a text that no other has; else None."""
    return [
        int(name.partition(":")[2]) if is_id(name) else tokenizer.ids_by_text.get(name)
        for name, _ in listed
    ]


def read_next_token(
    listed: Listed, token: int, tokenizer: Tokenizer, *, exact: bool
) -> tuple[float, bool] | str:
    """Read a token's log-probability, and whether it is an upper bound; or why it is missing."""
    # A token that is not listed is less likely than all that are, and has no more than
    # they leave. Where it was asked for by name, ``exact``, it must be there.
    values, ids = [value for _, value in listed], named_ids(listed, tokenizer)
    own = {value for value, known in zip(values, ids, strict=True) if known == token}
    if not all(map(is_logprob, own if exact else values)):
        return _NO_LOGPROB
    if len(own) > 1:
        return "the endpoint gives the true token several log-probabilities"
    left = 1.0 if exact else 1 - math.fsum(map(math.exp, values))
    if left < -_LEAST_LEFT:
        return "the probabilities of the endpoint's tokens add up to more than 1"
    if own:
        return own.pop(), False
    by_text = not all(is_id(name) for name, _ in listed)
    if by_text and tokenizer.ids_by_text.get(tokenizer.token_text(token)) != token:
        return (
            "the endpoint names tokens by their text, and others have that of the true"
            " token"
        )
    if exact:
        return "the endpoint's answer does not name the true token"
    return min(*values, math.log(max(left, _LEAST_LEFT))), True
