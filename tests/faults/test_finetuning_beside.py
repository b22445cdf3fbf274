"""Fine-tunings beside each other, of which one fails, or whose command is killed."""

from __future__ import annotations

import os
import random
import signal
from contextlib import closing
from itertools import count
from typing import Any

import pytest
import torch

from mia_batch.errors import EngineError, SettingsError
from mia_batch.finetuning import process
from mia_batch.finetuning.beside import made_beside, shares
from tests.forked import Forked, fork_on, forked_training
from tests.processes import wait_until
from tests.tuning import LEARNT, contents, make, making

EPOCHS = 4
NAMES = ("shadow-0", "shadow-1", "shadow-2")


def wanted(base, folder, epochs=EPOCHS):
    for seed, name in enumerate(NAMES):
        yield name, making(base, LEARNT[seed:], seed=seed, epochs=epochs), folder / name


def all_made(base, folder, n, say=lambda _: None):
    """Make all, and tell in which order they were there."""
    return [name for name, _ in made_beside(wanted(base, folder), [{}] * n, say)]


@pytest.fixture(scope="module")
def alone(checkpoint, tmp_path_factory):
    """Bytes of each model, made by itself."""
    folder = tmp_path_factory.mktemp("alone")
    for seed, name in enumerate(NAMES):
        make(checkpoint, folder / name, texts=LEARNT[seed:], seed=seed, epochs=EPOCHS)
    return {name: contents(folder / name) for name in NAMES}


@pytest.fixture
def started(monkeypatch):
    """Trainings in the order of their starts, and how many lived then."""
    processes: list[Any] = []
    alive: list[int] = []
    spawn = process.spawn

    def counted(*given):
        process = spawn(*given)
        processes.append(process)
        alive.append(sum(each.poll() is None for each in processes))
        return process

    monkeypatch.setattr(process, "spawn", counted)
    return processes, alive


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.long), 2])
def test_models_made_beside_each_other_are_those_made_alone(
    n, checkpoint, alone, started, tmp_path
):
    said: list[str] = []
    assert set(all_made(checkpoint, tmp_path, n, said.append)) == {*NAMES}
    assert max(started[1]) == n
    assert {name: contents(tmp_path / name) for name in NAMES} == alone
    for name in NAMES:
        epochs = [each.split()[2] for each in said if each.startswith(f"{name}: epoch")]
        assert epochs == [str(epoch + 1) for epoch in range(EPOCHS)]
    assert len(said) == EPOCHS * len(NAMES)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*NAMES]


def test_each_has_its_share_in_turn(checkpoint, tmp_path, monkeypatch):
    given: list[str] = []
    spawn = process.spawn

    def noted(work, log, share):
        given.append(share["SHARE"])
        return spawn(work, log, share)

    monkeypatch.setattr(process, "spawn", noted)
    of_two = [{"SHARE": "first"}, {"SHARE": "second"}]
    made = dict(made_beside(wanted(checkpoint, tmp_path, 1), of_two, lambda _: None))
    assert all(each.is_new for each in made.values())
    assert sorted(given[:2]) == ["first", "second"]
    assert len(given) == len(NAMES)


def test_one_that_fails_ends_the_others_and_all_go_on(checkpoint, alone, tmp_path, monkeypatch):
    """What they have learnt by then is kept."""
    numbers = count()
    processes: list[Any] = []

    def spawn(work, log, share):
        is_first = next(numbers) == 0  # which is killed after two epochs, while others stand still
        processes.append(forked_training(work, log, share, saves=2 if is_first else 0))
        if not is_first:
            os.kill(processes[-1].pid, signal.SIGSTOP)
        return processes[-1]

    with monkeypatch.context() as patch:
        patch.setattr(process, "spawn", spawn)
        with pytest.raises(EngineError, match="the training was killed"):
            all_made(checkpoint, tmp_path, 2)
    assert len(processes) == 2
    for ended in processes:
        assert ended.poll() == -signal.SIGKILL
    assert not any((tmp_path / name).exists() for name in NAMES)
    assert [*tmp_path.glob(".*.work/checkpoints/*/sha256.json")]
    said: list[str] = []
    all_made(checkpoint, tmp_path, 2, said.append)
    assert len([each for each in said if ": epoch " in each]) < EPOCHS * len(NAMES)
    assert {name: contents(tmp_path / name) for name in NAMES} == alone


def test_one_that_cannot_be_made_ends_the_others(checkpoint, started, tmp_path):
    def given():
        yield "long", making(checkpoint, epochs=500), tmp_path / "long"
        wait_until(lambda: started[0], "it is trained")
        yield "short", making(checkpoint, LEARNT[:1]), tmp_path / "short"

    with pytest.raises(SettingsError, match="there are 1 texts to tune a model on"):
        [*made_beside(given(), [{}] * 2, lambda _: None)]
    assert all(process.poll() == -signal.SIGKILL for process in started[0])


def test_an_interrupt_ends_all(checkpoint, started, tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    long = wanted(checkpoint, tmp_path, 500)
    with closing(made_beside(long, [{}] * 3, stop)) as made, pytest.raises(KeyboardInterrupt):
        next(made)
    assert 1 <= len(started[0]) <= 3
    assert all(process.poll() == -signal.SIGKILL for process in started[0])


def _make_all(base, folder):
    fork_on()
    all_made(base, folder, 2)


@pytest.mark.long
def test_a_command_killed_at_random_goes_on(checkpoint, alone, tmp_path):
    dice = random.Random(7)
    for n in sorted(dice.sample(range(1, 4), 2)):
        with Forked(_make_all, checkpoint, tmp_path) as process:
            wait_until(
                lambda: (
                    len([*tmp_path.glob(".*.work/checkpoints/*/sha256.json")]) >= n  # noqa: B023
                    or process.poll() is not None
                ),
                "checkpoints",
            )
            process.kill()
    all_made(checkpoint, tmp_path, 2)
    assert {name: contents(tmp_path / name) for name in NAMES} == alone
    assert sorted(path.name for path in tmp_path.iterdir()) == [*NAMES]


@pytest.mark.parametrize(
    ("n", "each", "visible", "expected"),
    [
        (2, 1, "", ["0", "1"]),
        (None, 1, "", ["0", "1", "2", "3"]),
        (9, 1, "", ["0", "1", "2", "3"]),
        (None, 2, "", ["0,1", "2,3"]),
        (None, 3, "", ["0,1,2"]),
        (2, 1, "4,7,5,6", ["4", "7"]),
        (None, 2, "GPU-a,GPU-b,GPU-c,GPU-d", ["GPU-a,GPU-b", "GPU-c,GPU-d"]),
    ],
)
def test_gpus_are_shared_out(n, each, visible, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert shares(n, each) == [{"CUDA_VISIBLE_DEVICES": gpus} for gpus in expected]


def test_more_gpus_than_there_are_is_the_whole_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert shares(2, 2) == [{}]


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = {n: [share["OMP_NUM_THREADS"] for share in shares(n)] for n in (1, 3, 16)}
    assert threads == {1: ["8"], 3: ["2"] * 3, 16: ["1"] * 16}
    assert len(shares(None)) == 8
    assert shares(None, 4) == [{"OMP_NUM_THREADS": "4"}] * 2
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert shares(2) == [{}] * 2
