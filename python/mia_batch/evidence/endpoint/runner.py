"""A request until it is answered: limits before each try, retries after it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint.cost import Ledger, Tokens
from mia_batch.evidence.endpoint.replica import choose, next_change
from mia_batch.evidence.endpoint.replies import read_refusal
from mia_batch.evidence.endpoint.retry import (
    Next,
    RefusedError,
    UnusableError,
    after_refusal,
    backoff,
    concerns_all,
)
from mia_batch.evidence.endpoint.transport import UnansweredError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from random import Random

    from mia_batch.evidence.endpoint.formats import RequestFormat, WireRequest
    from mia_batch.evidence.endpoint.journal import Journal
    from mia_batch.evidence.endpoint.replica import Replica
    from mia_batch.evidence.endpoint.replies import Choices
    from mia_batch.evidence.endpoint.transport import Reply

__all__ = ["RequestRunner"]

_MOST_UNUSABLE = 2  # times that an unusable answer is repeated; each may have been paid for


class RequestRunner:
    """Sends requests of one format to the servers of an endpoint within every limit.

    The journal knows what was spent, and is told of answers that are lost on their way; ``rng``
    gives the jitter between tries; ``tell`` takes sentences about servers that fail, or answer
    again, while others go on.
    """

    def __init__(
        self,
        request_format: RequestFormat,
        replicas: Sequence[Replica],
        journal: Journal,
        rng: Random,
        tell: Callable[[str], None],
    ) -> None:
        self.request_format = request_format
        self.replicas = replicas
        self.journal = journal
        self._rng = rng
        self._tell = tell
        self._settings = request_format.settings
        self._ledger = Ledger(self._settings, journal.spent())
        self._probes = False
        self._settled = asyncio.Condition()

    @property
    def limit(self) -> int:
        """Requests that may be in flight at all servers that do not fail."""
        well = [each for each in self.replicas if not each.failures] or self.replicas
        return sum(replica.concurrency.limit for replica in well)

    def probing(self, replica: Replica) -> Self:
        """Ask one server alone, in whose refusals there is something to learn."""
        alone = copy(self)
        alone.request_format = replace(self.request_format, settings=replica.settings)
        alone.replicas = [replica]
        alone._probes = True
        return alone

    async def complete(
        self,
        next_request: Callable[[], WireRequest | None],
        take: Callable[[WireRequest, Choices], None],
        *,
        max_retries: int,
    ) -> None:
        """Send request after request until none is left; repeat few whose answer is unusable.

        Raises `RefusedError` if this has failed, and `EngineError` if no request can succeed now:
        the account is empty, the limit of cost is reached, the endpoint cannot be reached or asks
        for a long wait.
        """
        unusable = 0
        while (request := next_request()) is not None:
            choices = await self._send(request, max_retries)
            take(request, choices)
            if choices.problem is None:
                continue
            if unusable == _MOST_UNUSABLE:
                raise UnusableError(None, _with_tries(choices.problem, unusable))
            await asyncio.sleep(backoff(unusable, self._rng))
            unusable += 1

    async def _send(self, request: WireRequest, max_retries: int) -> Choices:
        """Send a request until an answer with status 2xx comes."""
        attempt = 0
        while True:
            async with self._slot() as replica:
                await asyncio.sleep(replica.take(request.most))
                if time.monotonic() < replica.not_before:
                    replica.give_back(sum(request.most), requests=1)
                    continue
                await self._reserve(request)
                found = await self._try(replica, request, attempt, max_retries)
            if not isinstance(found, Next):
                return found
            if found.wait is not None:
                replica.not_before = max(replica.not_before, time.monotonic() + found.wait)
            elif found.step == "again":
                await asyncio.sleep(backoff(attempt, self._rng))
            attempt += found.step == "again"

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[Replica]:
        """Wait for the server that is to be asked, and count a request in flight there."""
        async with self._settled:
            while (replica := choose(self.replicas, now := time.monotonic())) is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(next_change(self.replicas, now)):
                        await self._settled.wait()
                self._check_open()
        try:
            yield replica
        finally:
            replica.in_flight -= 1
            async with self._settled:
                self._settled.notify_all()

    async def _reserve(self, request: WireRequest) -> None:
        """Wait until a request fits the limit of cost."""
        ledger = self._ledger
        async with self._settled:
            await self._settled.wait_for(lambda: ledger.fits(request.most) or ledger.idle)
            if not ledger.fits(request.most):
                msg = (
                    f"setting 'max_cost' is {self._settings.max_cost:g}, of which "
                    f"{ledger.spent:.6g} is spent, and the next request could pass it; give the "
                    "same command with a higher 'max_cost' to go on; no answer is lost"
                )
                raise EngineError(msg)
            ledger.reserve(request.most)

    async def _try(
        self, replica: Replica, request: WireRequest, attempt: int, max_retries: int
    ) -> Choices | Next:
        """Send once; an answer, or what to do next."""
        sent_in_round = replica.concurrency.round
        used = request.most  # of an answer that is lost on its way nobody knows the price
        sent = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            reply = await replica.transport.send(self.request_format.path, request.payload)
            replica.reached = True
            if not 200 <= reply.status < 300:
                used = Tokens(0, 0)
                if reply.status == 429:
                    replica.concurrency.refused(sent_in_round)
                return self._after_refusal(replica, reply, attempt, max_retries)
            if replica.succeeded():
                self._tell(f"{replica.address} answers again")
            choices = replace(self.request_format.read(reply.body, request.n), sent=sent)
            used = choices.used or used
        except UnansweredError as error:
            if error.sent:
                self.journal.record(b"", {}, used)
            else:
                used = Tokens(0, 0)
            return self._after_silence(replica, error, attempt, max_retries)
        else:
            return choices
        finally:
            self._ledger.settle(request.most, used)
            replica.give_back(sum(request.most) - sum(used))

    def _after_refusal(
        self, replica: Replica, reply: Reply, attempt: int, max_retries: int
    ) -> Next:
        refusal = read_refusal(reply, self._settings)
        last, now = attempt >= max_retries, datetime.now(UTC)
        step = after_refusal(reply.status, reply.headers, refusal.codes, now, last=last)
        concerns_request = self._probes or not concerns_all(reply.status)
        if reply.status >= 500 or (reply.status == 429 and not step.wait):
            self._note_failure(replica, refusal.sentence)
        if step.step == "again":
            return step
        if step.step == "give_up" and concerns_request:
            raise RefusedError(reply.status, _with_tries(refusal.sentence, attempt))
        way_out = {
            "give_up": "check the API key and the model, and",
            "exhausted": "the account is exhausted: pay in, then",
        }.get(step.step, f"it asks to wait {step.wait or 0:.0f} s: wait, then")
        closed = (
            f"the endpoint {replica.address} takes no more requests ({refusal.sentence}); "
            f"{way_out} give the same command again; no answer is lost"
        )
        return self._close(replica, refusal.sentence, closed, step.wait)

    def _after_silence(
        self, replica: Replica, error: UnansweredError, attempt: int, max_retries: int
    ) -> Next:
        said = _with_tries(str(error), attempt)
        if not error.sent and (attempt >= max_retries or not replica.reached):
            closed = (
                f"the endpoint {replica.address} cannot be reached: {said}; check setting "
                "'base_url' and that its server runs, and give the same command again"
            )
            return self._close(replica, str(error), closed)
        self._note_failure(replica, str(error), lasting=not error.sent)
        if attempt >= max_retries:
            raise RefusedError(None, said)
        return Next("again")

    def _close(self, replica: Replica, why: str, closed: str, wait: float | None = None) -> Next:
        """Ask the other servers; raises `EngineError` if there is none that goes on."""
        replica.closed = closed
        self._check_open()
        self._note_failure(replica, why, lasting=True)
        return Next("elsewhere", wait)

    def _check_open(self) -> None:
        if all(each.closed for each in self.replicas):
            raise EngineError("\n".join(str(each.closed) for each in self.replicas))

    def _note_failure(self, replica: Replica, why: str, *, lasting: bool = False) -> None:
        """Leave a server alone for a time; say so at once if that will last, else the next time."""
        if self._probes:
            return
        replica.failed(time.monotonic())
        others = any(not each.failures for each in self.replicas)
        if others and not replica.told and (lasting or replica.failures > 1):
            replica.told = True
            self._tell(f"{replica.address} fails ({why}); the others go on, and it is tried again")


def _with_tries(sentence: str, attempt: int) -> str:
    return f"{sentence} (after {attempt + 1} tries)" if attempt else sentence
