"""A Ray cluster whose object store is full while the rows of an audit go through it."""

from contextlib import contextmanager

import numpy as np
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.errors import EngineError
from mia_batch.extras import ray as executor
from mia_batch.extras.ray import connected
from tests.cluster import Cluster
from tests.counting import counting_engine
from tests.faults.test_kills import arguments, contents, run_undisturbed, write_corpus

STORE = 80_000_000  # bytes, about the least that Ray takes
N_BLOCKS = 2
WHY = "Local disk is full"


@pytest.fixture(scope="module")
def undisturbed(checkpoint, tmp_path_factory):
    """The corpus, the options, and the tables of a run without a cluster."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with counting_engine(folder):
        corpus = write_corpus(folder / "corpus.parquet", N_BLOCKS, 500)
        options = [
            "--model",
            str(checkpoint),
            "--engine",
            "counting",
            "--preset",
            "matched",
        ]
        options += ["--prefix-ratio", "0.1", "--samples", "1"]
        run_undisturbed(corpus, folder / "run", *options)
        yield corpus, options, contents(folder / "run")


@contextmanager
def unseen(folder):
    """Lend the mark of a folder that no worker sees, so that rows come to the driver."""
    yield folder / "unseen"


@pytest.mark.long
def test_an_audit_goes_on_where_the_store_spills(undisturbed, tmp_path, monkeypatch):
    import ray
    from ray.exceptions import OutOfDiskError

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_worker_niceness", "0")
    # A disk that is nearly full will do
    monkeypatch.setenv("RAY_local_fs_capacity_threshold", "1")
    monkeypatch.setattr(executor, "mark_folder", unseen)
    corpus, options, expected = undisturbed
    spill, out = tmp_path / "spill", tmp_path / "run"
    head = {"object_store_memory": STORE, "object_spilling_directory": str(spill)}
    with Cluster(1, **head) as cluster, connected(cluster.address):
        held = [ray.put(np.ones(STORE // 8, dtype=np.uint8)) for _ in range(9)]
        asked = arguments(corpus, out, *options, "--ray", cluster.address)
        done = CliRunner().invoke(command, asked)
        assert done.exit_code == 0, done.output
        assert any(path.is_file() for path in spill.rglob("*"))
        assert [ray.get(each).all() for each in held] == [True] * 9
        full = (
            f"Ray's object store is full and cannot spill: {WHY}; free space on its"
            " disk, or"
        )
        with pytest.raises(EngineError, match=full), connected(cluster.address):
            raise OutOfDiskError(WHY)
    assert contents(out) == expected
