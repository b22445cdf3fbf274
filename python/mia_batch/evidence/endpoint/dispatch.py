"""Requests on their way: journal first, then the endpoint, as many at once as it can take."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mia_batch.errors import EngineError, MiaBatchError
from mia_batch.evidence.endpoint.journal import identify
from mia_batch.evidence.endpoint.retry import RefusedError
from mia_batch.evidence.request import Answer
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia_batch.evidence.endpoint.capabilities import Capabilities
    from mia_batch.evidence.endpoint.formats import WireRequest
    from mia_batch.evidence.endpoint.replies import Choices
    from mia_batch.evidence.endpoint.runner import RequestRunner
    from mia_batch.evidence.request import Continuation, Request

__all__ = ["Dispatcher"]


@dataclass(frozen=True, slots=True)
class _Job:
    request: Request
    identity: bytes
    found: dict[int, Continuation]

    @property
    def missing(self) -> list[int]:
        return [i for i in range(self.request.n) if i not in self.found]


class Dispatcher:
    """Answers requests; lives in one event loop.

    ``deliver`` takes answers and, at most once and last, the exception that ends the run.
    """

    def __init__(
        self,
        runner: RequestRunner,
        capabilities: Capabilities,
        deliver: Callable[[Answer | MiaBatchError], None],
    ) -> None:
        self._runner = runner
        self._capabilities = capabilities
        self._deliver = deliver
        self._format = runner.request_format
        self._settings = runner.request_format.settings
        self._identity = self._settings.sample_identity(capabilities)
        self._waiting: deque[_Job] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._failure: MiaBatchError | None = None

    def accept(self, request: Request) -> None:
        """Take a request; what the journal holds is answered from it."""
        if self._failure is not None:
            return
        identity = identify(
            request, self._identity | self._format.fields(request, self._capabilities)
        )
        try:
            job = _Job(request, identity, self._runner.journal.find(identity))
        except EngineError as error:
            self._fail(error)
            return
        if job.missing:
            self._waiting.append(job)
            self._start()
        else:
            self._deliver_answer(job)

    async def cancel(self) -> None:
        """End what is running; its answers are lost."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._runner.concurrency.limit:
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
            self._fail(self._failure)
        else:
            self._start()

    def _fail(self, error: MiaBatchError) -> None:
        """Start nothing more; answers in flight are paid for and still count."""
        self._waiting.clear()
        self._failure = self._failure or error
        if not self._running:
            self._deliver(self._failure)

    async def _run(self, job: _Job) -> None:
        """Ask until every sample is there, only for those that are not."""
        try:
            await self._runner.complete(self._request(job), partial(self._take, job))
        except RefusedError as error:
            verb = "gave no usable answer" if error.status is None else "refused the request"
            failed = f"the endpoint {verb}: {error}"
            self._deliver(Answer(request_id=job.request.request_id, error=failed))
        else:
            self._deliver_answer(job)

    def _request(self, job: _Job) -> WireRequest:
        """Ask for the first missing sample, and for as many after it as one request can."""
        missing, request = job.missing, job.request
        first, n = missing[0], 1
        if self._capabilities.n == "honoured":
            n = sum(index == first + i for i, index in enumerate(missing))
        fields = self._capabilities.sampling_fields(
            n=n, seed=request.seed + first, top_k=self._settings.top_k
        )
        if request.greedy and self._capabilities.greedy != "refused":
            fields["temperature"] = 0.0
        fields |= self._format.fields(request, self._capabilities)
        prompt = self._format.prompt(request)
        return self._format.write(prompt, fields, n=n, max_tokens=request.max_tokens, first=first)

    def _take(self, job: _Job, sent: WireRequest, choices: Choices) -> WireRequest | None:
        """Journal what came, then count it; ask for what is missing."""
        found = {sent.first + index: each for index, each in choices.found.items()}
        self._runner.journal.record(
            job.identity,
            found,
            choices.used or sent.most,
            sent=choices.sent,
            system_fingerprint=choices.system_fingerprint,
        )
        job.found.update(found)
        return self._request(job) if job.missing else None

    def _deliver_answer(self, job: _Job) -> None:
        in_order = [job.found[i] for i in range(job.request.n)]
        self._deliver(self._format.answer(job.request, in_order, self._capabilities))
