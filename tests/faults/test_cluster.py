"""Engines on a Ray cluster, whose processes are killed while they work."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import polars as pl
import pytest

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines import registry
from mia_batch.evidence.request import EngineSpec
from mia_batch.extras.ray import EngineWorker, Start, package_version
from mia_batch.models.weights import identify_model
from mia_batch.pipeline.request import check_together
from mia_batch.settings import load_settings
from tests.cluster import Cluster, actors
from tests.counting import counting_engine
from tests.faults.test_kills import (
    WORDS,
    arguments,
    contents,
    parts,
    run_undisturbed,
    write_corpus,
)
from tests.processes import COMMAND, HANGS, children, listening, wait_until

N_BLOCKS = 10
IN_HAND = 2  # blocks of a worker


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Where the counting engine notes what it is asked."""
    folder = tmp_path_factory.mktemp("counting")
    with pytest.MonkeyPatch.context() as patch, counting_engine(folder) as notes:
        patch.setenv("HOME", str(folder / "home"))
        # On a busy machine they would stand still
        patch.setenv("RAY_worker_niceness", "0")
        yield notes
    assert not (folder / "home" / ".ray").exists(), "Ray has left a token there"


@pytest.fixture(scope="module")
def undisturbed(asked, checkpoint, tmp_path_factory):
    """The corpus, the options, the tables of a run without a cluster, how much it asked."""
    folder = tmp_path_factory.mktemp("undisturbed")
    corpus = write_corpus(folder / "corpus.parquet", N_BLOCKS)
    options = ("--model", str(checkpoint), "--probes", "2", "--engine", "counting")
    run_undisturbed(corpus, folder / "run", *options)
    return corpus, options, contents(folder / "run"), n_asked(asked)


@pytest.fixture(scope="module")
def cluster(asked):
    """Two nodes with a core each, as every test leaves it."""
    with Cluster(1, 1) as running:
        yield running


def n_asked(asked):
    n = len(asked.read_text().splitlines())
    asked.unlink()
    return n


@pytest.fixture
def held(asked):
    """While it is there, engines answer as often as stands in it."""
    path = asked.with_name("held")
    yield path
    path.unlink(missing_ok=True)


@contextmanager
def started(corpus, out, *options):
    command = [*COMMAND, *arguments(corpus, out, *options)]
    with (
        out.with_suffix(".log").open("a") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("driver", [False, pytest.param(True, marks=pytest.mark.long)])
def test_whatever_is_killed_the_tables_are_the_same(
    driver, asked, held, undisturbed, cluster, tmp_path
):
    """An actor, another's engine, the machine of the first; before them the driver, too."""
    corpus, options, expected, once = undisturbed
    out = tmp_path / "run"

    def said():
        return out.with_suffix(".log").read_text()

    def wait_for(happened, what):
        wait_until(lambda: happened() or process.poll() is not None, what)
        assert process.poll() is None, said()

    first, second = cluster.nodes
    options = (*options, "--ray", cluster.address)
    if driver:
        held.write_text("0")
        with started(corpus, out, *options) as process:
            wait_for(lambda: said().count(" is ready on ") == 2, "both are ready")
            held.unlink()
            wait_for(lambda: parts(out), "a part")
    n_ready = out.with_suffix(".log").exists() and said().count(" is ready on ")
    held.write_text("0")
    with started(corpus, out, *options) as process:
        wait_for(lambda: said().count(" is ready on ") == n_ready + 2, "both are ready")
        (engine,) = children(actors(second)[0])
        os.kill(engine, signal.SIGKILL)
        os.kill(actors(first)[0], signal.SIGKILL)
        before = parts(out)
        held.unlink()
        wait_for(lambda: parts(out) > before, "a new part")
        cluster.kill_raylet(first)
        cluster.add(1)
        assert process.wait(HANGS) == 0, said()
    assert contents(out) == expected
    # Engines: the driver's, of an actor, its own, of a raylet
    lost = 2 * driver + 1 + 1 + 1
    assert once <= n_asked(asked) <= once * (1 + lost * IN_HAND / N_BLOCKS)
    assert "is lost, its blocks go to others" in said()
    assert "has been started again" in said()


def test_ray_of_this_machine_alone(undisturbed, tmp_path):
    corpus, options, expected, _ = undisturbed
    seen: dict[str, set[str]] = {}
    with started(corpus, tmp_path / "run", *options, "--workers", "2") as process:
        while process.poll() is None:
            for name, hosts in listening(process.pid).items():
                seen.setdefault(name, set()).update(hosts)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        assert process.poll() == 0, (tmp_path / "run.log").read_text()
    assert contents(tmp_path / "run") == expected
    assert {"gcs_server", "raylet"} < seen.keys()
    # Nobody else on the network sees it
    assert set().union(*seen.values()) == {"127.0.0.1"}


@pytest.mark.long
def test_ray_of_this_machine_starts_again_for_the_next_model(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    code = (
        "from mia_batch.extras.ray import connected, room\n"
        "for _ in range(2):\n"
        "    with connected(None, 3):\n"
        "        print(room(1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "3\n3\n", done.stderr
    assert not (tmp_path / ".ray").exists(), "Ray has left a token there"


def spec(checkpoint: Path) -> EngineSpec:
    return EngineSpec(engine="transformers", kind="samples", model=str(checkpoint))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"version": "0.0.1"},
            r"has mia-batch .*, the run 0\.0\.1; install the same there",
        ),
        ({"digest": "0" * 64}, "is another model than the run's: its digest differs"),
    ],
)
def test_a_worker_of_another_version_or_model_is_refused(
    changed, message, checkpoint, tmp_path
):
    same = {
        "version": package_version(),
        "digest": identify_model(str(checkpoint), None).digest,
    }
    given = Start(
        spec=spec(checkpoint),
        tokenizer=None,
        strides=False,
        mark=tmp_path,
        **same | changed,
    )
    with pytest.raises(EngineError, match=message):
        EngineWorker("worker 1").start(given)


def refused(**values):
    with pytest.raises(SettingsError) as error:
        check_together(
            load_settings({"input": "corpus", **values}, use_config=False), []
        )
    return str(error.value)


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda _: None)
    assert "pip install 'mia-batch[ray]'" in refused(model="model", ray="auto")


@pytest.mark.parametrize("workers", [0, -1, "many", "1.5", 10**6])
def test_workers_are_a_number_or_auto(workers):
    said = refused(model="model", workers=workers)
    assert said == f"workers: give a number from 1 to 100000, or auto, not {workers!r}"


def test_an_endpoint_has_no_workers():
    said = refused(model="model", base_url="http://localhost/v1", workers=2)
    assert "engine 'openai' is not started; leave them out" in said


def test_a_cluster_that_is_not_there_is_a_sentence(checkpoint, tmp_path):
    corpus = tmp_path / "corpus.parquet"
    pl.DataFrame({"text": [" ".join(WORDS[:16])]}).write_parquet(corpus)
    options = (
        "--model",
        str(checkpoint),
        "--engine",
        "transformers",
        "--ray",
        "127.0.0.1:1",
    )
    command = [*COMMAND, *arguments(corpus, tmp_path / "run", *options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the Ray cluster at '127.0.0.1:1' cannot be used" in done.stderr
