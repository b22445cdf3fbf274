"""Finished runs of each kind, only to be read; copies of them, which a test may change."""

from contextlib import ExitStack
from typing import Any

import pytest

from mia_batch.evidence import process
from mia_batch.extras.tune.jobs import TrainingConfig
from mia_batch.observer import Observer
from tests import runs
from tests.hostile_server import MODEL, HostileServer
from tests.runs import Finished, documents, finished


class Listener(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def stage(self, sentence: str) -> None:
        self.sentences.append(sentence)


@pytest.fixture(autouse=True, scope="module")
def key():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-never-to-be-seen")
        yield


@pytest.fixture(scope="session")
def texts(checkpoint, shared_folder) -> Finished:
    """Samples of labelled texts by a model on this machine."""
    return finished(
        shared_folder, "texts", lambda folder: runs.of_texts(folder, checkpoint)
    )


@pytest.fixture(scope="session")
def probes(checkpoint, shared_folder) -> Finished:
    return finished(
        shared_folder, "probes", lambda folder: runs.of_probes(folder, checkpoint)
    )


@pytest.fixture(scope="session")
def views(checkpoint, shared_folder) -> Finished:
    return finished(
        shared_folder, "views", lambda folder: runs.of_every_view(folder, checkpoint)
    )


@pytest.fixture(scope="session")
def walks(shared_folder) -> Finished:
    return finished(shared_folder, "walks", runs.of_walks, runs.RecitingOneBook())


@pytest.fixture(scope="session")
def controls(shared_folder) -> Finished:
    return finished(
        shared_folder, "controls", runs.of_controls, runs.RecitingPassages()
    )


@pytest.fixture(scope="session")
def tuned(shared_folder) -> Finished:
    return finished(shared_folder, "tuned", runs.of_tuning)


@pytest.fixture(scope="session")
def books(recorded_books) -> Finished:
    """A recording of continuations of two unlabelled books."""
    paths = {"input": "books", "samples_from": "made.parquet", "out": "run"}
    return Finished(
        {
            name: str(recorded_books / relative_path)
            for name, relative_path in paths.items()
        },
        None,
        0,
    )


@pytest.fixture(scope="session")
def small_audit(texts):
    return texts.settings, texts.run


@pytest.fixture
def copied_of(tmp_path):
    """Copy a finished run: settings, run, and what its endpoint is asked from then on."""
    with ExitStack() as open_until_the_end:
        yield lambda shared_run: open_until_the_end.enter_context(
            shared_run.copied(tmp_path)
        )


@pytest.fixture
def copied(texts, copied_of):
    settings, _, _ = copied_of(texts)
    return settings


@pytest.fixture
def request_for(tmp_path):
    """Settings of an audit of a server."""
    documents().write_parquet(tmp_path / "corpus.parquet")

    def settings(
        server: HostileServer, out: str = "run", **changed: Any
    ) -> dict[str, Any]:
        return {
            "input": str(tmp_path / "corpus.parquet"),
            "model": MODEL,
            "base_url": server.url,
            "report": False,
            "out": str(tmp_path / out),
        } | changed

    return settings


@pytest.fixture
def nothing_starts(monkeypatch):
    def start(*_: object, **__: object) -> None:
        pytest.fail("something was started")

    monkeypatch.setattr(process, "_spawn", start)
    monkeypatch.setattr(TrainingConfig, "train", start)
