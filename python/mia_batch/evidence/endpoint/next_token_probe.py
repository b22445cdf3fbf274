"""Learn whether an endpoint gives the log-probability of a token that is named, by asking it."""

from __future__ import annotations

import json
from math import isclose
from typing import TYPE_CHECKING, Any, TypeAlias

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint.capabilities import Capabilities
from mia_batch.evidence.endpoint.next_token import is_id, named_ids, read_next_token
from mia_batch.evidence.endpoint.retry import RefusedError, UnusableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mia_batch.evidence.endpoint.capabilities import Honour
    from mia_batch.evidence.endpoint.next_token import NextToken
    from mia_batch.evidence.endpoint.replies import Choices

__all__ = ["probe_next_token"]

_TOP = (20, 5, 1)  # what vLLM and OpenAI's chat list at most, OpenAI's completions, anyone
_UNKNOWN_FIELD = frozenset({400, 422, 501})
_NOISE = 0.1  # nats between two answers to the same question, on an accelerator
_N_NAMED = 3
_TRIED = 64  # tokens, spread over the vocabulary, of which some unlikely ones are named


Ask: TypeAlias = "Callable[[dict[str, object]], Awaitable[Choices]]"
"""Asks with some fields; raises `RefusedError` where the endpoint does not answer."""


async def probe_next_token(request_format: NextToken, ask: Ask) -> Capabilities:
    """Ask for the most likely tokens, then for unlikely ones by name.

    Raises `SettingsError` if neither is given, or tokens are not named as the tokenizer does;
    `RefusedError` if the endpoint cannot be asked at all.
    """
    top, answer = await _most_likely(request_format, ask)
    listed = json.loads(answer.text)
    names = _names(answer)
    by_id = all(map(is_id, names))
    plain = await ask(request_format.listing(top)) if by_id else answer
    _check_names(request_format, names, plain)
    named = await _named_token(request_format, ask, listed, by_id=by_id)
    return Capabilities(named_token=named, top_logprobs=top, token_id_names=by_id)


async def _most_likely(request_format: NextToken, ask: Ask) -> tuple[int, Choices]:
    """Ask for as many tokens as are given, by their ids where they can be."""
    refusals = []
    for n in _TOP:
        for by_id in (True, False):
            try:
                return n, await ask(request_format.listing(n, by_id=by_id))
            except RefusedError as error:
                if not _is_of_field(error):
                    raise
                refusals.append(str(error))
    msg = (
        f"the endpoint {request_format.settings.base_url} gives no log-probabilities of the next "
        f"token ({refusals[-1]}); take another endpoint, engine transformers or vllm, or "
        "evidence 'samples'"
    )
    raise SettingsError(msg)


def _is_of_field(error: RefusedError) -> bool:
    """Whether it may be a field that the endpoint does not take, not the request as such."""
    return isinstance(error, UnusableError) or error.status in _UNKNOWN_FIELD


def _names(answer: Choices) -> list[str]:
    return [name for name, _ in json.loads(answer.text)]


def _check_names(request_format: NextToken, names: list[str], plain: Choices) -> None:
    """Look whether most tokens that are named are the tokenizer's, which has the same texts.

    Where they are named by text alone, the drawn token's own text must be among them: a name that
    lacks its space, for one, is that of another token.
    """
    tokenizer, others = request_format.tokenizer, _names(plain)
    known = {
        tokenizer.token_text(token) for token in named_ids(names, tokenizer) if token is not None
    }
    choice: dict[str, Any] = plain.document["choices"][0]
    said = str(request_format.said(choice) or "")
    if all(map(is_id, others)):
        right = said.strip() in {"", *map(str.strip, known)}
    else:
        right = 2 * len(known.intersection(others)) >= len(set(others))
        right = right and (others != names or said in {"", *names})
    if not right:
        msg = (
            "setting 'tokenizer': the endpoint's tokens are named otherwise "
            f"({', '.join(map(repr, others[:3]))}, where the answer is {said!r}); give the folder "
            "or hub name of the model's own tokenizer, or take engine transformers or vllm"
        )
        raise SettingsError(msg)


async def _named_token(
    request_format: NextToken, ask: Ask, listed: list[tuple[str, float]], *, by_id: bool
) -> Honour:
    """Name unlikely tokens: each must have a value of its own, twice the same, below all listed."""
    tokenizer = request_format.tokenizer
    likely = named_ids([name for name, _ in listed], tokenizer)
    spread = dict.fromkeys(tokenizer.vocabulary * i // _TRIED for i in range(1, _TRIED))
    unlikely = [
        token
        for token in spread
        if token not in likely
        and (by_id or tokenizer.by_text.get(tokenizer.token_text(token)) == token)
    ][:_N_NAMED]
    values = []
    for token in (*unlikely, *unlikely[:1]):
        try:
            answer = await ask(request_format.listing(1, [token], by_id=by_id))
        except RefusedError as error:
            if not _is_of_field(error):
                raise
            return "refused"
        found = read_next_token(answer.text, token, tokenizer, exact=True)
        if isinstance(found, str):
            return "ignored"
        values.append(found[0])
    least = min(value for _, value in listed)
    same = values and isclose(values[0], values[-1], rel_tol=0, abs_tol=_NOISE)
    differ = len(set(values[:-1])) > 1
    return "honoured" if same and differ and max(values) <= least + _NOISE else "ignored"
