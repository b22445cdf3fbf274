"""Requests in the wire format of completions and chats, and what replies say."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from mia_batch.evidence.endpoint.settings import (
    NEUTRAL,
    Capabilities,
    ClientSettings,
    Dialect,
    Tokens,
    most_prompt_tokens,
)
from mia_batch.evidence.request import Answer, AnswerKind, Continuation, FinishReason, Request
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import cause_of

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.transport import Reply

_LONGEST = 300
_STOPS = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "done"})
_LENGTHS = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
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
_THOUGHT_ENDS = re.compile(r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]|◁/think▷", re.I)
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
_ONLY_THOUGHTS = "the model spent its tokens on thoughts and gave no answer"
_LONG_PROMPT = 32  # characters; a continuation may begin with the words of a shorter one
_Count = Annotated[int, Field(ge=0, lt=2**40)]


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
        said = self.document.get("system_fingerprint")
        return shorten(said) if isinstance(said, str) and said else None

    @property
    def text(self) -> str:
        return (self.found[0].text or "") if 0 in self.found else ""


class Refusal(NamedTuple):
    """What a reply with an error status says."""

    codes: frozenset[str]  # the error's ``code`` and ``type``, as far as they are there
    is_json: bool
    sentence: str  # status and the endpoint's own message, shortened, without the key


class Spent(NamedTuple):
    """What a reply to a request for one choice says of its tokens; None where it does not."""

    drawn: int | None = None
    thinking: int = 0


class Found(NamedTuple):
    """What a choice holds: the answer, or why there is none."""

    answer: AnswerKind
    text: str | None
    reason: str | None = None


_Find: TypeAlias = "Callable[[dict[str, Any], Spent], Found]"


class _Usage(BaseModel, strict=True):
    prompt_tokens: _Count
    completion_tokens: _Count = 0


class _Choice(BaseModel, strict=True):
    text: str | None
    index: int | None = None
    token_ids: list[int] | None = None


def read_choices(body: bytes, n: int, find: _Find, redact: Callable[[str], str]) -> Choices:
    """Read a reply of up to ``n`` choices; one that is not what was asked for has nothing.

    ``find`` takes a choice and what was ``spent`` on it. What the reply says of the key is taken
    out before anything is kept.
    """
    document: dict[str, Any] | None = decode_object(body)
    if document is None:
        quoted = shorten(redact(body.decode(errors="replace"))) or "nothing"
        return Choices(found={}, problem=f"it is not JSON: {quoted}", document={})
    document = _redacted(document, redact)
    found, problem = _find_choices(document, n, find)
    return Choices(found=found, used=read_usage(document), problem=problem, document=document)


def find_answer(
    choice: dict[str, Any],
    text: object,
    prompt: str,
    spent: Spent,
    *,
    repeats: bool = False,
    chat: bool = False,
) -> Found:
    """Tell what came back, and the answer in it.

    ``repeats``: the endpoint puts the prompt before each answer, which is taken off. Raises
    `ValueError` if a choice is of no use, and may be of use the next time.
    """
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    if (held := _held_back(choice, message)) is not None:
        return held
    if text in (None, "") and (spent.thinking > 0 or any(map(message.get, _REASONING))):
        return Found("thinking", None, _ONLY_THOUGHTS)
    if not isinstance(text, str):
        raise ValueError("it holds no text")  # noqa: TRY004 - one kind for whatever is wrong
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # which no file can hold
        raise ValueError("its text is not valid Unicode")
    found = _spoken(text) if chat else Found("text", text)
    if found.text is None:
        return found
    if repeats:
        if not found.text.startswith(prompt):
            raise ValueError("the prompt does not stand before it, as before others")
        return Found("prompt_removed", found.text[len(prompt) :])
    if len(prompt) >= _LONG_PROMPT and found.text.lstrip().startswith(prompt.strip()):
        return Found("prompt_repeated", None, "the answer begins with the prompt, as others do not")
    return found


def _held_back(choice: dict[str, Any], message: dict[str, Any]) -> Found | None:
    finish = _finish_of(choice)
    if finish in _FAILURES:
        raise ValueError(f"the endpoint ended it with {finish!r}")
    if finish in _FILTERS:
        results = choice.get("content_filter_results")
        details = results.items() if isinstance(results, dict) else ()
        hit = [name for name, each in details if isinstance(each, dict) and any(each.values())]
        said = shorten(", ".join([finish, *map(str, hit)]))
        return Found("filtered", None, f"the provider filtered the answer ({said})")
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        return Found("refusal", None, f"the model refused: {shorten(refusal)}")
    return None


def _spoken(text: str) -> Found:
    """Take the thoughts off what a chat model says, and tell a refusal."""
    bare = _THOUGHT_ENDS.split(_THOUGHTS.sub("", text, count=1))[-1]
    if _THOUGHT_BEGINS.match(bare):
        return Found("thinking", None, _ONLY_THOUGHTS)
    thought = bare != text
    bare = bare.lstrip("\n") if thought else bare
    if not bare.strip():
        kind: AnswerKind = "thinking" if thought else "empty"
        return Found(kind, None, _ONLY_THOUGHTS if thought else "the answer is empty")
    if _REFUSES.match(bare):
        return Found("refusal", None, f"the model refused: {shorten(bare)}")
    return Found("thought_removed" if thought else "text", bare)


def _finish_of(choice: dict[str, Any]) -> str:
    finish = choice.get("finish_reason")
    return finish.strip().lower() if isinstance(finish, str) else ""


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(each, redact) for each in value]
    if isinstance(value, dict):
        return {redact(name): _redacted(each, redact) for name, each in value.items()}
    return value


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
    """Parse a JSON object; None where it is anything else."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def shorten(text: str) -> str:
    """Make one line of a foreign text: no mark-up, at most about 300 printable characters."""
    bare = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text[:20_000], flags=re.S | re.I)
    line = " ".join("".join(c if c.isprintable() else " " for c in bare).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def read_usage(document: dict[str, Any]) -> Tokens | None:
    """Read what a reply says was paid for; None where it does not."""
    try:
        return Tokens(*dict(_Usage.model_validate(document.get("usage"))).values())
    except ValidationError:
        return None


def _find_choices(
    document: dict[str, Any], n: int, find: _Find
) -> tuple[dict[int, Continuation], str | None]:
    raw = document.get("choices")
    if not isinstance(raw, list) or not raw:
        said = document.get("error")
        return {}, "it holds no choices" + (f": {shorten(str(said))}" if said else "")
    if len(raw) > n:
        return {}, f"it holds {len(raw)} choices where {n} were asked for"
    spent = _spent(document) if len(raw) == 1 else Spent()
    indices = [item.get("index") if isinstance(item, dict) else None for item in raw]
    first = 1 if n == 1 or sorted(map(str, indices)) == sorted(map(str, range(1, n + 1))) else 0
    found: dict[int, Continuation] = {}
    problem = None
    for position, item in enumerate(raw):
        try:
            index, continuation = _read_choice(item, position, find, spent)
            index -= first if index == 1 or n > 1 else 0
            if not 0 <= index < n or index in found:
                return {}, f"its choices have index {index} twice or beyond {n - 1}"
            found[index] = continuation
        except ValueError as error:
            problem = f"choice {position} cannot be used ({cause_of(error).partition(': ')[2]})"
    return found, problem


def _spent(document: dict[str, Any]) -> Spent:
    used, usage = read_usage(document), document.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    thinking = details.get("reasoning_tokens") if isinstance(details, dict) else 0
    thinking = thinking if type(thinking) is int and thinking > 0 else 0
    return Spent(None if used is None else max(0, used.drawn - thinking), thinking)


def _read_choice(
    item: object, position: int, find: _Find, spent: Spent
) -> tuple[int, Continuation]:
    if not isinstance(item, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - one kind for whatever is wrong with a choice
    found = find(item, spent)
    choice = _Choice.model_validate({**item, "text": found.text})
    finish = _finish_of(item)
    stated: FinishReason | None = "length" if finish in _LENGTHS else None
    continuation = Continuation(
        text=choice.text,
        n_tokens=spent.drawn if choice.token_ids is None else len(choice.token_ids),
        finish_reason="stop" if finish in _STOPS else stated,
        answer=found.answer,
        reason=found.reason,
    )
    return (position if choice.index is None else choice.index), continuation


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
    converses: ClassVar[bool] = False  # whether a chat model answers, which thinks and refuses
    settings: ClientSettings
    dialect: Dialect = field(default_factory=Dialect, kw_only=True)

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        return {"prompt": prompt}

    def text(self, choice: dict[str, Any]) -> object:
        """Find the text of a choice; anything but a string cannot be used."""
        return choice.get("text")

    def read(self, body: bytes, request: WireRequest) -> Choices:
        repeats, chat = self.dialect.repeats_prompt, self.converses

        def find(choice: dict[str, Any], spent: Spent) -> Found:
            text = self.text(choice)
            return find_answer(choice, text, request.prompt, spent, repeats=repeats, chat=chat)

        return read_choices(body, request.n, find, self.settings.redact)

    def prompt(self, request: Request) -> str:
        return request.context + request.text

    def fields(self, request: Request, capabilities: Capabilities) -> dict[str, object]:
        """Say what is asked for beside a continuation, as the endpoint takes it."""
        del request, capabilities
        return {}

    def answer(
        self, request: Request, continuations: list[Continuation], capabilities: Capabilities
    ) -> Answer:
        """Make the answer to a request of its choices, in the order of their seeds."""
        del capabilities
        return Answer(request_id=request.request_id, continuations=continuations)

    def write(
        self, prompt: str, fields: dict[str, object], *, n: int, max_tokens: int, first: int = 0
    ) -> WireRequest:
        """Write all fields, so that no default of the endpoint acts; ``fields`` come last."""
        acting = {
            "temperature": self.settings.temperature,
            "top_p": self.settings.top_p,
            **NEUTRAL,
        }
        dialect, most = self.dialect, max_tokens + self.dialect.thinking
        payload = {
            "model": self.settings.model,
            **{name: value for name, value in acting.items() if name not in dialect.withdrawn},
            **dialect.added,
            dialect.limit: most,
            **self.prompt_fields(prompt),
            **fields,
        }
        sent = most_prompt_tokens(self.settings, prompt_bytes=len(prompt.encode()))
        return WireRequest(payload, n, first, Tokens(sent, n * most), prompt)


class Chat(RequestFormat):
    """Instruction and prompt go as one user message; the reply is the continuation.

    One message, because the templates of some models take no system message.
    """

    path = "/chat/completions"
    converses = True

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        content = f"{self.settings.chat_instruction}\n\n{prompt}"
        return {"messages": [{"role": "user", "content": content}]}

    def fields(self, request: Request, capabilities: Capabilities) -> dict[str, object]:
        """Put a question as it is: no text is to be continued."""
        if not request.question:
            return super().fields(request, capabilities)
        return {"messages": [{"role": "user", "content": request.context}]}

    def text(self, choice: dict[str, Any]) -> object:
        message = choice.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            return content
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(str(part.get("text", "")) for part in parts)


_LEAST = -9999.0  # what servers write for minus infinity
_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")  # how OpenAI writes a part of a character


class Echo(RequestFormat):
    """The format of a request for log-probabilities; what counts as a choice's text is their JSON.

    One token is drawn and thrown away, because not every endpoint takes a request for none.
    """

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        return {"prompt": prompt, "echo": True, "logprobs": 1}

    def text(self, choice: dict[str, Any]) -> object:
        """Find tokens and log-probabilities of a choice; None cannot be used."""
        logprobs = choice.get("logprobs")
        if not isinstance(logprobs, dict):
            return None
        return json.dumps([logprobs.get("tokens"), logprobs.get("token_logprobs")])

    def answer(
        self, request: Request, continuations: list[Continuation], capabilities: Capabilities
    ) -> Answer:
        """Read the echo, of which no more tokens are kept than were asked for."""
        del capabilities
        (echoed,) = continuations
        found = read_echo(echoed.text or "", request.context, request.text, n_drawn=echoed.n_tokens)
        if isinstance(found, str):
            return request.failed(found)
        bos, logprob = found
        if len(logprob) < (request.text_tokens or 0):
            n, wanted = len(logprob), request.text_tokens
            error = f"the text has {n} tokens, fewer than the {wanted} wanted"
            return request.failed(error, asked=False)
        tokens: dict[str, NDArray[np.generic]] = {"logprob": logprob[: request.text_tokens]}
        return Answer(request_id=request.request_id, tokens=tokens, bos=bos)


def read_echo(
    echoed: str, context: str, text: str, *, n_drawn: int | None
) -> tuple[bool, NDArray[np.float32]] | str:
    """Read whether a special token came first, and the log-probabilities of the text's tokens.

    Nothing that does not fit the prompt is believed: then the reason is returned. ``echoed`` has
    the prompt's tokens, perhaps a special token before, and at most one that was drawn after them;
    ``n_drawn`` is None where the endpoint does not say how many were.
    """
    tokens, logprobs = json.loads(echoed)
    lists = isinstance(tokens, list) and isinstance(logprobs, list)
    if not lists or len(tokens) != len(logprobs) or not all(isinstance(t, str) for t in tokens):
        return "the endpoint's log-probabilities are not one for each token"
    parts = [(token, _BYTES.fullmatch(token)) for token in tokens]
    pieces = [
        token.encode(errors="replace")
        if part is None
        else bytes.fromhex(part[1].replace("\\x", ""))
        for token, part in parts
    ]
    found = _find((context + text).encode(), pieces, n_drawn)
    if found is None:
        return "the endpoint's tokens, put together, are not the prompt"
    bos, end = found
    starts = list(accumulate(map(len, pieces[bos:end]), initial=0))[:-1]
    first = bos + sum(start < len(context.encode()) for start in starts)
    unscored = int(first == 0)  # nothing precedes the first token
    values = logprobs[first + unscored : end]
    if not values:
        return "the text has no token that something precedes"
    if not all(map(is_logprob, values)):
        return "the endpoint gives a token a log-probability that is not a number up to 0"
    return bos == 1, np.array([math.nan] * unscored + values, np.float32)


def _find(prompt: bytes, pieces: list[bytes], n_drawn: int | None) -> tuple[int, int] | None:
    """Where the prompt's tokens begin and end among all; a token that was drawn may be empty."""
    n_pieces = len(pieces)
    for end in (n_pieces,) if n_drawn == 0 else (n_pieces - 1, n_pieces):
        for bos in (0, 1):
            if b"".join(pieces[bos:end]) == prompt:
                return bos, end
    return None


def is_logprob(value: object) -> bool:
    """Whether it is a number up to 0, and none that stands for minus infinity."""
    return isinstance(value, (int, float)) and _LEAST < value <= 0


_BY_ID = re.compile(r"token_id:([0-9]+)")  # how vLLM names a token by its id
_LEAST_LEFT = 1e-4  # probability of what is not listed, as far as rounding lets it be known


@dataclass(frozen=True)
class NextToken(RequestFormat):
    """The format of a request about the first token of a text after its context.

    What counts as a choice's text is the JSON of the tokens that are listed, as pairs of name and
    log-probability. The token that is drawn is the most likely one, and always thrown away.
    """

    tokenizer: Tokenizer
    converses: ClassVar[bool] = False

    def prepare(self, request: Request) -> Request | Answer:
        """Find the ids of the true token, or of all answers, and the prompt before them.

        The endpoint must cut that as it is cut here. A chat reply starts anew, without a space.
        """
        if self.settings.chat:
            prompt: str | None = request.context
            texts = request.text.split() if request.question else [request.text.lstrip()]
            ids = [token for each in self.tokenizer.encode(texts) for token in each]
        else:
            special, before, ids = self.tokenizer.encode_after(request.context, request.text)
            prompt = self._prompt_of(request, special + before)
        if no_answers := request.why_no_answers(ids):
            return request.failed(no_answers, passes=0)
        if ids and prompt is not None:
            return replace(request, context=prompt, text_ids=ids if request.question else ids[:1])
        error = "the endpoint would cut the words before the text in another way alone"
        if not ids:
            error = "the text has 0 tokens, fewer than the 1 wanted"
        return request.failed(error, passes=0, asked=bool(ids))

    def _prompt_of(self, request: Request, ids: list[int]) -> str | None:
        """Find the prompt of these tokens, the last of which may begin the text."""
        prompts = (request.context + request.text[:end] for end in range(len(request.text)))
        encoded = ((prompt, self.tokenizer.encode_prompts([prompt])[0]) for prompt in prompts)
        return next((prompt for prompt, found in encoded if found == ids), None)

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
        listing = self.listing(len(named) or capabilities.top_logprobs, named, by_id=by_id)
        return super().fields(request, capabilities) | listing

    def text(self, choice: dict[str, Any]) -> object:
        """Find the tokens that are listed at the first position; None cannot be used."""
        match choice.get("logprobs"):
            case {"content": [{"top_logprobs": [*entries]}, *_]}:
                objects = [each for each in entries if isinstance(each, dict)]
                listed = [(each.get("token"), each.get("logprob")) for each in objects]
            case {"top_logprobs": [dict(entries), *_]}:
                listed = [*entries.items()]
            case _:
                return None
        usable = all(isinstance(n, str) and isinstance(v, (int, float)) for n, v in listed)
        return json.dumps(listed) if listed and usable else None

    def said(self, choice: dict[str, Any]) -> object:
        return super().text(choice)

    def answer(
        self, request: Request, continuations: list[Continuation], capabilities: Capabilities
    ) -> Answer:
        """Read what the listing says of the tokens; bounds alone do not tell answers apart."""
        (listed,) = continuations
        tokens = request.text_ids or []
        exact = capabilities.named_token == "honoured"
        found = []
        for token in tokens:
            read = read_next_token(listed.text or "", token, self.tokenizer, exact=exact)
            if isinstance(read, str):
                return request.failed(read)
            found.append(read)
        logprobs, bounded = zip(*found, strict=True)
        if request.question and all(bounded):
            error = f"none of the answers is among the {capabilities.top_logprobs} tokens listed"
            return request.failed(error)
        special, _, _ = self.tokenizer.encode_after("", "")
        return Answer(
            request_id=request.request_id,
            tokens={
                "token_ids": np.array(tokens, np.uint32),
                "logprob": np.array(logprobs, np.float32),
            },
            bos=bool(special) and not self.settings.chat,
            bounded=any(bounded),
        )


class NextChatToken(NextToken, Chat):
    """The same of a chat, about the first token of the reply."""


def is_id(name: str) -> bool:
    return _BY_ID.fullmatch(name) is not None


def named_ids(names: list[str], tokenizer: Tokenizer) -> list[int | None]:
    """Tell which tokens are named, by id or by a text that no other has; else None."""
    matches = map(_BY_ID.fullmatch, names)
    return [
        tokenizer.by_text.get(name) if match is None else int(match[1])
        for name, match in zip(names, matches, strict=True)
    ]


def read_next_token(
    listed: str, token: int, tokenizer: Tokenizer, *, exact: bool
) -> tuple[float, bool] | str:
    """Read a token's log-probability, and whether it is only an upper bound; or why there is none.

    A token that is not listed is less likely than all that are, and has no more than they leave.
    Where it was asked for by name, ``exact``, it must be there.
    """
    pairs = json.loads(listed)
    names, values = [name for name, _ in pairs], [value for _, value in pairs]
    ids = named_ids(names, tokenizer)
    own = {value for value, known in zip(values, ids, strict=True) if known == token}
    if not all(map(is_logprob, own if exact else values)):
        return "the endpoint gives a token a log-probability that is not a number up to 0"
    if len(own) > 1:
        return "the endpoint gives the true token several log-probabilities"
    left = 1.0 if exact else 1 - math.fsum(map(math.exp, values))
    if left < -_LEAST_LEFT:
        return "the probabilities of the endpoint's tokens add up to more than 1"
    if own:
        return own.pop(), False
    if not all(map(is_id, names)) and tokenizer.by_text.get(tokenizer.token_text(token)) != token:
        return "the endpoint names tokens by their text, and others have that of the true token"
    if exact:
        return "the endpoint's answer does not name the true token"
    return min(*values, math.log(max(left, _LEAST_LEFT))), True
