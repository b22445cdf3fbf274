from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec
from tests.checkpoints import BOS_ID, CONTEXT, change
from tests.engine_conformance import answers, outputs, request
from tests.processes import HANGS, is_alive, wait_until_gone


def start(checkpoint: Path, folder: Path, **changes: Any) -> EngineProcess:
    spec = EngineSpec(engine="transformers", kind="samples", model=str(checkpoint), **changes)
    return EngineProcess.start(spec, log=folder / "engine.log")


if TYPE_CHECKING:
    from pathlib import Path

LONG = {"n": 200, "max_tokens": CONTEXT - 2}


def test_a_killed_worker_is_an_error_at_once(checkpoint: Path, tmp_path: Path):
    with start(checkpoint, tmp_path) as engine:
        engine.submit(request(0, [BOS_ID], **LONG))
        assert engine.results(timeout=0.2) == []
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"was killed, most likely .* out of memory; take a"):
            engine.results()
        with pytest.raises(EngineError, match="was killed"):
            engine.submit(request(1, [BOS_ID]))
        with pytest.raises(EngineError, match="was killed"):
            engine.results()


def test_a_crash_loses_nothing_that_was_finished_and_is_explained(checkpoint: Path, tmp_path: Path):
    with start(checkpoint, tmp_path) as engine:
        engine.submit(request(0, [BOS_ID], max_tokens=1))
        assert engine._connection.poll(HANGS)
        os.kill(engine._process.pid, signal.SIGSEGV)
        engine._process.wait()
        assert [result.request_id for result in engine.results()] == [0]
        match = f"ended by SIGSEGV .*whole log is in {tmp_path}/engine.log"
        with pytest.raises(EngineError, match=match):
            engine.results()


SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(2)
torch.ones(500, 500) @ torch.ones(500, 500)
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec
from tests.engine_conformance import outputs, request

engine = EngineProcess.start(
    EngineSpec(engine="transformers", kind="samples", model=sys.argv[1]), log=Path(sys.argv[2])
)
print(engine._process.pid)
print(outputs(engine, [request(0, [0], seed=7, n=9)]), flush=True)
engine.submit(request(1, [0], n=200, max_tokens=200))
engine.results()
"""


def test_an_engine_works_in_any_script_and_dies_with_it(
    checkpoint: Path, tmp_path: Path, transformers_engine: EngineProcess
):
    """A script without a main guard that has used torch, killed while its engine works."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, script, checkpoint, tmp_path / "engine.log"],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as running:
        assert running.stdout is not None
        worker = int(running.stdout.readline())
        said = running.stdout.readline().strip()
        assert is_alive(worker)
        running.kill()
    assert said == str(outputs(transformers_engine, [request(0, [0], seed=7, n=9)]))
    wait_until_gone(worker)


def test_closing_a_busy_engine_takes_seconds_and_ends_it(checkpoint: Path, tmp_path: Path):
    engine = start(checkpoint, tmp_path)
    for i in range(50):
        engine.submit(request(i, [BOS_ID], **LONG))
    engine.close()
    assert not is_alive(engine._process.pid)
    engine.close()
    with pytest.raises(EngineError, match="has been closed"):
        engine.submit(request(0, [BOS_ID]))
    with pytest.raises(EngineError, match="has been closed"):
        engine.results()


def test_an_engine_that_an_error_leaves_behind_is_not_waited_for(checkpoint: Path, tmp_path: Path):
    engine = start(checkpoint, tmp_path)
    os.kill(engine._process.pid, signal.SIGSTOP)  # it would not answer a request to end
    engine.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not is_alive(engine._process.pid)


def test_interrupts_are_the_parents_business(transformers_engine: EngineProcess):
    os.killpg(transformers_engine._process.pid, signal.SIGINT)
    assert len(answers(transformers_engine, [request(0, [BOS_ID])])) == 1


def test_an_idle_engine_waits_and_then_goes_on(transformers_engine: EngineProcess):
    assert transformers_engine.results(timeout=0.01) == []
    assert len(answers(transformers_engine, [request(0, [BOS_ID])])) == 1


@pytest.mark.parametrize("prompt", [[BOS_ID] * CONTEXT, [BOS_ID]], ids=["refused", "answered"])
def test_any_number_of_requests_can_wait_while_nobody_reads(
    transformers_engine: EngineProcess, prompt: list[int]
):
    n = 30_000 if len(prompt) == CONTEXT else 2_000
    found = answers(transformers_engine, (request(i, prompt, max_tokens=1) for i in range(n)))
    assert sorted(found) == list(range(n))


def test_a_wrong_setting_arrives_as_it_was_raised(checkpoint: Path, tmp_path: Path):
    with pytest.raises(SettingsError, match="'tensor_parallel_size'"):
        start(checkpoint, tmp_path, tensor_parallel_size=2)


def test_a_model_that_cannot_start_names_its_cause_and_the_log(tmp_path: Path):
    with pytest.raises(EngineError, match=rf"cannot load .* \(\w+: .*\); .*log is {tmp_path}"):
        start(tmp_path / "nothing", tmp_path)


OF_A_HUB = """
import sys
from pathlib import Path
from mia_batch.errors import SettingsError
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec
spec = EngineSpec(engine="transformers", kind="samples", model="some/model")
try:
    EngineProcess.start(spec, log=Path(sys.argv[1]))
except SettingsError as error:
    print(error)
"""


def test_files_that_a_hub_had_are_checked_once_they_are_here(checkpoint: Path, tmp_path: Path):
    cached = tmp_path / "models--some--model"
    snapshot = shutil.copytree(checkpoint, cached / "snapshots" / "0123")
    change(snapshot, lambda own: {name: own[name] for name in own if name != "lm_head.weight"})
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")
    done = subprocess.run(
        [sys.executable, "-c", OF_A_HUB, tmp_path / "engine.log"],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    assert "the weights of 'some/model' lack lm_head.weight" in done.stdout
