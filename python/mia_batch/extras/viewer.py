"""``mia-batch view``: the reports of a folder's runs in a browser of this machine."""

from __future__ import annotations

import hmac
import secrets
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import click

from mia_batch.cli.help import complete_runs
from mia_batch.cli.options import PATH
from mia_batch.errors import SettingsError
from mia_batch.pipeline.listing import list_runs
from mia_batch.pipeline.results import REPORT
from mia_batch.report.html.page import environment

if TYPE_CHECKING:
    from collections.abc import Callable

_HOST = "127.0.0.1"
_LOCAL_NAMES = (_HOST, "localhost")
# A report may be a stranger's: it reaches no other page and no other machine
_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline'; img-src data:; frame-ancestors 'none';"
    " form-action 'none'"
)


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the list of runs and their reports; writes and runs nothing."""

    server_version = "mia-batch"
    sys_version = ""

    def __init__(self, *request: object, folder: Path, token: str) -> None:
        self.folder, self.token = folder, token
        super().__init__(*request)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        token, _, name = unquote(urlsplit(self.path).path)[1:].partition("/")
        # A page elsewhere can have a name of its own lead here
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in _LOCAL_NAMES or not hmac.compare_digest(
            token.encode(), self.token.encode()
        ):
            self.send_error(HTTPStatus.FORBIDDEN, "Open the address that was printed")
        elif not name:
            self._send(render_list(self.folder).encode())
        else:
            self._send_report(name)

    def _send_report(self, name: str) -> None:
        run_names = {path.parent.name for path in self.folder.glob("*/run.json")}
        path = self.folder / name / REPORT
        if name not in run_names or not path.is_file():
            self.send_error(HTTPStatus.NOT_FOUND, "There is no report of that name")
            return
        self._send(path.read_bytes())

    def _send(self, page: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(page)),
            "Content-Security-Policy": _POLICY,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for header, value in headers.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


def render_list(folder: Path) -> str:
    """Render the runs of a folder as a page that loads itself anew while one is unfinished."""
    runs = list_runs(folder)
    rows = [
        {
            "name": run.folder.name,
            "link": quote(run.folder.name, safe=""),
            "written": f"{run.written:%Y-%m-%d %H:%M}",
            "answer": run.answer,
            "has_report": (run.folder / REPORT).is_file(),
        }
        for run in runs
    ]
    is_live = any(run.is_live for run in runs)
    template = environment().get_template("runs.html.jinja")
    return template.render(folder=str(folder), rows=rows, is_live=is_live)


def build_server(folder: Path, port: int, token: str) -> ThreadingHTTPServer:
    handler = partial(_Handler, folder=folder, token=token)
    server = ThreadingHTTPServer((_HOST, port), handler)
    server.daemon_threads = True
    return server


def serve(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serve until the process is stopped."""
    token = secrets.token_urlsafe(16)
    try:
        server = build_server(folder, port, token)
    except OSError as error:
        raise SettingsError(
            f"port= is {port}, which is not free here ({error.strerror}); give another"
            " one, or leave it out"
        ) from error
    with server, suppress(KeyboardInterrupt):
        say(f"http://{_HOST}:{server.server_port}/{token}/ shows the runs in {folder}")
        server.serve_forever(poll_interval=0.2)


@click.command("view")
@click.argument("folder", type=PATH, default=Path("runs"), shell_complete=complete_runs)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of this machine.  [default: a free one]",
)
def view(folder: Path, port: int) -> None:
    """Show the runs of FOLDER (default: runs) in a browser of this machine, live ones too.

    The address that is printed has a secret, so that other users of the machine cannot
    read along. Nothing is written; stop it with Ctrl-C.
    """
    if not folder.is_dir():
        raise click.UsageError(f"{folder} is no folder; give the one that holds runs")
    serve(folder, port, click.echo)
