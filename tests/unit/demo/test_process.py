from __future__ import annotations

import shutil

import pytest

from mia_batch.demo.process import run_training
from mia_batch.errors import MiaBatchError


def test_failed_training_says_its_last_words(tiny, tmp_path):
    with pytest.raises(MiaBatchError, match=r"ended with exit code 1: .*No such file or directory"):
        run_training(tmp_path, tiny, lambda _line: None)


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
