"""Chat templates: what a model reads before an answer of a conversation, as it was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from mia_batch.corpus.conversations import ASSISTANT, Conversation

WRITTEN_DATE = datetime(2024, 7, 26)  # noqa: DTZ001 - a date without a place
"""What a template that writes today's date gets, so that all prompts of a run agree.

It is the date that Llama 3.1 and 3.2 write where nobody tells them today's.
"""
_CLOCK = "strftime_now"  # as templates call it

# Stands for an answer; no text of a corpus holds it
_PLACEHOLDER = UUID("b5fb3e8c-90e7-4a53-9d9b-6b0f4a2f5d1e").hex
_END_OF_THOUGHTS = "</think>"  # as most models write it
_LONGEST_PROMPT = 64 << 20  # characters
_MESSAGE_SHOWN = 120


class TemplateError(Exception):
    """Why a template gives no prompt for a conversation."""


class PlacedAnswer(NamedTuple):
    """An answer as a template writes it, and what it writes before and after it."""

    context: str
    text: str
    ending: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A template of Jinja, with the special tokens that it writes.

    ``source_with_tools`` is what conversations with tools are written by.
    """

    source: str
    source_with_tools: str | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides what is written."""
        parts = (
            self.source,
            self.source_with_tools or "",
            *sorted(self.tokens.items()),
        )
        return sha256(repr(parts).encode()).hexdigest()

    @property
    def writes_date(self) -> bool:
        return _CLOCK in self.source + (self.source_with_tools or "")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] = (),
        *,
        asks: bool = False,
    ) -> str:
        """Return messages as the template writes them; ``asks``: an answer is to follow.

        Raises `TemplateError` where the template refuses them.
        """
        from jinja2 import TemplateError as JinjaError
        from transformers.utils.chat_template_utils import render_jinja_template

        source = self.source_with_tools if tools else None
        try:
            (text,), _ = render_jinja_template(
                conversations=[[dict(message) for message in messages]],
                tools=[*tools] or None,
                chat_template=source or self.source,
                add_generation_prompt=asks,
                **{_CLOCK: WRITTEN_DATE.strftime},
                **self.tokens,
            )
        except (
            JinjaError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            reason = " ".join(str(error).split())[:_MESSAGE_SHOWN]
            raise TemplateError(f"the chat template refuses it: {reason}") from error
        if len(text) > _LONGEST_PROMPT:
            raise TemplateError("the chat template makes more than 64 MiB of it")
        return str(text)

    def place(
        self, conversation: Conversation, answer: str, role: str = ASSISTANT
    ) -> PlacedAnswer:
        """Return an answer after some messages, as the template writes it in training data.

        With another ``role``, a message of somebody else.

        What the template writes between the mark of the assistant and the answer, such
        as a block of thoughts, is part of the context; so are the answer's own thoughts,
        where the template writes them. Raises `TemplateError` where the template does
        not show the answer, or not where another would stand.
        """
        try:
            return self._place(conversation, "", answer, role)
        except TemplateError:
            end = answer.rfind(_END_OF_THOUGHTS) + len(_END_OF_THOUGHTS)
            if end < len(_END_OF_THOUGHTS) or not answer[end:].strip():
                raise
        said = answer[end:].lstrip()
        thoughts = answer[: len(answer) - len(said)]
        return self._place(conversation, thoughts, said, role)

    def _place(
        self, conversation: Conversation, thoughts: str, answer: str, role: str
    ) -> PlacedAnswer:
        marked = self._render_answer(conversation, thoughts + _PLACEHOLDER, role)
        context, placeholder, ending = marked.partition(_PLACEHOLDER)
        if not placeholder or _PLACEHOLDER in ending:
            raise TemplateError("the chat template does not show the answer once")
        written = self._render_answer(conversation, thoughts + answer, role)
        text = written[len(context) : len(written) - len(ending)]
        if written != context + text + ending or not text:
            raise TemplateError("the chat template shows the answer in another place")
        if text not in answer:
            raise TemplateError("the chat template changes the answer")
        return PlacedAnswer(context, text, ending)

    def _render_answer(
        self, conversation: Conversation, content: str, role: str
    ) -> str:
        answer = {**conversation.answer_fields, "role": role, "content": content}
        return self.render([*conversation.messages, answer], conversation.tools)
