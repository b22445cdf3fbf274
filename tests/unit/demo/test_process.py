from __future__ import annotations

import os
import shutil
import signal

import pytest

from mia_batch.demo.making import run_training
from mia_batch.errors import MiaBatchError


def test_failed_training_says_its_last_words(tiny, tmp_path):
    with pytest.raises(MiaBatchError, match=r"ended with exit code 1: .*No such file or directory"):
        run_training(tmp_path, tiny, lambda _line: None)


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "was killed, most likely because .* memory"), (signal.SIGTERM, "by SIGTERM")],
)
def test_ended_training_says_how(made, tiny, tmp_path, trainers, number, words):
    shutil.copy(made[0].corpus, tmp_path)

    def end(_line):
        os.kill(trainers(tmp_path)[0], number)

    with pytest.raises(MiaBatchError, match=f"training of the demo's model .*{words}"):
        run_training(tmp_path, tiny, end)


def test_interrupted_parent_ends_the_training(made, tiny, tmp_path, trainers):
    shutil.copy(made[0].corpus, tmp_path)
    seen = []

    def interrupt(_line):
        seen.extend(trainers(tmp_path))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(tmp_path, tiny, interrupt)
    assert len(seen) == 1
    assert trainers(tmp_path) == []
