"""Endpoints that repeat a prompt with the log-probability of each of its tokens."""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from mia_batch.evidence.endpoint.formats import RequestFormat
from mia_batch.evidence.request import Answer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.evidence.endpoint.capabilities import Capabilities
    from mia_batch.evidence.request import Continuation, Request

__all__ = ["Echo", "is_logprob", "read_echo"]

_LEAST = -9999.0  # what servers write for minus infinity
_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")  # how OpenAI writes a part of a character


class Echo(RequestFormat):
    """The format of a request for log-probabilities; what counts as a choice's text is their JSON.

    One token is drawn and thrown away, because not every endpoint takes a request for none.
    """

    def prompt_fields(self, prompt: str) -> dict[str, object]:
        """Put the prompt into a request."""
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
            return Answer(request_id=request.request_id, error=found)
        bos, logprob = found
        if len(logprob) < (request.text_tokens or 0):
            error = (
                f"the text has {len(logprob)} tokens, fewer than the {request.text_tokens} wanted"
            )
            return Answer(request_id=request.request_id, error=error, asked=False)
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
    if not all(map(is_logprob, values)):
        return "the endpoint gives a token a log-probability that is not a number up to 0"
    return bos == 1, np.array([math.nan] * unscored + values, np.float32)


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


def is_logprob(value: object) -> bool:
    """Whether it is a number up to 0, and none that stands for minus infinity."""
    return isinstance(value, (int, float)) and _LEAST < value <= 0
