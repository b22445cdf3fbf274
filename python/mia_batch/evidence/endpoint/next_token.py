"""Log-probabilities of the next token: of one that is named, or of those that are most likely."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mia_batch.evidence.endpoint.echo import is_logprob
from mia_batch.evidence.endpoint.formats import Chat, RequestFormat
from mia_batch.evidence.request import Answer

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.capabilities import Capabilities
    from mia_batch.evidence.request import Continuation, Request
    from mia_batch.models.tokens import Tokenizer

__all__ = ["NextChatToken", "NextToken", "is_id", "named_ids", "read_next_token"]

_BY_ID = re.compile(r"token_id:([0-9]+)")  # how vLLM names a token by its id
_LEAST_LEFT = 1e-4  # probability of what is not listed, as far as rounding lets it be known


@dataclass(frozen=True)
class NextToken(RequestFormat):
    """The format of a request about the first token of a text after its context.

    What counts as a choice's text is the JSON of the tokens that are listed, as pairs of name and
    log-probability. The token that is drawn is the most likely one, and always thrown away.
    """

    tokenizer: Tokenizer

    def prepare(self, request: Request) -> Request | Answer:
        """Find the true token's id, and the prompt that the endpoint cuts as it is cut here.

        A chat reply starts anew, without a space.
        """
        if self.settings.chat:
            prompt: str | None = request.context
            (ids,) = self.tokenizer.encode([request.text.lstrip()])
        else:
            special, before, ids = self.tokenizer.encode_after(request.context, request.text)
            prompt = self._prompt_of(request, special + before)
        if ids and prompt is not None:
            return replace(request, context=prompt, text_ids=ids[:1])
        error = "the endpoint would cut the words before the text in another way alone"
        if not ids:
            error = "the text has 0 tokens, fewer than the 1 wanted"
        number, asked = request.request_id, bool(ids)
        return Answer(request_id=number, passes=0, error=error, asked=asked)

    def _prompt_of(self, request: Request, ids: list[int]) -> str | None:
        """Find the prompt with these tokens: the context, and what its last token has of the text.

        None where there is none.
        """
        prompts = (request.context + request.text[:end] for end in range(len(request.text)))
        encoded = ((prompt, self.tokenizer.encode_prompts([prompt])[0]) for prompt in prompts)
        return next((prompt for prompt, found in encoded if found == ids), None)

    def prompt(self, request: Request) -> str:
        """Take what the true token follows."""
        return request.context

    def listing(
        self, n: int, token: int | None = None, *, by_id: bool = False
    ) -> dict[str, object]:
        """Ask for the ``n`` most likely tokens, or for one that is named by its id."""
        fields: dict[str, object] = {"logprobs": n}
        if self.settings.chat:
            fields = {"logprobs": True, "top_logprobs": n}
        if by_id:
            fields["return_tokens_as_token_ids"] = True
        if token is not None:
            fields["logprob_token_ids"] = [token]
        return fields

    def fields(self, request: Request, capabilities: Capabilities) -> dict[str, object]:
        """Name the true token where that is honoured, else ask for as many as are listed."""
        by_id = capabilities.token_id_names
        if capabilities.named_token == "honoured" and request.text_ids:
            return self.listing(1, request.text_ids[0], by_id=by_id)
        return self.listing(capabilities.top_logprobs, by_id=by_id)

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
        """Find the text of the token that was drawn."""
        return super().text(choice)

    def answer(
        self, request: Request, continuations: list[Continuation], capabilities: Capabilities
    ) -> Answer:
        """Read what the listing says of the true token."""
        (listed,) = continuations
        token = (request.text_ids or [])[0]
        exact = capabilities.named_token == "honoured"
        found = read_next_token(listed.text or "", token, self.tokenizer, exact=exact)
        if isinstance(found, str):
            return Answer(request_id=request.request_id, error=found)
        logprob, bounded = found
        special, _, _ = self.tokenizer.encode_after("", "")
        return Answer(
            request_id=request.request_id,
            tokens={
                "token_ids": np.array([token], np.uint32),
                "logprob": np.array([logprob], np.float32),
            },
            bos=bool(special) and not self.settings.chat,
            bounded=bounded,
        )


class NextChatToken(NextToken, Chat):
    """The same of a chat, about the first token of the reply."""


def is_id(name: str) -> bool:
    """Whether a name is a token's id, not its text."""
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
