"""Files at https:// and http://: ranges, redirects, and what a server refuses."""

from __future__ import annotations

import re
import socket
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urljoin, urlsplit

from mia_batch.corpus.addresses import Address
from mia_batch.corpus.remote import (
    Bytes,
    RemoteFile,
    Stamp,
    TransientError,
    retry,
)
from mia_batch.environment import build_trust, find_proxy
from mia_batch.errors import CorpusError, SettingsError

if TYPE_CHECKING:
    import httpx

_SECONDS_TO_CONNECT = 30.0
_SECONDS_BETWEEN = 60.0  # two pieces of an answer
_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_LATER = (408, 425, 429, 500, 502, 503, 504)
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_WAY_OUT = "check the address, or give a copy on a disk"


class WebClient:
    """Asks servers for files; ``token`` is sent to the host of ``token_for`` alone."""

    def __init__(self, token: str | None = None, token_for: str = "") -> None:
        self._token = token
        self._token_for = _find_origin(urlsplit(token_for))
        self._clients: dict[tuple[str, str], httpx.Client] = {}
        weakref.finalize(self, _close_all, self._clients)

    def find(self, address: Address) -> RemoteFile:
        """Return the file of an address; one request tells its stamp."""
        stamp, has_ranges = retry(address, lambda: self._probe(address))
        return self.build_file(address, stamp, has_ranges=has_ranges)

    def build_file(
        self,
        address: Address,
        stamp: Stamp,
        *,
        url: str = "",
        has_ranges: bool = True,
        expected: str | None = None,
    ) -> RemoteFile:
        """Return the file of an address whose stamp is known, and which lies at ``url``."""

        def ask(start: int, stop: int | None) -> Bytes:
            part = (start, stop) if has_ranges else None
            return self._ask(file, url or address.url, part)

        file = RemoteFile(address, stamp, ask, has_ranges=has_ranges, expected=expected)
        return file

    def _probe(self, address: Address) -> tuple[Stamp, bool]:
        """Ask for the first byte of a file: return its stamp, and whether parts can be asked."""
        with self._opened(address, address.url, {"Range": "bytes=0-0"}) as response:
            total = _parse_total(response)
            if response.status_code == 416 and total == 0:
                return _read_stamp(response, 0), True
            if response.status_code == 206 and total is not None:
                return _read_stamp(response, total), True
            _refuse_status(address, response)
            if response.status_code == 206:
                raise CorpusError(
                    f"{address} cannot be read: its server sends parts without saying how"
                    f" long the whole is; {_WAY_OUT}"
                )
            size = _parse_length(address, response)
            return _read_stamp(response, size), False

    def _ask(
        self, file: RemoteFile, url: str, part: tuple[int, int | None] | None
    ) -> Bytes:
        headers = {}
        if part is not None:
            start, stop = part
            last = "" if stop is None else stop - 1
            headers["Range"] = f"bytes={start}-{last}"
        import httpx

        with self._opened(file.address, url, headers) as response:
            if response.status_code == 416:
                raise file.changed("it has become shorter")
            _refuse_status(file.address, response)
            total = _parse_total(response) if part else None
            if part is not None and (
                response.status_code != 206 or total != file.stamp.size
            ):
                raise file.changed("a part of it was answered otherwise")
            if part is not None and _parse_start(response) != part[0]:
                raise CorpusError(
                    f"{file.address} cannot be read: its server sends other parts than"
                    f" it is asked for; {_WAY_OUT}"
                )
            size = total if part else _parse_length(file.address, response)
            now = _read_stamp(response, size, file.stamp.revision)
            if not now.is_same(file.stamp):
                raise file.changed("its server gives it another ETag, date or size")
            try:
                yield from response.iter_raw()
            except httpx.TransportError as error:
                raise TransientError(_explain(error)) from None

    @contextmanager
    def _opened(
        self, address: Address, url: str, headers: Mapping[str, str]
    ) -> Iterator[httpx.Response]:
        """Send a request and follow its redirects; the body is left to be read."""
        import httpx

        place = urlsplit(url)
        may_be_private = None
        for _ in range(_MOST_REDIRECTS + 1):
            request_headers = {"Accept-Encoding": "identity", **headers}
            if self._token and _find_origin(place) == self._token_for:
                request_headers["Authorization"] = f"Bearer {self._token}"
            try:
                client, is_direct = self._find_client(place)
                is_led = may_be_private is False
                if is_led and _is_private(place, is_direct=is_direct):
                    raise _leads_inside(address, place)
                request = client.build_request(
                    "GET", place.geturl(), headers=request_headers
                )
                response = client.send(request, stream=True)
            except httpx.TransportError as error:
                raise _explain_failure(address, error) from None
            except (httpx.InvalidURL, UnicodeError):
                raise CorpusError(
                    f"{address} cannot be read: it is, or leads to, an address that"
                    f" cannot be used; {_WAY_OUT}"
                ) from None
            try:
                if may_be_private is False and is_direct:
                    _refuse_private_peer(address, place, response)
                if response.status_code not in _REDIRECTS:
                    yield response
                    return
            finally:
                response.close()
            if may_be_private is None:
                may_be_private = _is_private(place, is_direct=is_direct)
            place = _follow(address, place, response.headers.get("location", ""))
        raise CorpusError(
            f"{address} cannot be read: it leads from address to address, more than"
            f" {_MOST_REDIRECTS} times; {_WAY_OUT}"
        )

    def _find_client(self, place: SplitResult) -> tuple[httpx.Client, bool]:
        """Return a client for a host, and whether it is asked without a proxy."""
        import httpx

        proxy = find_proxy(place)
        origin = _find_origin(place)
        if origin not in self._clients:
            schemes = [place.scheme]
            if proxy is not None:
                schemes.append(urlsplit(proxy.url).scheme)
            trust = build_trust(schemes)
            self._clients[origin] = httpx.Client(
                timeout=httpx.Timeout(_SECONDS_BETWEEN, connect=_SECONDS_TO_CONNECT),
                proxy=proxy.url if proxy else None,
                verify=True if trust is None else trust,
                trust_env=False,
                headers={"User-Agent": "mia-batch"},
            )
        return self._clients[origin], proxy is None


def check_library(address: str) -> None:
    if find_spec("httpx") is None:
        raise SettingsError(
            f"{address} needs the library httpx; install it: pip install"
            " 'mia-batch[addresses]'"
        )


def _close_all(clients: dict[Any, Any]) -> None:
    for client in clients.values():
        client.close()


def _find_origin(place: SplitResult) -> tuple[str, str]:
    return place.scheme, place.netloc.lower()


# Redirects: a server outside may not lead into a network that only this machine sees.


def _follow(address: Address, place: SplitResult, location: str) -> SplitResult:
    try:
        target = urlsplit(urljoin(place.geturl(), location))
        is_usable = target.port != 0 and bool(target.hostname)
    except ValueError:
        is_usable = False
        target = place
    if target.scheme not in ("http", "https") or not is_usable or not location:
        raise CorpusError(
            f"{address} cannot be read: it leads to no address of a page; {_WAY_OUT}"
        )
    if "@" in target.netloc:
        raise CorpusError(
            f"{address} cannot be read: it leads to an address with a user's name;"
            f" {_WAY_OUT}"
        )
    if place.scheme == "https" and target.scheme == "http":
        raise CorpusError(
            f"{address} cannot be read: it leads from https:// to http://, where anyone"
            f" between can change it; {_WAY_OUT}"
        )
    return target


def _leads_inside(address: Address, place: SplitResult) -> CorpusError:
    return CorpusError(
        f"{address} cannot be read: it leads to {place.hostname}, which is an address"
        " of this machine or a private network; give that address itself if it is"
        " meant"
    )


def _refuse_private_peer(
    address: Address, place: SplitResult, response: httpx.Response
) -> None:
    """Refuse a server at a private address, whatever its name stood for a moment before."""
    stream = response.extensions.get("network_stream")
    peer = stream.get_extra_info("server_addr") if stream is not None else None
    if peer and not ip_address(str(peer[0]).partition("%")[0]).is_global:
        raise _leads_inside(address, place)


def _is_private(place: SplitResult, *, is_direct: bool) -> bool:
    """Return whether any address of a host is none of the public network."""
    host = place.hostname or ""
    try:
        return not ip_address(host.partition("%")[0]).is_global
    except ValueError:
        pass
    if host == "localhost" or host.endswith(".localhost"):
        return True
    if not is_direct:  # the proxy resolves it
        return False
    try:
        entries = socket.getaddrinfo(host, place.port, type=socket.SOCK_STREAM)
    except OSError:  # the request says so
        return False
    hosts = {str(entry[4][0]).partition("%")[0] for entry in entries}
    return any(not ip_address(host).is_global for host in hosts)


# What an answer says of the file.


def _refuse_status(address: Address, response: httpx.Response) -> None:
    status = response.status_code
    if status in _LATER:
        wait = _parse_wait(response.headers.get("retry-after", ""))
        raise TransientError(f"its server answers with status {status}", wait)
    if status in (401, 403):
        reason = f"access is denied (status {status})"
    elif status in (404, 410):
        reason = f"there is no such file (status {status})"
    elif status not in (200, 206):
        reason = f"its server answers with status {status}"
    else:
        _refuse_encoding(address, response)
        return
    raise CorpusError(f"{address} cannot be read: {reason}; {_WAY_OUT}")


def _refuse_encoding(address: Address, response: httpx.Response) -> None:
    """Refuse a body that was packed on the way, unless its name says that it is packed."""
    encoding = response.headers.get("content-encoding", "identity").lower()
    is_packed = address.suffix.lower() in (".gz", ".zst", ".bz2", ".xz")
    if encoding not in ("identity", "") and not is_packed:
        raise CorpusError(
            f"{address} cannot be read: its server sends it packed as {encoding[:20]!r},"
            f" which it was not asked for; {_WAY_OUT}"
        )


def _parse_wait(value: str) -> float | None:
    return float(value) if re.fullmatch(r"\d{1,6}", value) else None


def _parse_total(response: httpx.Response) -> int | None:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    return int(match[3]) if match and match[3].isdigit() else None


def _parse_start(response: httpx.Response) -> int | None:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    return int(match[1]) if match and match[1] else None


def _parse_length(address: Address, response: httpx.Response) -> int | None:
    """Return the length of a body; None where pieces say when it ends."""
    length = response.headers.get("content-length", "")
    if re.fullmatch(r"\d{1,18}", length):
        return int(length)
    if "chunked" in response.headers.get("transfer-encoding", "").lower():
        return None
    raise CorpusError(
        f"{address} cannot be read: its server does not say how long it is, so a part"
        f" could pass for the whole; give a copy on a disk"
    )


def _read_stamp(
    response: httpx.Response, size: int | None, revision: str | None = None
) -> Stamp:
    modified = response.headers.get("last-modified")
    try:
        if modified is not None:
            modified = parsedate_to_datetime(modified).isoformat()
    except ValueError:
        modified = None
    etag = response.headers.get("etag")
    return Stamp(
        size=size,
        etag=etag[:200] if etag else None,
        version=response.headers.get("x-amz-version-id"),
        modified=modified,
        revision=revision,
    )


def _explain_failure(
    address: Address, error: httpx.TransportError
) -> CorpusError | TransientError:
    if "certificate" in str(error).lower():  # which will not pass
        return CorpusError(
            f"{address} cannot be read: its certificate is not one that is trusted; set"
            " SSL_CERT_FILE to the authorities that you trust"
        )
    return TransientError(_explain(error))


def _explain(error: httpx.TransportError) -> str:
    """Say what failed, in words that hold nothing of the request."""
    import httpx

    if isinstance(error, httpx.ConnectTimeout):
        return "it does not answer"
    if isinstance(error, httpx.TimeoutException):
        return f"it sent nothing for {_SECONDS_BETWEEN:.0f} seconds"
    if isinstance(error, httpx.ConnectError):
        return "it cannot be reached"
    return "the connection was cut"
