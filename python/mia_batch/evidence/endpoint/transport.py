"""One HTTP request and its answer; the only file that uses httpx."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mia_batch.evidence.endpoint.settings import EndpointSettings

__all__ = ["Reply", "Transport", "UnansweredError"]

_SECONDS_TO_CONNECT = 30.0
_MOST_BYTES = 16 << 20  # no honest answer is as large
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # of zlib, by content coding


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer that came whole."""

    status: int
    headers: Mapping[str, str]  # found by names in lower case
    body: bytes  # unpacked


class UnansweredError(Exception):
    """No whole answer came; ``sent``: the request was sent, so it may have been paid for."""

    def __init__(self, sentence: str, *, sent: bool) -> None:
        super().__init__(sentence)
        self.sent = sent


class Transport:
    """Connections to one endpoint; redirects are never followed, so the key goes nowhere else."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        key, timeout, most = settings.api_key, settings.timeout, settings.max_concurrency
        self._client = httpx.AsyncClient(
            base_url=settings.base_url,
            headers={"Accept-Encoding": "identity"}
            | ({} if key is None else {"Authorization": f"Bearer {key}"}),
            timeout=httpx.Timeout(timeout, connect=min(timeout, _SECONDS_TO_CONNECT)),
            limits=httpx.Limits(max_connections=most, max_keepalive_connections=most),
            follow_redirects=False,
        )
        self.aclose = self._client.aclose

    async def send(self, path: str, payload: Mapping[str, object] | None = None) -> Reply:
        """Post JSON to a path below the base address, or get it; a `Reply` whatever its status.

        Raises `UnansweredError` if no answer came, or only a part of it.
        """
        method = "GET" if payload is None else "POST"
        try:
            # httpx limits each read, which an endpoint that trickles bytes never exceeds
            async with asyncio.timeout(self._settings.timeout):
                async with self._client.stream(method, path, json=payload) as response:
                    body = await _read(response)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            sentence = self._explain("no connection", error)
            raise UnansweredError(sentence, sent=False) from None
        except (TimeoutError, httpx.TimeoutException):
            sentence = f"no answer came within {self._settings.timeout:g} s"
            raise UnansweredError(sentence, sent=True) from None
        except httpx.RequestError as error:
            sentence = self._explain("the connection was cut", error)
            raise UnansweredError(sentence, sent=True) from None
        return Reply(status=response.status_code, headers=response.headers, body=body)

    def _explain(self, what: str, error: httpx.RequestError) -> str:
        cause = str(error) or type(error).__name__
        return f"{what} ({self._settings.redact(cause)})"


async def _read(response: httpx.Response) -> bytes:
    """Read a body, and unpack no more of it than an honest answer has.

    httpx would unpack whatever the header says, as often as it says, before any limit.
    """
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"identity", *_WINDOWS}:
        raise httpx.DecodingError(f"an answer packed as {coding!r}, which was not asked for")
    unpacker = zlib.decompressobj(_WINDOWS[coding]) if coding in _WINDOWS else None
    body = bytearray()
    async for chunk in response.aiter_raw():
        try:
            body += chunk if unpacker is None else unpacker.decompress(chunk, _MOST_BYTES + 1)
        except zlib.error as error:
            raise httpx.DecodingError(f"an answer that cannot be unpacked: {error}") from error
        if len(body) > _MOST_BYTES:
            raise httpx.DecodingError(f"an answer of more than {_MOST_BYTES >> 20} MiB")
    return bytes(body)
