"""What an HTTP reply says: choices, of which some can be used, or a refusal."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mia_batch.evidence.endpoint.cost import Tokens
from mia_batch.evidence.request import Continuation
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia_batch.evidence.endpoint.settings import EndpointSettings
    from mia_batch.evidence.endpoint.transport import Reply
    from mia_batch.evidence.request import AnswerKind, FinishReason

__all__ = [
    "Choices",
    "Found",
    "Refusal",
    "Spent",
    "decode_object",
    "find_answer",
    "read_choices",
    "read_refusal",
    "read_usage",
    "shorten",
]

_LONGEST = 300
_STOPS = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "done"})
_LENGTHS = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_FAILURES = frozenset({"error", "abort", "aborted", "cancelled", "canceled"})
_FILTERS = frozenset(
    {
        "content_filter",
        "content_filtered",
        "safety",
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "sensitive",
        "guardrail_intervened",
    }
)
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
        """What the provider says of the version that answered."""
        said = self.document.get("system_fingerprint")
        return shorten(said) if isinstance(said, str) and said else None

    @property
    def text(self) -> str:
        """The first text, empty where there is none."""
        return (self.found[0].text or "") if 0 in self.found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a reply with an error status says."""

    codes: frozenset[str]  # the error's ``code`` and ``type``, as far as they are there
    is_json: bool
    sentence: str  # status and the endpoint's own message, shortened, without the key


@dataclass(frozen=True, slots=True)
class Spent:
    """What a reply to a request for one choice says of its tokens; None where it does not."""

    drawn: int | None = None
    thinking: int = 0


class Found(NamedTuple):
    """What a choice holds: the answer, or why there is none."""

    answer: AnswerKind
    text: str | None
    reason: str | None = None


_Find: TypeAlias = "Callable[[dict[str, Any], Spent], Found]"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Usage(_Strict):
    prompt_tokens: _Count
    completion_tokens: _Count = 0


class _Choice(_Strict):
    text: str | None
    index: int | None = None
    token_ids: list[int] | None = None


def read_choices(
    body: bytes,
    n: int,
    find: _Find,
    redact: Callable[[str], str],
) -> Choices:
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
    """Tell a failure, a filter or a refusal that the reply itself declares."""
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
    """Take the key out of every text of a JSON value."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(each, redact) for each in value]
    if isinstance(value, dict):
        return {redact(name): _redacted(each, redact) for name, each in value.items()}
    return value


def read_refusal(reply: Reply, settings: EndpointSettings) -> Refusal:
    """Read an error in any of the usual shapes."""
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
    sentence = f"status {reply.status}: {said}"
    return Refusal(codes=codes, is_json=decoded is not None, sentence=sentence)


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
        usage = _Usage.model_validate(document.get("usage"))
    except ValidationError:
        return None
    return Tokens(usage.prompt_tokens, usage.completion_tokens)


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
    """Read what one choice took, thoughts apart."""
    used, usage = read_usage(document), document.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    thinking = details.get("reasoning_tokens") if isinstance(details, dict) else 0
    thinking = thinking if type(thinking) is int and thinking > 0 else 0
    return Spent(None if used is None else max(0, used.drawn - thinking), thinking)


def _read_choice(
    item: object, position: int, find: _Find, spent: Spent
) -> tuple[int, Continuation]:
    if not isinstance(item, dict):
        msg = "it is not an object"
        raise ValueError(msg)  # noqa: TRY004 - one kind for whatever is wrong with a choice
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
