"""Requests on their way: journal first, then the endpoint, as many at once as it can take."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from mia_batch.errors import EngineError, MiaBatchError
from mia_batch.evidence.endpoint.cost import Tokens, most_prompt_tokens
from mia_batch.evidence.endpoint.exchange import Ask
from mia_batch.evidence.endpoint.journal import identify
from mia_batch.evidence.endpoint.payload import sampling_fields
from mia_batch.evidence.endpoint.refusal import RefusedError
from mia_batch.evidence.source import TextResult
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia_batch.evidence.endpoint.answers import Form
    from mia_batch.evidence.endpoint.capabilities import Capabilities
    from mia_batch.evidence.endpoint.exchange import Exchange
    from mia_batch.evidence.endpoint.journal import Journal
    from mia_batch.evidence.endpoint.limits import Concurrency
    from mia_batch.evidence.endpoint.settings import EndpointSettings
    from mia_batch.evidence.source import TextOutput, TextRequest

__all__ = ["Dispatcher"]

_MOST_UNUSABLE = 2
"""Times that a request is repeated whose answer cannot be used; each may have been paid for."""


@dataclass(frozen=True, slots=True)
class _Job:
    request: TextRequest
    identity: bytes
    outputs: dict[int, TextOutput]


class Dispatcher:
    """Answers requests; lives in one event loop.

    Parameters
    ----------
    exchange
        Sends requests.
    form
        The kind of endpoint.
    settings
        How to draw.
    capabilities
        What the endpoint honours.
    journal
        Answers that were paid for.
    concurrency
        How many requests may be in flight.
    deliver
        Takes results and, at most once and last, the exception that ends the run.
    """

    def __init__(
        self,
        exchange: Exchange,
        form: Form,
        settings: EndpointSettings,
        capabilities: Capabilities,
        journal: Journal,
        concurrency: Concurrency,
        deliver: Callable[[TextResult | MiaBatchError], None],
    ) -> None:
        self._exchange = exchange
        self._form = form
        self._settings = settings
        self._capabilities = capabilities
        self._journal = journal
        self._concurrency = concurrency
        self._deliver = deliver
        self._identity = settings.sample_identity(sends_top_k=capabilities.top_k == "honoured")
        self._waiting: deque[_Job] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._failure: MiaBatchError | None = None

    def accept(self, request: TextRequest) -> None:
        """Take a request; what the journal holds is answered from it.

        Parameters
        ----------
        request
            The request.
        """
        if self._failure is not None:
            return
        identity = identify(request, self._identity)
        try:
            job = _Job(request, identity, self._journal.find(identity))
        except EngineError as error:
            self._fail(error)
            return
        if len(job.outputs) == request.n:
            self._deliver(_result(job))
        else:
            self._waiting.append(job)
            self._start()

    async def cancel(self) -> None:
        """End what is running; its answers are lost."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._concurrency.limit:
            task = asyncio.create_task(self._run(self._waiting.popleft()))
            self._running.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.remove(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, MiaBatchError):
            self._fail(error)
        elif error is not None:
            self._fail(EngineError(f"the client of the endpoint has failed ({cause_of(error)})"))
        elif self._failure is not None:
            self._end_if_idle()
        else:
            self._start()

    def _fail(self, error: MiaBatchError) -> None:
        """Start nothing more; answers in flight are paid for and still count."""
        self._waiting.clear()
        if self._failure is None:
            self._failure = error
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._failure is not None and not self._running:
            self._deliver(self._failure)

    async def _run(self, job: _Job) -> None:
        try:
            await self._complete(job)
        except RefusedError as error:
            if _concerns_all(error.status):
                msg = (
                    f"the endpoint {self._settings.base_url} takes no more requests ({error}); "
                    "check the API key and the model, and give the same command again; "
                    "no answer is lost"
                )
                raise EngineError(msg) from None
            verb = "gave no usable answer" if error.status is None else "refused the request"
            self._deliver(_result(job, error=f"the endpoint {verb}: {error}"))
        else:
            self._deliver(_result(job))

    async def _complete(self, job: _Job) -> None:
        """Ask until every sample is there, only for those that are not."""
        unusable = 0
        while len(job.outputs) < job.request.n:
            first, n = self._next_missing(job)
            ask = self._ask(job.request, first, n)
            answer = await self._exchange.ask(ask, max_retries=self._settings.max_retries)
            found = {first + place: output for place, output in answer.outputs.items()}
            self._journal.record(job.identity, found, answer.used or ask.most)
            job.outputs.update(found)
            if answer.problem is None:
                continue
            if unusable == _MOST_UNUSABLE:
                raise RefusedError(None, f"{answer.problem} (after {unusable + 1} tries)")
            await self._exchange.back_off(unusable)
            unusable += 1

    def _next_missing(self, job: _Job) -> tuple[int, int]:
        """First missing sample, and how many from there one request can ask for."""
        missing = [i for i in range(job.request.n) if i not in job.outputs]
        if self._capabilities.n != "honoured":
            return missing[0], 1
        run = takewhile(lambda pair: pair[1] == missing[0] + pair[0], enumerate(missing))
        return missing[0], sum(1 for _ in run)

    def _ask(self, request: TextRequest, first: int, n: int) -> Ask:
        prompt_bytes = len(request.prompt.encode())
        given = most_prompt_tokens(self._settings, prompt_bytes=prompt_bytes)
        sampling = sampling_fields(
            self._settings,
            self._capabilities,
            n=n,
            seed=request.seed + first,
            max_tokens=request.max_tokens,
        )
        return Ask(
            payload={**self._form.prompt_fields(request.prompt), **sampling},
            n=n,
            most=Tokens(given, n * request.max_tokens),
        )


def _concerns_all(status: int | None) -> bool:
    """Tell statuses that the next request would get as well.

    403 is not among them: the key has been good before, so it is one prompt that may not be asked.
    """
    return status in {401, 404, 405} or (status is not None and 300 <= status < 400)


def _result(job: _Job, *, error: str | None = None) -> TextResult:
    ordered = [] if error is not None else [job.outputs[i] for i in range(job.request.n)]
    return TextResult(request_id=job.request.request_id, outputs=ordered, error=error)
