"""Requests over HTTP within every limit, and tried again; the only file that uses httpx."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import inf, isfinite
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit
from urllib.request import proxy_bypass

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint import wire
from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.evidence.endpoint.wire import Reply

if TYPE_CHECKING:
    import httpx

_SECONDS_TO_CONNECT = 30.0
_MOST_BYTES = 16 << 20  # no honest answer is as large
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # of zlib, by content coding


class UnansweredError(Exception):
    """No whole answer came; ``sent``: the request was sent, so it may have been paid for."""

    def __init__(self, sentence: str, *, sent: bool) -> None:
        super().__init__(sentence)
        self.sent = sent


class RefusedError(Exception):
    """A request has failed after all retries; the sentence is without the key."""

    # ``status`` is None where no answer came or, ``unusable``, none that can be used.

    def __init__(
        self,
        status: int | None,
        sentence: str,
        *,
        is_json: bool = False,
        unusable: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.is_json = is_json
        self.unusable = unusable


class Transport:
    """Connections to one endpoint; redirects are never followed, so the key goes nowhere else."""

    def __init__(self, settings: wire.ClientSettings) -> None:
        import httpx  # here, because whoever has no endpoint does not need it

        self._settings = settings
        timeout, most = settings.timeout, settings.max_concurrency
        address = urlsplit(settings.base_url)
        self._client = httpx.AsyncClient(
            base_url=urlunsplit(address._replace(query="")),
            params=dict(parse_qsl(address.query)),
            headers={"Accept-Encoding": "identity"}
            | _key_header(settings.api_key, address),
            timeout=httpx.Timeout(timeout, connect=min(timeout, _SECONDS_TO_CONNECT)),
            limits=httpx.Limits(max_connections=most, max_keepalive_connections=most),
            follow_redirects=False,
            # httpx prepares every proxy of the environment, even those that this host
            # has no use for, and fails where one needs a package that is not installed.
            trust_env=not proxy_bypass(address.hostname or ""),
        )
        self.aclose = self._client.aclose

    async def send(
        self, path: str, payload: Mapping[str, object] | None = None
    ) -> Reply:
        """Post JSON to a path below the base address, or get it; a `Reply` whatever its status."""
        import httpx

        method = "GET" if payload is None else "POST"
        try:
            # httpx limits each read, which an endpoint that trickles bytes never
            # exceeds
            async with asyncio.timeout(self._settings.timeout):
                async with self._client.stream(method, path, json=payload) as response:
                    body = await _read(response)
        except (TimeoutError, httpx.RequestError) as error:
            is_late = isinstance(error, (TimeoutError, httpx.TimeoutException))
            unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
            cause = self._settings.redact(str(error) or type(error).__name__)
            sentence = (
                f"{'no connection' if unsent else 'the connection was cut'} ({cause})"
            )
            if is_late and not unsent:
                sentence = f"no answer came within {self._settings.timeout:g} s"
            raise UnansweredError(sentence, sent=not unsent) from None
        return Reply(status=response.status_code, headers=response.headers, body=body)


def _key_header(key: str | None, address: SplitResult) -> dict[str, str]:
    if key is None:
        return {}
    if "api-version" in dict(parse_qsl(address.query)):  # as Azure has it
        return {"api-key": key}
    return {"Authorization": f"Bearer {key}"}


async def _read(response: httpx.Response) -> bytes:
    """Read a body, and unpack no more of it than an honest answer has."""
    # httpx would unpack whatever the header says, as often as it says, before any
    # limit.
    from httpx import DecodingError

    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"identity", *_WINDOWS}:
        raise DecodingError(f"an answer packed as {coding!r}, which was not asked for")
    unpacker = zlib.decompressobj(_WINDOWS[coding]) if coding in _WINDOWS else None
    body = bytearray()
    async for chunk in response.aiter_raw():
        try:
            body += (
                chunk
                if unpacker is None
                else unpacker.decompress(chunk, _MOST_BYTES + 1)
            )
        except zlib.error as error:
            raise DecodingError(
                f"an answer that cannot be unpacked: {error}"
            ) from error
        if len(body) > _MOST_BYTES:
            raise DecodingError(f"an answer of more than {_MOST_BYTES >> 20} MiB")
    return bytes(body)


_START = 8


class Concurrency:
    """A limit, from 1 to ``most``, that finds what the endpoint can take."""

    # It grows by one with each answer until the endpoint first refuses, then by one
    # with each round of answers; each round of refusals halves it.

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(most, _START))
        self.round = 0  # halvings so far; a request remembers it from when it was sent

    @property
    def limit(self) -> int:
        return int(self._limit)

    def succeeded(self) -> None:
        step = 1.0 / self._limit if self.round else 1.0
        self._limit = min(float(self._most), self._limit + step)

    def refused(self, sent_in_round: int) -> None:
        """Note a status 429; requests in flight at the last halving do not halve it again."""
        if sent_in_round == self.round:
            self._limit = max(1.0, self._limit / 2.0)
            self.round += 1


class TokenBucket:
    """A bucket that refills evenly over the minute and never saves up for a burst."""

    # Whoever takes from it waits until everything taken before has been refilled. So
    # the amounts taken within any 60 seconds, but for the last, stay below the limit;
    # with an amount of 1 the last is within it as well. ``clock`` gives seconds that
    # only grow.

    def __init__(self, per_minute: float | None, clock: Callable[[], float]) -> None:
        self._rate = inf if per_minute is None else per_minute / 60.0
        self._clock = clock
        self._free_at = clock()

    def take(self, amount: float) -> float:
        """Reserve requests or tokens; seconds to wait before they may be used."""
        now = self._clock()
        start = max(now, self._free_at)
        self._free_at = start + amount / self._rate
        return start - now

    def give_back(self, amount: float) -> None:
        self._free_at -= amount / self._rate


# Which failures of a request are worth another try, and after what time: the rules of
# OpenAI's own Python client, with longer waits and full jitter, as suits batches.

_LONGEST_STATED_WAIT = 120.0  # seconds; for longer ones nobody should stand by
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 60.0  # limits of providers are kept by the minute
_RETRIED = frozenset({408, 409, 429})
_EXHAUSTED = {
    *("insufficient_quota", "billing_hard_limit_reached"),
    *("billing_not_active", "account_deactivated"),
}


class Next(NamedTuple):
    """What to do after a failure."""

    # ``give_up``: this request has failed; ``exhausted``: the account is empty;
    # ``later``: the endpoint asks for a longer wait than anyone should stand by for.

    step: Literal["again", "give_up", "exhausted", "later"]
    wait: float | None = None  # seconds, as the endpoint asks of every request


def after_refusal(
    status: int,
    headers: Mapping[str, str],
    codes: frozenset[str],
    now: datetime,
    *,
    last: bool,
) -> Next:
    if status == 402 or codes & _EXHAUSTED:
        return Next("exhausted")
    # ``x-should-retry`` is followed where it is sent, else the status.
    wished = {"true": True, "false": False}.get(headers.get("x-should-retry", ""))
    if last or not (status in _RETRIED or status >= 500 if wished is None else wished):
        return Next("give_up")
    wait = stated_wait(headers, now)
    return Next(
        "again" if wait is None or wait <= _LONGEST_STATED_WAIT else "later", wait
    )


def backoff(attempt: int, rng: Random) -> float:
    """Seconds to wait where the endpoint names none: full jitter over a doubling span."""
    return rng.uniform(0.0, min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(attempt, 16)))


def stated_wait(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait, from ``retry-after-ms`` or ``retry-after`` (RFC 9110, section 10.2.3)."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        with suppress(ValueError):
            number = float(headers.get(name, ""))
            if isfinite(number) and number >= 0:
                return number / unit
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


_MOST_UNUSABLE = (
    2  # times that an unusable answer is repeated; each may have been paid for
)


class RequestRunner:
    """Sends requests of one format to an endpoint within every limit."""

    def __init__(
        self, request_format: wire.RequestFormat, journal: Journal, rng: Random
    ) -> None:
        self.request_format = request_format
        self.journal = journal
        self.probing = False
        self._settings = settings = request_format.settings
        self.transport = Transport(settings)
        self._rng = rng
        self._ledger = wire.Ledger(settings, journal.spent())
        self.concurrency = Concurrency(settings.max_concurrency)
        limits = (settings.requests_per_minute, settings.tokens_per_minute)
        self._requests, self._tokens = (
            TokenBucket(limit, time.monotonic) for limit in limits
        )
        self._in_flight = 0
        self._not_before = 0.0  # the endpoint asks to wait until then
        self._reached = False
        self._settled = asyncio.Condition()

    async def complete(
        self,
        request: wire.WireRequest,
        take: Callable[[wire.WireRequest, wire.Choices], wire.WireRequest | None],
        *,
        max_retries: int | None = None,
    ) -> wire.Choices:
        """Send a request, and what ``take`` wants to be asked after an answer; return the last."""
        # A few answers that cannot be used are asked for again.
        most = self._settings.max_retries if max_retries is None else max_retries
        unusable = 0
        while True:
            choices = await self._send(request, most)
            following = take(request, choices)
            if choices.problem is not None:
                if unusable == _MOST_UNUSABLE:
                    said = _with_tries(choices.problem, unusable)
                    raise RefusedError(
                        None, said, is_json=bool(choices.document), unusable=True
                    )
                await asyncio.sleep(backoff(unusable, self._rng))
                unusable += 1
            elif following is None:
                return choices
            request = following or request

    async def _send(self, request: wire.WireRequest, max_retries: int) -> wire.Choices:
        attempt, most = 0, sum(request.most)
        while True:
            async with self._slot():
                await asyncio.sleep(
                    max(self._requests.take(1), self._tokens.take(most))
                )
                if time.monotonic() < self._not_before:
                    self._requests.give_back(1)
                    self._tokens.give_back(most)
                    continue
                await self._reserve(request)
                found = await self._try(request, attempt, last=attempt >= max_retries)
            if isinstance(found, wire.Choices):
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

    async def _reserve(self, request: wire.WireRequest) -> None:
        ledger = self._ledger
        async with self._settled:
            await self._settled.wait_for(
                lambda: ledger.fits(request.most) or ledger.idle
            )
            if not ledger.fits(request.most):
                raise EngineError(
                    f"max_cost= is {self._settings.max_cost:g}, of which"
                    f" {ledger.spent:.6g} is spent, and the next request could pass it;"
                    " give the same command with a higher max_cost= to go on; no"
                    " answer is lost"
                )
            ledger.reserve(request.most)

    async def _try(
        self, request: wire.WireRequest, attempt: int, *, last: bool
    ) -> wire.Choices | Next:
        sent_in_round = self.concurrency.round
        # Of an answer that is lost on its way nobody knows the price
        used = request.most
        sent = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            reply = await self.transport.send(self.request_format.path, request.payload)
            self._reached = True
            if not 200 <= reply.status < 300:
                used = wire.Tokens(0, 0)
                if reply.status == 429:
                    self.concurrency.refused(sent_in_round)
                return self._after_refusal(reply, attempt, last=last)
            self.concurrency.succeeded()
            choices = replace(self.request_format.read(reply.body, request), sent=sent)
            if choices.used is not None:
                texts = [each.text for each in choices.found.values()]
                used = wire.paid_for(choices.used, request, texts)
                choices = replace(choices, used=used)
        except UnansweredError as error:
            if error.sent:
                self.journal.record(b"", {}, used)
            else:
                used = wire.Tokens(0, 0)
            said = _with_tries(str(error), attempt)
            if not error.sent and (last or not self._reached):
                raise EngineError(
                    f"the endpoint {self._settings.base_url} cannot be reached: {said};"
                    " check "
                    + ("" if self._reached else "base_url= and ")
                    + "that its server runs, and give the same command again"
                ) from None
            if last:
                raise RefusedError(None, said) from None
            return Next("again")
        else:
            return choices
        finally:
            self._ledger.settle(request.most, used)
            self._tokens.give_back(max(0, sum(request.most) - sum(used)))

    def _after_refusal(self, reply: Reply, attempt: int, *, last: bool) -> Next:
        refusal = wire.read_refusal(reply, self._settings)
        step = after_refusal(
            reply.status, reply.headers, refusal.codes, datetime.now(UTC), last=last
        )
        if step.step == "again":
            return step
        # The next request would get these as well. Not 403: the key was good, so it is
        # the prompt.
        concerns_all = reply.status in {401, 404, 405} or 300 <= reply.status < 400
        if step.step == "give_up" and (self.probing or not concerns_all):
            said = _with_tries(refusal.sentence, attempt)
            raise RefusedError(reply.status, said, is_json=refusal.is_json)
        way_out = {
            "give_up": "check the API key and the model, and",
            "exhausted": "the account is exhausted: pay in, then",
        }.get(step.step, f"it asks to wait {step.wait or 0:.0f} s: wait, then")
        raise EngineError(
            f"the endpoint {self._settings.base_url} takes no more requests"
            f" ({refusal.sentence}); {way_out} give the same command again; no answer"
            " is lost"
        )


def _with_tries(sentence: str, attempt: int) -> str:
    return f"{sentence} (after {attempt + 1} tries)" if attempt else sentence
