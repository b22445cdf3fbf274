"""``mia-batch view``: a list of runs and their reports, for this machine and this user alone."""

import http.client
import shutil
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from mia_batch.errors import SettingsError
from mia_batch.extras.viewer import build_server, render_list, serve
from mia_batch.pipeline import Run
from mia_batch.pipeline.folder import AuditFolder
from mia_batch.pipeline.listing import list_runs

TOKEN = "a-secret"


@pytest.fixture
def runs(recorded_books, tmp_path):
    shutil.copytree(recorded_books / "run", tmp_path / "runs" / "books <b>")
    return tmp_path / "runs"


@contextmanager
def serving(folder):
    with build_server(folder, 0, TOKEN) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def ask(port, path, host="127.0.0.1"):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers={"Host": f"{host}:{port}"})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response, body


def test_runs_are_listed_with_their_answers_and_reports_open(runs):
    run = Run(runs / "books <b>")
    run.report()
    with serving(runs) as port:
        response, page = ask(port, f"/{TOKEN}/")
        assert response.status == 200
        assert '<a href="books%20%3Cb%3E">books &lt;b&gt;</a>' in page
        assert run.answer.split(",")[0] in page
        assert 'http-equiv="refresh"' not in page
        response, page = ask(port, f"/{TOKEN}/books%20%3Cb%3E")
        assert response.status == 200
        assert page == run.report().read_text("utf-8")
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("sandbox allow-scripts; default-src 'none';")


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/", "127.0.0.1", 403),
        ("/guess/", "127.0.0.1", 403),
        (f"/{TOKEN}/", "evil.example", 403),
        (f"/{TOKEN}/", "localhost", 200),
        (f"/{TOKEN}/..%2F..%2Fetc", "127.0.0.1", 404),
        (f"/{TOKEN}/books%20%3Cb%3E%2Frun.json", "127.0.0.1", 404),
        (f"/{TOKEN}/absent", "127.0.0.1", 404),
    ],
)
def test_only_who_has_the_address_sees_reports_and_nothing_else(
    runs, path, host, status
):
    Run(runs / "books <b>").report()
    with serving(runs) as port:
        assert ask(port, path, host)[0].status == status


def test_what_is_unfinished_or_damaged_is_listed_too(runs):
    shutil.copytree(runs / "books <b>", runs / "live")
    (runs / "live" / "rollup.parquet").unlink()
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    live = Run(runs / "live")
    with AuditFolder(live.folder).held():
        answers = {run.folder.name: run.answer for run in list_runs(runs)}
        assert 'http-equiv="refresh" content="10"' in render_list(runs)
    n_answers = sum(len(live[name]) for name in ("samples", "logprobs"))
    assert answers["live"] == f"running; {n_answers} answers are stored"
    assert answers["books <b>"] == Run(runs / "books <b>").answer
    assert "run.json" in answers["broken"]
    stopped = {run.folder.name: run.answer for run in list_runs(runs)}["live"]
    assert stopped == f"stopped; its command goes on; {n_answers} answers are stored"
    assert list_runs(Path(runs / "absent")) == []


def test_a_port_that_is_taken_is_refused(runs):
    with serving(runs) as port, pytest.raises(SettingsError, match="is not free here"):
        serve(runs, port, print)
