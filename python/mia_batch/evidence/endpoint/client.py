"""An endpoint as an engine: requests go in, results come out, everything else goes on beside."""

from __future__ import annotations

import asyncio
import queue
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from importlib.util import find_spec
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Self

from mia_batch.errors import EngineError, MiaBatchError, SettingsError
from mia_batch.evidence.endpoint.chat import Chat
from mia_batch.evidence.endpoint.completions import Completions
from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.evidence.endpoint.limits import Concurrency
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from mia_batch.evidence.endpoint.answers import Form
    from mia_batch.evidence.endpoint.capabilities import Capabilities
    from mia_batch.evidence.endpoint.dispatch import Dispatcher
    from mia_batch.evidence.endpoint.exchange import Exchange
    from mia_batch.evidence.endpoint.settings import EndpointSettings
    from mia_batch.evidence.endpoint.transport import Transport
    from mia_batch.evidence.source import TextRequest, TextResult

__all__ = ["Endpoint"]


class Endpoint:
    """A client that has probed its endpoint; made by :meth:`open`, used as a context manager.

    One thread may submit while another reads results.

    Parameters
    ----------
    settings
        How to reach the endpoint, and how to draw.
    journal
        File of the answers that were paid for.
    rng
        Source of the jitter between retries.
    """

    def __init__(self, settings: EndpointSettings, journal: Path, rng: Random) -> None:
        self._settings = settings
        self._journal = journal
        self._rng = rng
        self._results: queue.SimpleQueue[TextResult | MiaBatchError] = queue.SimpleQueue()
        self._failure: MiaBatchError | None = None
        self._ready: Future[tuple[Dispatcher, Capabilities]] = Future()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = Thread(target=self._work, name="endpoint", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, settings: EndpointSettings, *, journal: Path, rng: Random | None = None) -> Self:
        """Connect to an endpoint and learn what it honours.

        Parameters
        ----------
        settings
            How to reach the endpoint, and how to draw.
        journal
            SQLite file of the answers that were paid for; made where there is none. One client at
            a time holds it.
        rng
            Source of the jitter between retries; null = one of its own.

        Returns
        -------
        Endpoint
            Ready for requests.

        Raises
        ------
        SettingsError
            If the endpoint takes no request with these settings, or httpx is missing.
        EngineError
            If the endpoint cannot be reached, or the journal cannot be used.
        """
        if find_spec("httpx") is None:
            msg = "setting 'engine': openai needs httpx; install mia-batch[openai]"
            raise SettingsError(msg)
        endpoint = cls(settings, journal, rng or Random())
        try:
            endpoint._ready.result()
        except BaseException:
            endpoint.close()
            raise
        return endpoint

    @property
    def capabilities(self) -> Capabilities:
        """What the endpoint was found to honour."""
        return self._ready.result()[1]

    @property
    def repeats(self) -> bool:
        """Whether the same prompt and seed give the same continuation again."""
        found = self.capabilities
        return found.seed == "honoured" or not found.varied

    def has_room(self, *, requests: int, samples: int) -> bool:  # noqa: ARG002 - of the protocol
        """Keep so many requests submitted that the client never waits for the next."""
        return requests < 2 * self._settings.max_concurrency

    def submit(self, request: TextRequest) -> None:
        """Queue a request; returns at once.

        Parameters
        ----------
        request
            The request.

        Raises
        ------
        EngineError
            If the client has been closed.
        """
        dispatcher, _ = self._ready.result()
        try:
            self._loop.call_soon_threadsafe(dispatcher.accept, request)
        except RuntimeError:
            msg = "the client of the endpoint has been closed; open another"
            raise EngineError(msg) from None

    def results(self, timeout: float | None = None) -> list[TextResult]:
        """Wait for answers, which are journalled then; see `Source.results`."""
        if self._failure is not None:
            raise self._failure
        results: list[TextResult] = []
        with suppress(queue.Empty):
            while True:
                item = self._results.get(timeout=0.0 if results else timeout)
                if isinstance(item, MiaBatchError):
                    self._failure = item
                    break
                results.append(item)
        if self._failure is not None and not results:
            raise self._failure
        return results

    def close(self) -> None:
        """End the client at once; answers on their way are lost, journalled ones are not."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _work(self) -> None:
        """Run the event loop; the thread's whole life."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Work until the client is closed."""
        working = asyncio.create_task(self._open_and_answer())
        closing = asyncio.create_task(self._closing.wait())
        await asyncio.wait({working, closing}, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working

    async def _open_and_answer(self) -> None:
        async with AsyncExitStack() as stack:
            try:
                dispatcher, capabilities = await self._open(stack)
            except MiaBatchError as error:
                self._ready.set_exception(error)
                return
            except Exception as error:  # the caller waits in another thread
                msg = f"the client of the endpoint cannot start ({cause_of(error)})"
                self._ready.set_exception(EngineError(msg))
                return
            stack.push_async_callback(dispatcher.cancel)
            self._ready.set_result((dispatcher, capabilities))
            await asyncio.Event().wait()

    async def _open(self, stack: AsyncExitStack) -> tuple[Dispatcher, Capabilities]:
        """Put the parts together, and probe."""
        from mia_batch.evidence.endpoint.dispatch import Dispatcher
        from mia_batch.evidence.endpoint.exchange import Exchange
        from mia_batch.evidence.endpoint.transport import Transport

        settings = self._settings
        journal = stack.enter_context(Journal(self._journal))
        transport = await stack.enter_async_context(Transport(settings))
        form = self._form()
        concurrency = Concurrency(settings.max_concurrency)
        exchange = Exchange(transport, form, settings, journal, concurrency, self._rng)
        capabilities = await self._probe(exchange, transport, form)
        dispatcher = Dispatcher(
            exchange, form, settings, capabilities, journal, concurrency, self._results.put
        )
        return dispatcher, capabilities

    def _form(self) -> Form:
        """Tell how the endpoint is asked."""
        settings = self._settings
        return Chat(settings.chat_instruction) if settings.chat else Completions()

    async def _probe(self, exchange: Exchange, transport: Transport, form: Form) -> Capabilities:
        """Learn what the endpoint honours."""
        from mia_batch.evidence.endpoint.probe import Probe

        return await Probe(exchange, transport, form, self._settings).run()
