"""Endpoints that only answer messages: ``/chat/completions``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Chat"]


@dataclass(frozen=True, slots=True)
class Chat:
    """The instruction and the prompt go as one user message; the reply is the continuation.

    One message, because the templates of some models have no place for a system message.

    Attributes
    ----------
    instruction
        What the model is told before the prompt.
    path
        Below the base address.
    """

    instruction: str
    path: str = "/chat/completions"

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        """Put the prompt into the request.

        Parameters
        ----------
        prompt
            The text to go on from.

        Returns
        -------
        dict
            Fields of the request.
        """
        content = f"{self.instruction}\n\n{prompt}"
        return {"messages": [{"role": "user", "content": content}]}

    def text(self, choice: dict[str, Any]) -> object:
        """Find the continuation.

        Parameters
        ----------
        choice
            One of the answer's choices.

        Returns
        -------
        object
            A string, in a sound answer.
        """
        message = choice.get("message")
        return message.get("content") if isinstance(message, dict) else None
