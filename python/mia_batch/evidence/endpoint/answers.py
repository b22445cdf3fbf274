"""An answer's body, checked: how many continuations came, and which of them can be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mia_batch.evidence.endpoint.cost import Tokens
from mia_batch.evidence.endpoint.refusal import decode_object, shorten
from mia_batch.evidence.source import TextOutput
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.settings import EndpointSettings

__all__ = ["Answer", "Form", "read_answer"]

_FINISHES: dict[str, Literal["stop", "length"]] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "length": "length",
}
_Count = Annotated[int, Field(ge=0, lt=2**40)]


class Form(Protocol):
    """How one kind of endpoint is asked, and where its answers hold the text."""

    @property
    def path(self) -> str:
        """Below the base address."""

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        """Put the prompt into the request."""

    def text(self, choice: dict[str, Any]) -> object:
        """Find the continuation in one choice; anything but a string is unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one HTTP answer brought.

    Attributes
    ----------
    outputs
        Usable continuations by their place, from 0.
    used
        Tokens paid for; null where the answer does not say.
    problem
        Why not all continuations that it holds can be used; null where they can.
    document
        The whole body.
    """

    outputs: dict[int, TextOutput]
    used: Tokens | None
    problem: str | None
    document: dict[str, Any]


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


def read_answer(body: bytes, n: int, form: Form, settings: EndpointSettings) -> Answer:
    """Read and check the body of an answer with status 200.

    Parameters
    ----------
    body
        The content.
    n
        Continuations that were asked for.
    form
        The kind of endpoint.
    settings
        Knows the key, which is taken out of what is quoted.

    Returns
    -------
    Answer
        The continuations that can be used; an answer that is not what was asked for has none.
    """
    document: dict[str, Any] | None = decode_object(body)
    if document is None:
        quoted = shorten(settings.redact(body.decode(errors="replace"))) or "nothing"
        return Answer(outputs={}, used=None, problem=f"it is not JSON: {quoted}", document={})
    used = _read_usage(document)
    outputs, problem = _read_choices(document, n, form, used)
    problem = None if problem is None else settings.redact(problem)
    return Answer(outputs=outputs, used=used, problem=problem, document=document)


def _read_usage(document: dict[str, Any]) -> Tokens | None:
    try:
        usage = _Usage.model_validate(document.get("usage"))
    except ValidationError:
        return None
    return Tokens(usage.prompt_tokens, usage.completion_tokens)


def _read_choices(
    document: dict[str, Any], n: int, form: Form, used: Tokens | None
) -> tuple[dict[int, TextOutput], str | None]:
    raw = document.get("choices")
    if not isinstance(raw, list) or not raw:
        said = document.get("error")
        return {}, "it holds no choices" + (f": {shorten(str(said))}" if said else "")
    if len(raw) > n:
        return {}, f"it holds {len(raw)} choices where {n} were asked for"
    alone = used.drawn if used is not None and len(raw) == 1 else None
    outputs: dict[int, TextOutput] = {}
    problem = None
    for position, item in enumerate(raw):
        try:
            place, output = _read_choice(item, position, form, alone)
            if not 0 <= place < n or place in outputs:
                return {}, f"its choices have index {place} twice or beyond {n - 1}"
            outputs[place] = output
        except ValueError as error:
            problem = f"choice {position} cannot be used ({cause_of(error).partition(': ')[2]})"
    return outputs, problem


def _read_choice(
    item: object, position: int, form: Form, n_tokens: int | None
) -> tuple[int, TextOutput]:
    if not isinstance(item, dict):
        msg = "it is not an object"
        raise ValueError(msg)  # noqa: TRY004 - one kind for whatever is wrong with a choice
    choice = _Choice.model_validate({**item, "text": form.text(item)})
    if not _is_text(choice.text):
        msg = "its text is not valid Unicode"
        raise ValueError(msg)
    finish = choice.finish_reason
    if finish is not None and finish not in _FINISHES:
        msg = f"its finish_reason is {shorten(finish)!r}"
        raise ValueError(msg)
    output = TextOutput(
        text=choice.text,
        n_tokens=n_tokens if choice.token_ids is None else len(choice.token_ids),
        finish_reason=None if finish is None else _FINISHES[finish],
    )
    return (position if choice.index is None else choice.index), output


def _is_text(text: str) -> bool:
    """JSON can spell half of a surrogate pair, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
