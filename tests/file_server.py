"""An HTTP server of files on loopback, which misbehaves as a test says; and one like the hub."""

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_PIECE = 1 << 16


@dataclass
class Behaviour:
    """How the server answers requests for files."""

    has_ranges: bool = True
    has_etag: bool = True
    chunked: bool = False
    says_length: bool = True
    # Bytes of a body after which the connection is cut, of the first requests
    cut_after: int | None = None
    n_cut: int = 0
    # Answers in place of the first ones: status, headers
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    seconds_a_piece: float = 0.0
    longer_by: int = 0  # bytes that the length is said to have too many
    starts_at: int = 0  # bytes by which parts are shifted


@dataclass(frozen=True)
class Request:
    path: str
    range: str | None
    headers: dict[str, str]


class FileServer:
    """Files by their path, each with an ETag by its content."""

    def __init__(self) -> None:
        self.files: dict[str, bytes | Callable[[], Any]] = {}
        self.redirects: dict[str, str] = {}
        self.listings: dict[str, Any] = {}  # answers in JSON
        self.behaviour = Behaviour()
        self.requests: list[Request] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._build_handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def n_bytes_asked(self) -> int:
        """Bytes of all parts that were asked for."""
        total = 0
        for request in self.requests:
            if request.range:
                start, _, last = request.range.removeprefix("bytes=").partition("-")
                total += int(last) - int(start) + 1
        return total

    def _build_handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.answer(self)

            do_HEAD = do_GET

            def handle(self) -> None:
                with suppress(
                    ConnectionError, ssl.SSLError
                ):  # who asked has what it wants
                    super().handle()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def encrypt(self, certificate: Path) -> str:
        """Answer to https:// from now on; return the address."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        return self.url.replace("http://", "https://")

    @contextmanager
    def running(self) -> Iterator["FileServer"]:
        thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path)
        asked_range = handler.headers.get("Range")
        self.requests.append(Request(handler.path, asked_range, dict(handler.headers)))
        if path in self.listings:
            return self._send(handler, 200, json.dumps(self.listings[path]).encode())
        if path in self.redirects:
            headers = {"Location": self.redirects[path]}
            return self._send(handler, 302, b"", headers)
        if self.behaviour.refusals:
            status, headers = self.behaviour.refusals.pop(0)
            return self._send(handler, status, b"no", headers)
        content = self.files.get(path)
        if callable(content):
            content = content()
        if content is None:
            return self._send(handler, 404, b"there is none")
        return self._send_file(handler, content, asked_range)

    def _send_file(
        self, handler: BaseHTTPRequestHandler, content: bytes, asked_range: str | None
    ) -> None:
        behaviour = self.behaviour
        headers = dict(behaviour.headers)
        if behaviour.has_etag:
            headers["ETag"] = f'"{hashlib.md5(content).hexdigest()}"'
            headers["Last-Modified"] = "Sat, 01 Aug 2026 12:00:00 GMT"
        if asked_range is None or not behaviour.has_ranges:
            return self._send(handler, 200, content, headers)
        start, _, last = asked_range.removeprefix("bytes=").partition("-")
        first = int(start) + behaviour.starts_at
        stop = min(int(last) + 1 if last else len(content), len(content))
        if first >= len(content):
            headers["Content-Range"] = f"bytes */{len(content)}"
            return self._send(handler, 416, b"", headers)
        headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(content)}"
        return self._send(handler, 206, content[first:stop], headers)

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
    ) -> None:
        behaviour = self.behaviour
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        is_chunked = behaviour.chunked and status == 200
        if is_chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        elif behaviour.says_length:
            length = len(body) + behaviour.longer_by
            handler.send_header("Content-Length", str(length))
        else:
            handler.send_header("Connection", "close")
            handler.close_connection = True
        handler.end_headers()
        if handler.command == "HEAD":
            return
        limit = len(body)
        if behaviour.n_cut and behaviour.cut_after is not None and limit > 1:
            behaviour.n_cut -= 1
            limit = min(limit, behaviour.cut_after)
        try:
            for start in range(0, limit, _PIECE):
                piece = body[start : min(start + _PIECE, limit)]
                frame = b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece
                handler.wfile.write(frame)
                if behaviour.seconds_a_piece:
                    time.sleep(behaviour.seconds_a_piece)
            if is_chunked and limit == len(body):
                handler.wfile.write(b"0\r\n\r\n")
        except OSError:  # who asked has what it wants
            handler.close_connection = True
        if limit < len(body) or behaviour.longer_by:
            handler.close_connection = True


def serve_data_set(
    server: FileServer, repository: str, commit: str, files: dict[str, bytes]
) -> None:
    """Serve files as a data set of the hub does: its interface, and its addresses of files."""
    interface = f"/api/datasets/{repository}"
    for revision in ("main", commit):
        server.listings[f"{interface}/revision/{revision}"] = {
            "id": repository,
            "sha": commit,
        }
    server.listings[interface] = {"id": repository, "sha": commit}
    folders = {""}
    for path in files:
        names = path.split("/")[:-1]
        folders |= {"/".join(names[: n + 1]) for n in range(len(names))}
    for folder in folders:
        start = f"{folder}/" if folder else ""
        entries = [
            _describe(path, content)
            for path, content in files.items()
            if path.startswith(start)
        ]
        place = f"{interface}/tree/{commit}" + (f"/{folder}" if folder else "")
        server.listings[place] = entries
    for path, content in files.items():
        server.files[f"/blobs/{path}"] = content
        resolved = f"/datasets/{repository}/resolve/{commit}/{path}"
        server.redirects[resolved] = f"{server.url}/blobs/{path}?X-Signature=secret"


def _describe(path: str, content: bytes) -> dict[str, Any]:
    sha256 = hashlib.sha256(content).hexdigest()
    return {
        "type": "file",
        "path": path,
        "size": len(content),
        "oid": hashlib.sha1(content).hexdigest(),
        "lfs": {"oid": sha256, "size": len(content), "pointerSize": 134},
    }


def find_query(request: Request) -> dict[str, list[str]]:
    return parse_qs(urlsplit(request.path).query)
