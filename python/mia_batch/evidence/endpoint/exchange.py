"""A request until it is answered: limits before each try, retries after it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint.answers import read_answer
from mia_batch.evidence.endpoint.cost import Ledger, Tokens
from mia_batch.evidence.endpoint.limits import TokenBucket
from mia_batch.evidence.endpoint.refusal import RefusedError, read_refusal
from mia_batch.evidence.endpoint.retry import Next, after_refusal, backoff
from mia_batch.evidence.endpoint.transport import UnansweredError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from mia_batch.evidence.endpoint.answers import Answer, Form
    from mia_batch.evidence.endpoint.journal import Journal
    from mia_batch.evidence.endpoint.limits import Concurrency
    from mia_batch.evidence.endpoint.refusal import Refusal
    from mia_batch.evidence.endpoint.settings import EndpointSettings
    from mia_batch.evidence.endpoint.transport import Reply, Transport

__all__ = ["Ask", "Exchange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request as it goes over the wire.

    Attributes
    ----------
    payload
        Its fields.
    n
        Continuations asked for.
    most
        The most tokens that it can use.
    """

    payload: Mapping[str, object]
    n: int
    most: Tokens


class Exchange:
    """Sends requests to an endpoint within every limit.

    Parameters
    ----------
    transport
        Connections to the endpoint.
    form
        The kind of endpoint.
    settings
        Limits.
    journal
        What has been spent so far; answers that are lost on their way are put down in it.
    concurrency
        Is told of answers and refusals.
    rng
        Source of the jitter between retries.
    """

    def __init__(
        self,
        transport: Transport,
        form: Form,
        settings: EndpointSettings,
        journal: Journal,
        concurrency: Concurrency,
        rng: Random,
    ) -> None:
        self._transport = transport
        self._form = form
        self._settings = settings
        self._journal = journal
        self._ledger = Ledger(settings, journal.spent())
        self._concurrency = concurrency
        self._rng = rng
        self._requests = _bucket(settings.requests_per_minute)
        self._tokens = _bucket(settings.tokens_per_minute)
        self._not_before = 0.0
        self._reached = False
        self._settled = asyncio.Condition()

    async def ask(self, ask: Ask, *, max_retries: int) -> Answer:
        """Send a request until an answer with status 2xx comes.

        Parameters
        ----------
        ask
            The request.
        max_retries
            Tries beside the first.

        Returns
        -------
        Answer
            Its body, checked; it may have nothing that can be used.

        Raises
        ------
        RefusedError
            If this request has failed.
        EngineError
            If no request can succeed now: the account is empty, the limit of cost is reached, the
            endpoint cannot be reached or asks for a long wait.
        """
        for attempt in count():
            await self._wait_for_turn(ask)
            answer, step = await self._try(ask, attempt, max_retries)
            if answer is not None:
                return answer
            await self._wait(step)
        raise AssertionError  # count() never ends

    async def back_off(self, attempt: int) -> None:
        """Wait as after a failure that names no wait.

        Parameters
        ----------
        attempt
            Tries made before the one that failed.
        """
        await asyncio.sleep(backoff(attempt, self._rng))

    async def _wait_for_turn(self, ask: Ask) -> None:
        """Wait for whatever the endpoint, the limits per minute and the limit of cost say."""
        waits = [0.0]
        if self._requests is not None:
            waits.append(self._requests.take(1))
        if self._tokens is not None:
            waits.append(self._tokens.take(sum(ask.most)))
        await asyncio.sleep(max(waits))
        while (wait := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        async with self._settled:
            await self._settled.wait_for(lambda: self._ledger.fits(ask.most) or self._ledger.idle)
            if not self._ledger.fits(ask.most):
                raise EngineError(self._too_dear())
            self._ledger.reserve(ask.most)

    async def _try(self, ask: Ask, attempt: int, max_retries: int) -> tuple[Answer | None, Next]:
        """Send once; an answer, or what to do next."""
        sent_in_round = self._concurrency.round
        used = ask.most  # of an answer that is lost on its way nobody knows the price
        try:
            reply = await self._transport.post(self._form.path, ask.payload)
            self._reached = True
            if not 200 <= reply.status < 300:
                used = Tokens(0, 0)
                return None, self._after_refusal(reply, attempt, max_retries, sent_in_round)
            self._concurrency.succeeded()
            answer = read_answer(reply.body, ask.n, self._form, self._settings)
            used = answer.used or ask.most
            return answer, Next(step="again")
        except UnansweredError as error:
            if error.sent:
                self._journal.record(b"", {}, used)
            else:
                used = Tokens(0, 0)
            return None, self._after_silence(error, attempt, max_retries)
        finally:
            await self._settle(ask.most, used)

    async def _settle(self, most: Tokens, used: Tokens) -> None:
        self._ledger.settle(most, used)
        if self._tokens is not None:
            self._tokens.give_back(max(0, sum(most) - sum(used)))
        async with self._settled:
            self._settled.notify_all()

    async def _wait(self, step: Next) -> None:
        if step.stated:
            self._not_before = max(self._not_before, time.monotonic() + step.wait)
        else:
            await asyncio.sleep(step.wait)

    def _after_refusal(
        self, reply: Reply, attempt: int, max_retries: int, sent_in_round: int
    ) -> Next:
        if reply.status == 429:
            self._concurrency.refused(sent_in_round)
        refusal = read_refusal(reply, self._settings)
        step = after_refusal(
            reply.status,
            reply.headers,
            refusal.codes,
            attempt=attempt,
            max_retries=max_retries,
            rng=self._rng,
            now=datetime.now(UTC),
        )
        if step.step == "give_up":
            raise RefusedError(refusal.status, _with_tries(refusal.sentence, attempt))
        if step.step != "again":
            raise EngineError(self._closed_for_now(refusal, step))
        return step

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
        return Next(step="again", wait=backoff(attempt, self._rng))

    def _closed_for_now(self, refusal: Refusal, step: Next) -> str:
        if step.step == "exhausted":
            way_out = "the account is exhausted: pay in"
        else:
            way_out = f"it asks to wait {step.wait:.0f} s: wait"
        return (
            f"the endpoint {self._settings.base_url} takes no more requests "
            f"({refusal.sentence}); {way_out}, then give the same command again; "
            "no answer is lost"
        )

    def _too_dear(self) -> str:
        return (
            f"setting 'max_cost' is {self._settings.max_cost:g}, of which {self._ledger.spent:.6g} "
            "is spent, and the next request could pass it; give the same command with a higher "
            "'max_cost' to go on; no answer is lost"
        )


def _bucket(per_minute: float | None) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute, time.monotonic)


def _with_tries(sentence: str, attempt: int) -> str:
    return f"{sentence} (after {attempt + 1} tries)" if attempt else sentence
