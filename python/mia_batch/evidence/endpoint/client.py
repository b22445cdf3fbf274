"""An endpoint as a source: requests go in, answers come out, a thread of its own does the rest."""

from __future__ import annotations

import asyncio
import queue
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from importlib.util import find_spec
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Self

from mia_batch.errors import EngineError, MiaBatchError, SettingsError
from mia_batch.evidence.endpoint.echo import Echo
from mia_batch.evidence.endpoint.formats import Chat, RequestFormat
from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.evidence.endpoint.next_token import NextChatToken, NextToken
from mia_batch.evidence.request import Answer
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.evidence.endpoint.capabilities import Capabilities
    from mia_batch.evidence.endpoint.dispatch import Dispatcher
    from mia_batch.evidence.endpoint.settings import EndpointSettings
    from mia_batch.evidence.request import EvidenceKind, Request
    from mia_batch.models.tokens import Tokenizer

__all__ = ["Endpoint"]


class Endpoint:
    """A `Source` that has probed its endpoint; made by :meth:`open`, used as a context manager.

    One thread may submit while another reads results.
    """

    capabilities: Capabilities  # what the endpoint was found to honour
    _dispatcher: Dispatcher

    def __init__(
        self,
        request_format: RequestFormat,
        kind: EvidenceKind,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._format = request_format
        self._kind = kind
        self._tokenizer = tokenizer
        self._results: queue.SimpleQueue[Answer | MiaBatchError] = queue.SimpleQueue()
        self._failure: MiaBatchError | None = None
        self._stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._work, name="endpoint", daemon=True)

    @classmethod
    def open(
        cls,
        settings: EndpointSettings,
        *,
        kind: EvidenceKind = "samples",
        journal: Path,
        tokenizer: Tokenizer | None = None,
        at_points: bool = False,
        rng: Random | None = None,
    ) -> Self:
        """Connect to an endpoint and learn what it honours.

        One client at a time holds the SQLite file ``journal``. With ``at_points`` log-probabilities
        are those of the first token of each text alone, for which the prompt need not be echoed.

        Raises `SettingsError` if it takes no request with these settings or cannot give this kind
        of evidence, `EngineError` if it cannot be reached or the journal cannot be used.
        """
        if find_spec("httpx") is None:
            msg = "setting 'engine': openai needs httpx; install mia-batch[openai]"
            raise SettingsError(msg)
        made = _at_points(settings, tokenizer) if at_points else _request_format(settings, kind)
        endpoint = cls(made, kind, tokenizer)
        endpoint._thread.start()
        starting = endpoint._start(journal, rng or Random())
        try:
            asyncio.run_coroutine_threadsafe(starting, endpoint._loop).result()
        except BaseException as error:
            endpoint.close()
            if isinstance(error, MiaBatchError) or not isinstance(error, Exception):
                raise
            msg = f"the client of the endpoint cannot start ({cause_of(error)})"
            raise EngineError(msg) from None
        return endpoint

    @property
    def repeats(self) -> bool:
        """Whether the same prompt and seed give the same continuation again."""
        return self.capabilities.seed == "honoured" or not self.capabilities.varied

    def has_room(self, *, requests: int, samples: int) -> bool:  # noqa: ARG002 - of the protocol
        """Keep so many requests submitted that the client never waits for the next."""
        return requests < 2 * self._format.settings.max_concurrency

    def submit(self, request: Request) -> None:
        """Queue a request; raises `EngineError` if the client has been closed."""
        sendable = self._prepare(request)
        if isinstance(sendable, Answer):
            self._results.put(sendable)
            return
        try:
            self._loop.call_soon_threadsafe(self._dispatcher.accept, sendable)
        except RuntimeError:
            msg = "the client of the endpoint has been closed; open another"
            raise EngineError(msg) from None

    def results(self, timeout: float | None = None) -> list[Answer]:
        """Wait for answers, which are journalled then; see `Source.results`."""
        results: list[Answer] = []
        with suppress(queue.Empty):
            while self._failure is None:
                item = self._results.get(timeout=0.0 if results else timeout)
                if isinstance(item, MiaBatchError):
                    self._failure = item
                else:
                    results.append(item)
        if self._failure is not None and not results:
            raise self._failure
        return results

    def close(self) -> None:
        """End the client at once; answers on their way are lost, journalled ones are not."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, request: Request) -> Request | Answer:
        """Cut the context; an answer with the reason where the request cannot be sent."""
        if request.kind != self._kind:
            error = f"the endpoint was opened for {self._kind}, not for {request.kind}"
        elif self._kind == "logprobs" and not request.text:
            error = "the text has no token"
        elif isinstance(self._format, NextToken):
            return self._format.prepare(request)
        elif request.context_tokens is None or not request.context:
            return request
        elif self._tokenizer is None:
            error = "the context cannot be cut without its tokens; set 'tokenizer'"
        else:
            kept = self._tokenizer.keep_last(request.context, request.context_tokens)
            return replace(request, context=kept)
        return Answer(request_id=request.request_id, passes=0, error=error)

    def _work(self) -> None:
        """Run the event loop until it is stopped; the thread's whole life."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
            runner.run(self._stack.aclose())

    async def _start(self, journal_path: Path, rng: Random) -> None:
        """Put the parts together, and probe the endpoint."""
        from mia_batch.evidence.endpoint.dispatch import Dispatcher
        from mia_batch.evidence.endpoint.probe import Probe
        from mia_batch.evidence.endpoint.runner import RequestRunner

        journal = self._stack.enter_context(Journal(journal_path))
        runner = RequestRunner(self._format, journal, rng)
        self._stack.push_async_callback(runner.transport.aclose)
        self.capabilities = await Probe(runner).run()
        runner.probing = False
        self._format = runner.request_format
        self._dispatcher = Dispatcher(runner, self.capabilities, self._results.put)
        self._stack.push_async_callback(self._dispatcher.cancel)


def _at_points(settings: EndpointSettings, tokenizer: Tokenizer | None) -> NextToken:
    """Draw the most likely token: any other would be listed beside those that are more likely."""
    if tokenizer is None:
        msg = "setting 'tokenizer' is missing: log-probabilities at points need the true token's id"
        raise SettingsError(msg)
    kind = NextChatToken if settings.chat else NextToken
    return kind(replace(settings, temperature=0.0, top_k=0, top_p=1.0), tokenizer)


def _request_format(settings: EndpointSettings, kind: EvidenceKind) -> RequestFormat:
    if kind == "samples":
        return Chat(settings) if settings.chat else RequestFormat(settings)
    if kind == "logprobs" and not settings.chat:  # how tokens are drawn plays no part
        return Echo(replace(settings, temperature=1.0, top_k=0, top_p=1.0))
    msg = f"setting 'engine': openai gives samples and logprobs, but no {kind}"
    if kind == "logprobs":
        msg = (
            "setting 'chat': a chat endpoint gives no log-probabilities of a prompt; take a "
            "completions endpoint that echoes, or engine transformers or vllm"
        )
    raise SettingsError(msg)
