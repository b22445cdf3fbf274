"""Request formats: what a request is on the wire, and where a choice holds its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mia_batch.evidence.endpoint.capabilities import NEUTRAL, Dialect
from mia_batch.evidence.endpoint.cost import Tokens, most_prompt_tokens
from mia_batch.evidence.endpoint.replies import find_answer, read_choices
from mia_batch.evidence.request import Answer

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.capabilities import Capabilities
    from mia_batch.evidence.endpoint.replies import Choices, Found, Spent
    from mia_batch.evidence.endpoint.settings import EndpointSettings
    from mia_batch.evidence.request import Continuation, Request

__all__ = ["Chat", "RequestFormat", "WireRequest"]


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
    settings: EndpointSettings
    dialect: Dialect = field(default_factory=Dialect, kw_only=True)

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        """Put the prompt into a request."""
        return {"prompt": prompt}

    def text(self, choice: dict[str, Any]) -> object:
        """Find the text of a choice; anything but a string cannot be used."""
        return choice.get("text")

    def read(self, body: bytes, request: WireRequest) -> Choices:
        """Read a reply to a request."""
        repeats, chat = self.dialect.repeats_prompt, self.converses

        def find(choice: dict[str, Any], spent: Spent) -> Found:
            text = self.text(choice)
            return find_answer(choice, text, request.prompt, spent, repeats=repeats, chat=chat)

        return read_choices(body, request.n, find, self.settings.redact)

    def prompt(self, request: Request) -> str:
        """Take what is sent of a request's texts."""
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
        """Put the prompt into a request."""
        content = f"{self.settings.chat_instruction}\n\n{prompt}"
        return {"messages": [{"role": "user", "content": content}]}

    def fields(self, request: Request, capabilities: Capabilities) -> dict[str, object]:
        """Put a question as it is: no text is to be continued."""
        if not request.question:
            return super().fields(request, capabilities)
        return {"messages": [{"role": "user", "content": request.context}]}

    def text(self, choice: dict[str, Any]) -> object:
        """Find the text of a choice; anything but a string cannot be used."""
        message = choice.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            return content
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        return "".join(str(part.get("text", "")) for part in parts)
