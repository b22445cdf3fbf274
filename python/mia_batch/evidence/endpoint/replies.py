"""What an HTTP reply says: choices, of which some can be used, or a refusal."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mia_batch.evidence.endpoint.cost import Tokens
from mia_batch.evidence.request import Continuation
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia_batch.evidence.endpoint.settings import EndpointSettings
    from mia_batch.evidence.endpoint.transport import Reply
    from mia_batch.evidence.request import FinishReason

__all__ = [
    "Choices",
    "Refusal",
    "decode_object",
    "read_choices",
    "read_refusal",
    "read_usage",
    "shorten",
]

_LONGEST = 300
_FINISHES: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "length": "length",
}
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
    sentence: str  # status and the endpoint's own message, shortened, without the key


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Usage(_Strict):
    prompt_tokens: _Count
    completion_tokens: _Count = 0


class _Choice(_Strict):
    text: str
    index: int | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


def read_choices(
    body: bytes, n: int, text_of: Callable[[dict[str, Any]], object], redact: Callable[[str], str]
) -> Choices:
    """Read a reply of up to ``n`` choices; one that is not what was asked for has nothing."""
    document: dict[str, Any] | None = decode_object(body)
    if document is None:
        quoted = shorten(redact(body.decode(errors="replace"))) or "nothing"
        return Choices(found={}, problem=f"it is not JSON: {quoted}", document={})
    used = read_usage(document)
    found, problem = _find_choices(document, n, text_of, used)
    problem = None if problem is None else redact(problem)
    return Choices(found=found, used=used, problem=problem, document=document)


def read_refusal(reply: Reply, settings: EndpointSettings) -> Refusal:
    """Read an error in any of the usual shapes."""
    document = decode_object(reply.body) or {}
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
    return Refusal(codes=codes, sentence=f"status {reply.status}: {said}")


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
    document: dict[str, Any],
    n: int,
    text_of: Callable[[dict[str, Any]], object],
    used: Tokens | None,
) -> tuple[dict[int, Continuation], str | None]:
    raw = document.get("choices")
    if not isinstance(raw, list) or not raw:
        said = document.get("error")
        return {}, "it holds no choices" + (f": {shorten(str(said))}" if said else "")
    if len(raw) > n:
        return {}, f"it holds {len(raw)} choices where {n} were asked for"
    alone = used.drawn if used is not None and len(raw) == 1 else None
    found: dict[int, Continuation] = {}
    problem = None
    for position, item in enumerate(raw):
        try:
            index, continuation = _read_choice(item, position, text_of, alone)
            if not 0 <= index < n or index in found:
                return {}, f"its choices have index {index} twice or beyond {n - 1}"
            found[index] = continuation
        except ValueError as error:
            problem = f"choice {position} cannot be used ({cause_of(error).partition(': ')[2]})"
    return found, problem


def _read_choice(
    item: object,
    position: int,
    text_of: Callable[[dict[str, Any]], object],
    n_tokens: int | None,
) -> tuple[int, Continuation]:
    if not isinstance(item, dict):
        msg = "it is not an object"
        raise ValueError(msg)  # noqa: TRY004 - one kind for whatever is wrong with a choice
    choice = _Choice.model_validate({**item, "text": text_of(item)})
    if not _is_text(choice.text):
        msg = "its text is not valid Unicode"
        raise ValueError(msg)
    finish = choice.finish_reason
    if finish is not None and finish not in _FINISHES:
        msg = f"its finish_reason is {shorten(finish)!r}"
        raise ValueError(msg)
    continuation = Continuation(
        text=choice.text,
        n_tokens=n_tokens if choice.token_ids is None else len(choice.token_ids),
        finish_reason=None if finish is None else _FINISHES[finish],
    )
    return (position if choice.index is None else choice.index), continuation


def _is_text(text: str) -> bool:
    """JSON can spell half of a surrogate pair, which no file can hold."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
