"""Endpoints that continue a text: ``/completions``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Completions"]


@dataclass(frozen=True, slots=True)
class Completions:
    """The prompt goes as text, and the choice holds what follows it."""

    path: str = "/completions"

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
        return {"prompt": prompt}

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
        return choice.get("text")
