"""Embeddings of texts from an endpoint's ``/embeddings``, within every limit of its client."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from mia_batch.evidence.endpoint.client import Journal
from mia_batch.evidence.endpoint.replies import (
    Choices,
    RequestFormat,
    WireRequest,
    decode_object,
    read_usage,
)
from mia_batch.evidence.endpoint.settings import Tokens, most_prompt_tokens
from mia_batch.evidence.endpoint.transport import RefusedError, RequestRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mia_batch.evidence.endpoint.settings import EndpointSettings


class _Embeddings(RequestFormat):
    """Texts go out together, and each comes back as one vector."""

    path = "/embeddings"

    def ask(self, texts: Sequence[str]) -> WireRequest:
        payload: dict[str, object] = {
            "model": self.settings.model,
            "input": list(texts),
            "encoding_format": "float",
        }
        n_bytes = sum(len(text.encode()) for text in texts)
        most = most_prompt_tokens(self.settings, prompt_bytes=n_bytes, prompts=len(texts))
        return WireRequest(payload, len(texts), 0, Tokens(most, 0))

    def read(self, body: bytes, request: WireRequest) -> Choices:
        """Read a reply; it is of use only if it has a vector of finite numbers for each text."""
        document: dict[str, Any] = decode_object(body) or {}
        found = vectors_of(document, request.n)
        problem = found if isinstance(found, str) else None
        return Choices(found={}, used=read_usage(document), problem=problem, document=document)


def vectors_of(document: dict[str, Any], n: int) -> NDArray[np.float32] | str:
    """Take the vectors of ``n`` texts out of a reply, by their index; a text says what is wrong."""
    try:
        data = {int(each["index"]): each["embedding"] for each in document["data"]}
        vectors = np.array([data[i] for i in range(n)], np.float32)
    except (KeyError, TypeError, ValueError, OverflowError):
        return f"it has no embedding of one length for each of {n} texts"
    if vectors.ndim != 2 or not np.isfinite(vectors).all() or len(document["data"]) != n:
        return f"it has no embedding of finite numbers for each of {n} texts"
    return vectors


def embed_at(
    settings: EndpointSettings,
    blocks: Sequence[Sequence[str]],
    journal: Path,
    take: Callable[[int, list[NDArray[np.float32] | str]], None],
    *,
    rng: Random | None = None,
) -> None:
    """Ask for the embeddings of blocks of texts, a request a block, many at once.

    ``take`` gets the number of a block, and for each of its texts a vector or the reason why there
    is none. Texts of a block that is refused are asked for one by one. Raises `EngineError` if the
    endpoint cannot be reached or takes no more requests.
    """

    async def run() -> None:
        numbers = iter(range(len(blocks)))

        async def work(numbers: Iterable[int]) -> None:
            for number in numbers:
                take(number, await _embed(runner, blocks[number]))

        with Journal(journal) as opened:
            runner = RequestRunner(_Embeddings(settings), opened, rng or Random())
            async with aclosing(runner.transport):
                await work(islice(numbers, 1))  # alone: what is wrong with all is found once
                async with asyncio.TaskGroup() as group:
                    for _ in range(settings.max_concurrency):
                        group.create_task(work(numbers))

    try:
        asyncio.run(run())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _embed(runner: RequestRunner, texts: Sequence[str]) -> list[NDArray[np.float32] | str]:
    """Ask for some texts at once, and for each alone where the endpoint refuses them so."""

    def take(request: WireRequest, choices: Choices) -> None:
        runner.journal.record(b"", {}, choices.used or request.most)

    try:
        request = _Embeddings(runner.request_format.settings).ask(texts)
        answer = await runner.complete(request, take)
    except RefusedError as error:
        if len(texts) == 1:
            return [f"the endpoint gives no embedding ({error})"]
        return [found for text in texts for found in await _embed(runner, [text])]
    return [*vectors_of(answer.document, len(texts))]  # else it would be a problem
