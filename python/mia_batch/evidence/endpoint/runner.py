"""A request until it is answered: limits before each try, retries after it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint.cost import Ledger, Tokens
from mia_batch.evidence.endpoint.limits import TokenBucket
from mia_batch.evidence.endpoint.replies import read_choices, read_refusal
from mia_batch.evidence.endpoint.retry import (
    Next,
    RefusedError,
    UnusableError,
    after_refusal,
    backoff,
)
from mia_batch.evidence.endpoint.transport import UnansweredError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from mia_batch.evidence.endpoint.formats import RequestFormat, WireRequest
    from mia_batch.evidence.endpoint.journal import Journal
    from mia_batch.evidence.endpoint.limits import Concurrency
    from mia_batch.evidence.endpoint.replies import Choices
    from mia_batch.evidence.endpoint.transport import Reply, Transport

__all__ = ["RequestRunner"]

_MOST_UNUSABLE = 2  # times that an unusable answer is repeated; each may have been paid for


class RequestRunner:
    """Sends requests of one format to an endpoint within every limit.

    The journal knows what was spent, and is told of answers that are lost on their way;
    ``concurrency`` is told of answers and refusals; ``rng`` gives the jitter between tries.
    """

    def __init__(
        self,
        request_format: RequestFormat,
        transport: Transport,
        journal: Journal,
        concurrency: Concurrency,
        rng: Random,
    ) -> None:
        self.request_format = request_format
        self.transport = transport
        self.journal = journal
        self.concurrency = concurrency
        self._rng = rng
        self._settings = settings = request_format.settings
        self._ledger = Ledger(settings, journal.spent())
        limits = (settings.requests_per_minute, settings.tokens_per_minute)
        self._requests, self._tokens = (TokenBucket(limit, time.monotonic) for limit in limits)
        self._not_before = 0.0
        self._reached = False
        self._settled = asyncio.Condition()

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
        for attempt in count():
            await self._wait_for_turn(request)
            found = await self._try(request, attempt, max_retries)
            if not isinstance(found, Next):
                return found
            if found.wait is None:
                await asyncio.sleep(backoff(attempt, self._rng))
            else:
                self._not_before = max(self._not_before, time.monotonic() + found.wait)
        raise AssertionError  # count() never ends

    async def _wait_for_turn(self, request: WireRequest) -> None:
        """Wait for whatever the endpoint, the limits per minute and the limit of cost say."""
        await asyncio.sleep(max(self._requests.take(1), self._tokens.take(sum(request.most))))
        while (wait := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait)
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

    async def _try(self, request: WireRequest, attempt: int, max_retries: int) -> Choices | Next:
        """Send once; an answer, or what to do next."""
        sent_in_round = self.concurrency.round
        used = request.most  # of an answer that is lost on its way nobody knows the price
        sent = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            reply = await self.transport.send(self.request_format.path, request.payload)
            self._reached = True
            if not 200 <= reply.status < 300:
                used = Tokens(0, 0)
                if reply.status == 429:
                    self.concurrency.refused(sent_in_round)
                return self._after_refusal(reply, attempt, max_retries)
            self.concurrency.succeeded()
            choices = replace(read_choices(reply.body, request.n, self.request_format), sent=sent)
            used = choices.used or used
        except UnansweredError as error:
            if error.sent:
                self.journal.record(b"", {}, used)
            else:
                used = Tokens(0, 0)
            return self._after_silence(error, attempt, max_retries)
        else:
            return choices
        finally:
            self._ledger.settle(request.most, used)
            self._tokens.give_back(max(0, sum(request.most) - sum(used)))
            async with self._settled:
                self._settled.notify_all()

    def _after_refusal(self, reply: Reply, attempt: int, max_retries: int) -> Next:
        refusal = read_refusal(reply, self._settings)
        last, now = attempt >= max_retries, datetime.now(UTC)
        step = after_refusal(reply.status, reply.headers, refusal.codes, now, last=last)
        if step.step == "again":
            return step
        if step.step == "give_up":
            raise RefusedError(reply.status, _with_tries(refusal.sentence, attempt))
        way_out = f"it asks to wait {step.wait or 0:.0f} s: wait"
        if step.step == "exhausted":
            way_out = "the account is exhausted: pay in"
        msg = (
            f"the endpoint {self._settings.base_url} takes no more requests "
            f"({refusal.sentence}); {way_out}, then give the same command again; "
            "no answer is lost"
        )
        raise EngineError(msg)

    def _after_silence(self, error: UnansweredError, attempt: int, max_retries: int) -> Next:
        if not error.sent and (attempt >= max_retries or not self._reached):
            msg = (
                f"the endpoint {self._settings.base_url} cannot be reached: "
                f"{_with_tries(str(error), attempt)}; check setting 'base_url' and that its "
                "server runs, and give the same command again"
            )
            raise EngineError(msg)
        if attempt >= max_retries:
            raise RefusedError(None, _with_tries(str(error), attempt))
        return Next("again")


def _with_tries(sentence: str, attempt: int) -> str:
    return f"{sentence} (after {attempt + 1} tries)" if attempt else sentence
