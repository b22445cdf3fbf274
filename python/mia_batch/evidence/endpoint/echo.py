"""Endpoints that repeat a prompt with the log-probability of each of its tokens."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from mia_batch.evidence.scoring.source import TextScores

__all__ = ["Echo", "read_echo"]

_LEAST = -9999.0  # what servers write for minus infinity
_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")  # how OpenAI writes a part of a character


@dataclass(frozen=True, slots=True)
class Echo:
    """Form of a request for log-probabilities; what counts as the answer's text is their JSON."""

    path: str = "/completions"

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        """Put the prompt into the request.

        Parameters
        ----------
        prompt
            The text to score.

        Returns
        -------
        dict
            Fields of the request.
        """
        return {"prompt": prompt, "echo": True, "logprobs": 1}

    def text(self, choice: dict[str, Any]) -> object:
        """Find tokens and their log-probabilities.

        Parameters
        ----------
        choice
            One of the answer's choices.

        Returns
        -------
        object
            JSON of two lists, in a sound answer.
        """
        logprobs = choice.get("logprobs")
        if not isinstance(logprobs, dict):
            return None
        return json.dumps([logprobs.get("tokens"), logprobs.get("token_logprobs")])


def read_echo(echoed: str, context: str, text: str, *, n_drawn: int | None) -> TextScores | str:
    """Read an echo, believing nothing that does not fit the prompt.

    Parameters
    ----------
    echoed
        JSON of tokens and log-probabilities: those of the prompt, perhaps a special token before,
        and at most one that was drawn after it.
    context
        First part of the prompt.
    text
        Second part of the prompt; tokens that start in it are scored.
    n_drawn
        Tokens that the endpoint says it drew; null where it does not say.

    Returns
    -------
    TextScores or str
        Numbers of the text's tokens, or why the echo cannot be used.
    """
    tokens, logprobs = json.loads(echoed)
    if not _are_tokens(tokens) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
        return "the endpoint's log-probabilities are not one for each token"
    pieces = [_encoded(token) for token in tokens]
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
    if not all(map(_is_logprob, values)):
        return "the endpoint gives a token a log-probability that is not a number up to 0"
    logprob = np.array([math.nan] * unscored + values, np.float32)
    return TextScores(token_ids=None, bos=bos == 1, logprob=logprob)


def _are_tokens(tokens: object) -> bool:
    return isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)


def _encoded(token: str) -> bytes:
    part = _BYTES.fullmatch(token)
    if part is not None:
        return bytes.fromhex(part[1].replace("\\x", ""))
    return token.encode(errors="replace")


def _find(prompt: bytes, pieces: list[bytes], n_drawn: int | None) -> tuple[int, int] | None:
    """Where the prompt's tokens begin and end among all; a token that was drawn may be empty."""
    n_pieces = len(pieces)
    for end in (n_pieces,) if n_drawn == 0 else (n_pieces - 1, n_pieces):
        for bos in (0, 1):
            if b"".join(pieces[bos:end]) == prompt:
                return bos, end
    return None


def _is_logprob(value: object) -> bool:
    return isinstance(value, (int, float)) and _LEAST < value <= 0
