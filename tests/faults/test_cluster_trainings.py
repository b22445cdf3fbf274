"""Models tuned on a Ray cluster, one of whose machines loses a training."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mia_batch.errors import EngineError, RequestError, SettingsError
from mia_batch.extras.ray import _run_call, package_version
from tests.cluster import Cluster, tasks
from tests.processes import HANGS, wait_until
from tests.tuning import LEARNT, contents, make

NAMES = ("shadow-0", "shadow-1")
EPOCHS = 4
SCRIPT = f"""
import sys
from pathlib import Path
from mia_batch.pipeline.sessions import trained
from mia_batch.settings import load_settings
from tests.tuning import LEARNT, making

address, base, folder = sys.argv[1:]
settings = load_settings({{"input": "none", "model": base, "ray": address}}, use_config=False)
wanted = (
    (name, making(base, LEARNT[seed:], seed=seed, epochs={EPOCHS}), Path(folder, name))
    for seed, name in enumerate({NAMES})
)
for name, made in trained(settings, Path(folder), wanted, lambda said: print(said, flush=True)):
    print(name, made.path, made.is_new, len(made.losses), flush=True)
"""


@pytest.mark.long
def test_a_training_that_is_lost_begins_again_and_models_are_the_same(
    checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # On a busy machine they would stand still
    monkeypatch.setenv("RAY_worker_niceness", "0")
    run, said = tmp_path / "run", tmp_path / "said"
    run.mkdir()
    for seed, name in enumerate(NAMES):
        make(checkpoint, tmp_path / name, texts=LEARNT[seed:], seed=seed, epochs=EPOCHS)
    with Cluster(1, 1) as cluster, said.open("w") as out:
        given = [
            sys.executable,
            "-c",
            SCRIPT,
            cluster.address,
            str(checkpoint),
            str(run),
        ]
        with subprocess.Popen(given, stdout=out, stderr=out, cwd=Path.cwd()) as process:
            try:
                wait_until(
                    lambda: (
                        process.poll() is not None or all(map(tasks, cluster.nodes))
                    ),
                    "both are trained",
                )
                os.kill(tasks(cluster.nodes[0])[0], signal.SIGKILL)
                assert process.wait(HANGS) == 0, said.read_text()
            finally:
                process.kill()
    lines = said.read_text().splitlines()
    assert [line for line in lines if " begins again elsewhere: " in line]
    for name in NAMES:
        assert contents(run / name) == contents(tmp_path / name)
        assert f"{name} {run / name} False {EPOCHS}" in lines
        last = [
            line
            for line in lines
            if line.startswith(f"{name}: epoch {EPOCHS} of {EPOCHS}")
        ]
        assert len(last) == 1
    assert sorted(path.name for path in run.iterdir()) == [*NAMES]


def called(function, mark, version=None):
    return [*_run_call(mark, version or package_version(), function, ("given",))]


def test_what_a_machine_cannot_do_has_a_reason(tmp_path):
    def fails(error):
        def function(given, say):
            say(given)
            raise error

        return function

    (nothing,) = called(pytest.fail, tmp_path / "mark")
    assert nothing[1:] == (True, nothing[2])
    assert nothing[2].endswith("does not see the run's folder")
    (other,) = called(pytest.fail, tmp_path, "0.0.1")
    assert other[2].endswith("the run 0.0.1")
    said = called(fails(SettingsError("its base is another")), tmp_path)
    assert said[0] == ("given", False, None)
    assert said[1][2].endswith(", its base is another")
    assert issubclass(SettingsError, RequestError)
    assert called(lambda given, say: say(given), tmp_path) == [
        ("given", False, None),
        ("", True, None),
    ]
    with pytest.raises(EngineError, match="the model cannot be tuned"):
        called(fails(EngineError("the model cannot be tuned")), tmp_path)
