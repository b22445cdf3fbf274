"""Requests over HTTP within every limit, and tried again; the only file that uses httpx."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import inf, isfinite
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from mia_batch.environment import Proxy, build_trust, find_proxy
from mia_batch.errors import EngineError, SettingsError, describe_error
from mia_batch.evidence.endpoint import wire
from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.evidence.endpoint.stream import EventReader
from mia_batch.evidence.endpoint.wire import Reply

if TYPE_CHECKING:
    import ssl

    import httpx

_SECONDS_TO_CONNECT = 30.0
_SECONDS_TO_CLOSE = 1.0  # of a stream that has said its last word
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

    def __init__(self, settings: wire.ClientSettings, path: str = "") -> None:
        import httpx  # here, because whoever has no endpoint does not need it

        self._settings = settings
        n_connections = settings.max_concurrency
        address = urlsplit(settings.base_url)
        # The address may end with the ``path`` that is asked
        root = address.path.rstrip("/").removesuffix(path)
        headers = {"Accept-Encoding": "identity"}
        headers |= _key_header(settings.api_key, address)
        # What httpx reads of the environment by itself it takes to be sound: a proxy
        # that this host has no use for, or a missing file, end it in an error of its
        # own. It knows no ranges in NO_PROXY.
        self.proxy = find_proxy(address)
        addresses = [settings.base_url]
        if self.proxy is not None:
            addresses.append(self.proxy.url)
        trust = build_trust(urlsplit(url).scheme for url in addresses)
        self._client = httpx.AsyncClient(
            base_url=urlunsplit(address._replace(path=root, query="")),
            params=tuple(parse_qsl(address.query, keep_blank_values=True)),
            headers=headers,
            timeout=httpx.Timeout(
                settings.timeout,
                connect=min(settings.timeout, _SECONDS_TO_CONNECT),
            ),
            limits=httpx.Limits(
                max_connections=n_connections,
                max_keepalive_connections=n_connections,
            ),
            follow_redirects=False,
            trust_env=False,
            verify=True if trust is None else trust,
            proxy=_build_proxy(self.proxy, trust),
        )
        self.aclose = self._client.aclose

    async def send(
        self, path: str, payload: Mapping[str, object] | None = None
    ) -> Reply:
        """Post JSON to a path below the base address, or get it; a `Reply` whatever its status."""
        # A whole address in place of the path is asked as it is, with the key.
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
            unconnected = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
            unsent = isinstance(error, unconnected)
            cause = self._settings.redact(str(error) or type(error).__name__)
            sentence = f"the connection was cut ({cause})"
            if unsent:
                route = ""
                if self.proxy is not None:
                    route = f" through the proxy {self.proxy.shown_url}"
                sentence = f"no connection{route} ({cause})"
            elif is_late:
                sentence = f"no answer came within {self._settings.timeout:g} s"
            raise UnansweredError(sentence, sent=not unsent) from None
        return Reply(status=response.status_code, headers=response.headers, body=body)


def _build_proxy(proxy: Proxy | None, trust: ssl.SSLContext | None) -> Any:
    """Build what httpx takes for a proxy; its type is not known before httpx is imported."""
    import httpx

    if proxy is None:
        return None
    is_encrypted = urlsplit(proxy.url).scheme == "https"
    try:
        return httpx.Proxy(proxy.url, ssl_context=trust if is_encrypted else None)
    except (httpx.InvalidURL, ValueError) as error:
        raise SettingsError(
            f"the environment variable {proxy.variable} is {proxy.shown_url!r}, which is"
            f" not an address of a proxy ({describe_error(error)}); correct or unset it"
        ) from None


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
    kind = response.headers.get("content-type", "").strip().lower()
    events = EventReader() if kind.startswith("text/event-stream") else None
    body = bytearray()
    chunks = response.aiter_raw()
    async for chunk in chunks:
        piece = chunk
        if unpacker is not None:
            try:
                piece = unpacker.decompress(chunk, _MOST_BYTES + 1)
            except zlib.error as error:
                raise DecodingError(
                    f"an answer that cannot be unpacked: {error}"
                ) from error
        body += piece
        if len(body) > _MOST_BYTES:
            raise DecodingError(f"an answer of more than {_MOST_BYTES >> 20} MiB")
        if events is not None:
            events.feed(piece)
            if events.is_done:
                await _await_end(chunks)
                break
    return bytes(body)


async def _await_end(chunks: AsyncIterator[bytes]) -> None:
    """Let a stream that has said all end its connection in order, which then serves again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS_TO_CLOSE):
            async for _ in chunks:
                pass


_START = 8


class Concurrency:
    """A limit, from 1 to ``maximum``, that finds what the endpoint can take."""

    # It grows by one with each answer until the endpoint first refuses, then by one
    # with each round of answers; each round of refusals halves it.

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._limit = float(min(maximum, _START))
        self.round = 0  # halvings so far; a request remembers it from when it was sent

    @property
    def limit(self) -> int:
        return int(self._limit)

    def succeeded(self) -> None:
        step = 1.0 / self._limit if self.round else 1.0
        self._limit = min(float(self._maximum), self._limit + step)

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
        """Reserve requests or tokens; return the seconds to wait before they may be used."""
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


class NextStep(NamedTuple):
    """What to do after a failure."""

    # ``give_up``: this request has failed; ``exhausted``: the account is empty;
    # ``later``: the endpoint asks for a longer wait than anyone should stand by for.

    step: Literal["again", "give_up", "exhausted", "later"]
    wait: float | None = None  # seconds, as the endpoint asks of every request


def choose_next_step(
    status: int,
    headers: Mapping[str, str],
    codes: frozenset[str],
    now: datetime,
    *,
    last: bool,
) -> NextStep:
    """Choose what to do after a reply with an error status."""
    if status == 402 or codes & _EXHAUSTED:
        return NextStep("exhausted")
    # ``x-should-retry`` is followed where it is sent, else the status.
    should_retry = status in _RETRIED or status >= 500
    wish = headers.get("x-should-retry", "")
    if wish in ("true", "false"):
        should_retry = wish == "true"
    if last or not should_retry:
        return NextStep("give_up")
    wait = stated_wait(headers, now)
    is_short = wait is None or wait <= _LONGEST_STATED_WAIT
    return NextStep("again" if is_short else "later", wait)


def concerns_all(status: int) -> bool:
    """Return whether the next request would get this error status as well."""
    # Not 403: the key was good, so it is the prompt.
    return status in {401, 404, 405} or 300 <= status < 400


def backoff(attempt: int, rng: Random) -> float:
    """Draw seconds to wait where the endpoint names none: full jitter over a doubling span."""
    span = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(attempt, 16))
    return rng.uniform(0.0, span)


def stated_wait(headers: Mapping[str, str], now: datetime) -> float | None:
    """Read the seconds to wait from ``retry-after-ms`` or ``retry-after`` (RFC 9110, 10.2.3)."""
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


# Times that an unusable answer is repeated; each may have been paid for
_MOST_UNUSABLE = 2


class RequestRunner:
    """Sends requests of one format to an endpoint within every limit."""

    def __init__(
        self, request_format: wire.RequestFormat, journal: Journal, rng: Random
    ) -> None:
        settings = request_format.settings
        self.request_format = request_format
        self.journal = journal
        self.probing = False
        self._settings = settings
        self.transport = Transport(settings, request_format.path)
        self.rng = rng
        self.ledger = wire.Ledger(
            settings, journal.spent(), journal.spent(by_batch=True)
        )
        self.concurrency = Concurrency(settings.max_concurrency)
        self._requests = TokenBucket(settings.requests_per_minute, time.monotonic)
        self._tokens = TokenBucket(settings.tokens_per_minute, time.monotonic)
        self._in_flight = 0
        self._not_before = 0.0  # the endpoint asks to wait until then
        self._reached = False
        self._answered = False
        self._settled = asyncio.Condition()

    async def complete(
        self,
        request: wire.WireRequest,
        take: Callable[[wire.WireRequest, wire.Choices], wire.WireRequest | None],
        *,
        check: Callable[[wire.WireRequest, wire.Choices], Awaitable[None]]
        | None = None,
        max_retries: int | None = None,
    ) -> wire.Choices:
        """Send a request, and what ``take`` wants to be asked after an answer; return the last."""
        # A few answers that cannot be used are asked for again. ``check`` raises
        # `RefusedError` for one that is no evidence, before it is taken.
        if max_retries is None:
            max_retries = self._settings.max_retries
        n_unusable = 0
        while True:
            choices = await self._send(request, max_retries)
            if check is not None:
                await check(request, choices)
            following = take(request, choices)
            if choices.problem is not None:
                if n_unusable == _MOST_UNUSABLE:
                    sentence = _with_tries(choices.problem, n_unusable)
                    raise RefusedError(
                        None, sentence, is_json=bool(choices.document), unusable=True
                    )
                await asyncio.sleep(backoff(n_unusable, self.rng))
                n_unusable += 1
            elif following is None:
                return choices
            request = following or request

    async def _send(self, request: wire.WireRequest, max_retries: int) -> wire.Choices:
        attempt = 0
        n_tokens = sum(request.limit)
        while True:
            async with self._slot():
                request_wait = self._requests.take(1)
                token_wait = self._tokens.take(n_tokens)
                await asyncio.sleep(max(request_wait, token_wait))
                if time.monotonic() < self._not_before:
                    self._requests.give_back(1)
                    self._tokens.give_back(n_tokens)
                    continue
                await self._reserve(request)
                is_last = attempt >= max_retries
                outcome = await self._try(request, attempt, last=is_last)
            if isinstance(outcome, wire.Choices):
                return outcome
            if outcome.wait is not None:
                pause_end = time.monotonic() + outcome.wait
                self._not_before = max(self._not_before, pause_end)
            else:
                await asyncio.sleep(backoff(attempt, self.rng))
            attempt += 1

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Wait until the endpoint may be asked, and count a request in flight."""
        async with self._settled:
            while True:
                wait = self._not_before - time.monotonic()
                if wait <= 0 and self._in_flight < self.concurrency.limit:
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait if wait > 0 else None):
                        await self._settled.wait()
            self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            async with self._settled:
                self._settled.notify_all()

    async def _reserve(self, request: wire.WireRequest) -> None:
        """Wait until the most that a request can cost is within the limit."""
        ledger = self.ledger
        async with self._settled:
            await self._settled.wait_for(
                lambda: ledger.fits(request.limit) or ledger.idle
            )
            if not ledger.fits(request.limit):
                raise wire.CostLimitError(
                    f"max_cost= is {self._settings.max_cost:g}, of which"
                    f" {ledger.spent:.6g} is spent, and the next request could pass it;"
                    " give the same command with a higher max_cost= to go on; no"
                    " answer is lost"
                )
            ledger.reserve(request.limit)

    async def _try(
        self, request: wire.WireRequest, attempt: int, *, last: bool
    ) -> wire.Choices | NextStep:
        sent_in_round = self.concurrency.round
        # Of an answer that is lost on its way nobody knows the price
        tokens = request.limit
        sent_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            reply = await self.transport.send(self.request_format.path, request.payload)
            self._reached = True
            choices = self.read(reply, request)
            if choices is None:
                tokens = wire.Tokens(0, 0)
                if reply.status == 429:
                    self.concurrency.refused(sent_in_round)
                return self._after_refusal(reply, attempt, last=last)
            self._answered = True
            self.concurrency.succeeded()
            choices = replace(choices, sent_at=sent_at)
            tokens = choices.tokens or tokens
        except UnansweredError as error:
            if error.sent:
                self.journal.record(b"", {}, tokens)
            else:
                tokens = wire.Tokens(0, 0)
            sentence = _with_tries(str(error), attempt)
            if not error.sent and (last or not self._reached):
                raise self._build_unreachable(sentence) from None
            if last:
                raise RefusedError(None, sentence) from None
            return NextStep("again")
        else:
            return choices
        finally:
            self.ledger.settle(request.limit, tokens)
            self._tokens.give_back(max(0, sum(request.limit) - sum(tokens)))

    def _build_unreachable(self, sentence: str) -> EngineError:
        proxy = self.transport.proxy
        checks = ["that its server runs"]
        if not self._reached:
            checks.insert(0, "base_url=")
        if proxy is not None:
            checks.insert(0, f"the environment variable {proxy.variable}")
        way_out = f"check {' and '.join(checks)}, and"
        if "CERTIFICATE_VERIFY_FAILED" in sentence:
            way_out = (
                "set the environment variable SSL_CERT_FILE to the certificates of the"
                " authority that signed the server's, and"
            )
        return EngineError(
            f"the endpoint {self._settings.base_url} cannot be reached: {sentence};"
            f" {way_out} give the same command again"
        )

    def read(self, reply: Reply, request: wire.WireRequest) -> wire.Choices | None:
        """Read an answer, and what it cost at least; None of an error other than a filter's."""
        if 200 <= reply.status < 300:
            choices = self.request_format.read(reply.body, request)
        else:
            filtered = self.request_format.read_filtered(reply, request)
            if filtered is None:
                return None
            choices = filtered
        if choices.tokens is None:
            return choices
        texts = [part.text for part in choices.continuations.values()]
        tokens = wire.paid_for(choices.tokens, request, texts)
        return replace(choices, tokens=tokens)

    def _after_refusal(self, reply: Reply, attempt: int, *, last: bool) -> NextStep:
        """Return how to try again; raise where the request, or all of them, have failed."""
        refusal = wire.read_refusal(reply, self._settings)
        now = datetime.now(UTC)
        following = choose_next_step(
            reply.status, reply.headers, refusal.codes, now, last=last
        )
        if following.step == "again":
            return following
        is_of_all = concerns_all(reply.status)
        if following.step == "give_up" and (self.probing or not is_of_all):
            sentence = _with_tries(refusal.sentence, attempt)
            raise RefusedError(reply.status, sentence, is_json=refusal.is_json)
        way_out = f"it asks to wait {following.wait or 0:.0f} s: wait, then"
        if following.step == "give_up":
            way_out = "check the API key and the model, and"
            if reply.status in {404, 405} and not self._answered:
                way_out = (
                    "check base_url=, which usually ends with /v1, and model=, and"
                )
        elif following.step == "exhausted":
            way_out = "the account is exhausted: pay in, then"
        raise EngineError(
            f"the endpoint {self._settings.base_url} takes no more requests"
            f" ({refusal.sentence}); {way_out} give the same command again; no answer"
            " is lost"
        )


def _with_tries(sentence: str, attempt: int) -> str:
    return f"{sentence} (after {attempt + 1} tries)" if attempt else sentence
