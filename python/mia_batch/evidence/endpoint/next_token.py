"""Log-probabilities of the next token: of some that are named, or of those that are most likely."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mia_batch.evidence.endpoint.echo import is_logprob
from mia_batch.evidence.endpoint.formats import Chat, RequestFormat
from mia_batch.evidence.request import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    converses: ClassVar[bool] = False

    def prepare(self, request: Request) -> Request | Answer:
        """Find the ids of the true token, or of all answers, and the prompt before them.

        The endpoint must cut that as it is cut here. A chat reply starts anew, without a space.
        """
        if self.settings.chat:
            prompt: str | None = request.context
            texts = request.text.split() if request.question else [request.text.lstrip()]
            ids = [token for each in self.tokenizer.encode(texts) for token in each]
        else:
            special, before, ids = self.tokenizer.encode_after(request.context, request.text)
            prompt = self._prompt_of(request, special + before)
        if no_answers := request.why_no_answers(ids):
            return Answer(request_id=request.request_id, passes=0, error=no_answers)
        if ids and prompt is not None:
            return replace(request, context=prompt, text_ids=ids if request.question else ids[:1])
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
        self, n: int, tokens: Sequence[int] = (), *, by_id: bool = False
    ) -> dict[str, object]:
        """Ask for the ``n`` most likely tokens, or for ``n`` that are named by their ids."""
        fields: dict[str, object] = {"logprobs": n}
        if self.settings.chat:
            fields = {"logprobs": True, "top_logprobs": n}
        if by_id:
            fields["return_tokens_as_token_ids"] = True
        if tokens:
            fields["logprob_token_ids"] = [*tokens]
        return fields

    def fields(self, request: Request, capabilities: Capabilities) -> dict[str, object]:
        """Name the tokens that are wanted where that is honoured, else ask for the most likely."""
        by_id, tokens = capabilities.token_id_names, request.text_ids or []
        named = tokens if capabilities.named_token == "honoured" else []
        listing = self.listing(len(named) or capabilities.top_logprobs, named, by_id=by_id)
        return super().fields(request, capabilities) | listing

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
        """Read what the listing says of the tokens that are wanted.

        Bounds alone do not tell answers apart.
        """
        (listed,) = continuations
        tokens = request.text_ids or []
        exact = capabilities.named_token == "honoured"
        found = []
        for token in tokens:
            read = read_next_token(listed.text or "", token, self.tokenizer, exact=exact)
            if isinstance(read, str):
                return Answer(request_id=request.request_id, error=read)
            found.append(read)
        logprobs, bounded = zip(*found, strict=True)
        if request.question and all(bounded):
            error = f"none of the answers is among the {capabilities.top_logprobs} tokens listed"
            return Answer(request_id=request.request_id, error=error)
        special, _, _ = self.tokenizer.encode_after("", "")
        return Answer(
            request_id=request.request_id,
            tokens={
                "token_ids": np.array(tokens, np.uint32),
                "logprob": np.array(logprobs, np.float32),
            },
            bos=bool(special) and not self.settings.chat,
            bounded=any(bounded),
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
