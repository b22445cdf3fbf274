"""One HTTP request and its answer; the only file that uses httpx."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import httpx

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from mia_batch.evidence.endpoint.settings import EndpointSettings

__all__ = ["Reply", "Transport", "UnansweredError"]

_SECONDS_TO_CONNECT = 30.0
_MOST_BYTES = 64 << 20  # no honest answer is as large


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP answer that came whole.

    Attributes
    ----------
    status
        HTTP status.
    headers
        Names in lower case.
    body
        The content, decompressed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class UnansweredError(Exception):
    """No whole answer came.

    Parameters
    ----------
    sentence
        What happened, without the key.
    sent
        Whether the request was sent, so that it may have been paid for.
    """

    def __init__(self, sentence: str, *, sent: bool) -> None:
        super().__init__(sentence)
        self.sent = sent


class Transport:
    """Connections to one endpoint; redirects are never followed, so the key goes nowhere else.

    Parameters
    ----------
    settings
        Address, key and time limit.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        key = settings.api_key
        self._client = httpx.AsyncClient(
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(
                settings.timeout, connect=min(settings.timeout, _SECONDS_TO_CONNECT)
            ),
            limits=httpx.Limits(
                max_connections=settings.max_concurrency,
                max_keepalive_connections=settings.max_concurrency,
            ),
            follow_redirects=False,
        )

    async def post(self, path: str, payload: Mapping[str, object]) -> Reply:
        """Send a JSON request.

        Parameters
        ----------
        path
            Below the base address, such as ``/completions``.
        payload
            The request's fields.

        Returns
        -------
        Reply
            The answer, whatever its status.

        Raises
        ------
        UnansweredError
            If none came, or only a part of it.
        """
        return await self._exchange("POST", path, payload)

    async def get(self, path: str) -> Reply:
        """Ask for a resource.

        Parameters
        ----------
        path
            Below the base address, such as ``/models``.

        Returns
        -------
        Reply
            The answer, whatever its status.

        Raises
        ------
        UnansweredError
            If none came, or only a part of it.
        """
        return await self._exchange("GET", path, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def _exchange(
        self, method: str, path: str, payload: Mapping[str, object] | None
    ) -> Reply:
        url = self._settings.base_url.rstrip("/") + path
        try:
            # httpx limits each read, which an endpoint that trickles bytes never exceeds
            async with asyncio.timeout(self._settings.timeout):
                async with self._client.stream(method, url, json=payload) as response:
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
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Reply(status=response.status_code, headers=headers, body=body)

    def _explain(self, what: str, error: httpx.RequestError) -> str:
        cause = str(error) or type(error).__name__
        return f"{what} ({self._settings.redact(cause)})"


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MOST_BYTES:
            msg = f"an answer of more than {_MOST_BYTES >> 20} MiB"
            raise httpx.DecodingError(msg)
    return bytes(body)
