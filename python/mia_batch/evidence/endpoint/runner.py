"""A request until it is answered: limits before each try, retries after it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint.cost import Ledger, Tokens
from mia_batch.evidence.endpoint.limits import Concurrency, TokenBucket
from mia_batch.evidence.endpoint.replies import read_refusal
from mia_batch.evidence.endpoint.retry import (
    Next,
    RefusedError,
    UnusableError,
    after_refusal,
    backoff,
)
from mia_batch.evidence.endpoint.transport import Transport, UnansweredError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from random import Random

    from mia_batch.evidence.endpoint.formats import RequestFormat, WireRequest
    from mia_batch.evidence.endpoint.journal import Journal
    from mia_batch.evidence.endpoint.replies import Choices
    from mia_batch.evidence.endpoint.transport import Reply

__all__ = ["RequestRunner"]

_MOST_UNUSABLE = 2  # times that an unusable answer is repeated; each may have been paid for


class RequestRunner:
    """Sends requests of one format to an endpoint within every limit.

    While it is ``probing``, there is something to learn from every refusal.
    """

    def __init__(self, request_format: RequestFormat, journal: Journal, rng: Random) -> None:
        self.request_format = request_format
        self.journal = journal
        self.probing = False
        self._settings = settings = request_format.settings
        self.transport = Transport(settings)
        self._rng = rng
        self._ledger = Ledger(settings, journal.spent())
        self.concurrency = Concurrency(settings.max_concurrency)
        limits = (settings.requests_per_minute, settings.tokens_per_minute)
        self._requests, self._tokens = (TokenBucket(limit, time.monotonic) for limit in limits)
        self._in_flight = 0
        self._not_before = 0.0  # the endpoint asks to wait until then
        self._reached = False
        self._settled = asyncio.Condition()

    async def complete(
        self,
        request: WireRequest,
        take: Callable[[WireRequest, Choices], WireRequest | None],
        *,
        max_retries: int | None = None,
    ) -> Choices:
        """Send a request, and what ``take`` wants to be asked after an answer; return the last.

        A few answers that cannot be used are asked for again. Raises `RefusedError` if this has
        failed, and `EngineError` if no request can succeed now: the account is empty, the limit of
        cost is reached, the endpoint cannot be reached or asks for a long wait.
        """
        most = self._settings.max_retries if max_retries is None else max_retries
        unusable = 0
        while True:
            choices = await self._send(request, most)
            following = take(request, choices)
            if choices.problem is not None:
                if unusable == _MOST_UNUSABLE:
                    said = _with_tries(choices.problem, unusable)
                    raise UnusableError(None, said, is_json=bool(choices.document))
                await asyncio.sleep(backoff(unusable, self._rng))
                unusable += 1
            elif following is None:
                return choices
            request = following or request

    async def _send(self, request: WireRequest, max_retries: int) -> Choices:
        """Send a request until an answer with status 2xx comes."""
        attempt = 0
        while True:
            async with self._slot():
                most = sum(request.most)
                await asyncio.sleep(max(self._requests.take(1), self._tokens.take(most)))
                if time.monotonic() < self._not_before:
                    self._requests.give_back(1)
                    self._tokens.give_back(most)
                    continue
                await self._reserve(request)
                found = await self._try(request, attempt, max_retries)
            if not isinstance(found, Next):
                return found
            if found.wait is not None:
                self._not_before = max(self._not_before, time.monotonic() + found.wait)
            else:
                await asyncio.sleep(backoff(attempt, self._rng))
            attempt += 1

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Wait until the endpoint may be asked, and count a request in flight."""
        async with self._settled:
            while (
                left := self._not_before - time.monotonic()
            ) > 0 or self._in_flight >= self.concurrency.limit:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left if left > 0 else None):
                        await self._settled.wait()
            self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
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
            choices = replace(self.request_format.read(reply.body, request), sent=sent)
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

    def _after_refusal(self, reply: Reply, attempt: int, max_retries: int) -> Next:
        refusal = read_refusal(reply, self._settings)
        last, now = attempt >= max_retries, datetime.now(UTC)
        step = after_refusal(reply.status, reply.headers, refusal.codes, now, last=last)
        if step.step == "again":
            return step
        # The next request would get these as well. Not 403: the key was good, so it is the prompt.
        concerns_all = reply.status in {401, 404, 405} or 300 <= reply.status < 400
        if step.step == "give_up" and (self.probing or not concerns_all):
            said = _with_tries(refusal.sentence, attempt)
            raise RefusedError(reply.status, said, is_json=refusal.is_json)
        way_out = {
            "give_up": "check the API key and the model, and",
            "exhausted": "the account is exhausted: pay in, then",
        }.get(step.step, f"it asks to wait {step.wait or 0:.0f} s: wait, then")
        raise EngineError(
            f"the endpoint {self._settings.base_url} takes no more requests ({refusal.sentence}); "
            f"{way_out} give the same command again; no answer is lost"
        )

    def _after_silence(self, error: UnansweredError, attempt: int, max_retries: int) -> Next:
        said = _with_tries(str(error), attempt)
        if not error.sent and (attempt >= max_retries or not self._reached):
            raise EngineError(
                f"the endpoint {self._settings.base_url} cannot be reached: {said}; check "
                + ("" if self._reached else "setting 'base_url' and ")
                + "that its server runs, and give the same command again"
            )
        if attempt >= max_retries:
            raise RefusedError(None, said)
        return Next("again")


def _with_tries(sentence: str, attempt: int) -> str:
    return f"{sentence} (after {attempt + 1} tries)" if attempt else sentence
