"""Inversions that are killed go on, and end as those that were not."""

from __future__ import annotations

from functools import partial

import polars as pl
import pytest

from mia_batch.errors import EngineError
from mia_batch.finetuning import process
from mia_batch.finetuning.recipe import Recipe
from mia_batch.inversion.inverting import invert
from tests.forked import forked_command, forked_training
from tests.processes import HANGS, wait_until
from tests.tuning import LEARNT, contents

TEXTS = [" ".join(text.split()[i : i + 4]) for text in LEARNT for i in range(0, 16, 4)]
EPOCHS, SEED = 4, 3
RECIPE = Recipe(
    method="full", epochs=EPOCHS, learning_rate=3e-3, batch_size=4, max_tokens=48, patience=3
)
RESULTS = ("texts.parquet", "figures.parquet", "summary.json")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "texts.parquet"
    pl.DataFrame({"text": TEXTS}).write_parquet(path)
    return path


def run(data, checkpoint, out, say=None):
    from mia_batch.observer import Observer

    observer = Observer()
    if say is not None:
        observer.stage = say  # type: ignore[method-assign]
    given = {"data": data, "embedder": str(checkpoint), "out": out}
    return invert(**given, recipe=RECIPE, seed=SEED, observer=observer)


@pytest.fixture(scope="module")
def undisturbed(data, checkpoint, tmp_path_factory):
    """Bytes of the results, and of the decoder, of an inversion in one go."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    run(data, checkpoint, out)
    return results(out)


def results(out):
    """All bytes but those of the record of the making, which names the folder."""
    made = contents(out / "inverter")
    made.pop("training.json")
    return {name: (out / name).read_bytes() for name in RESULTS} | made


@pytest.mark.long
def test_a_training_that_is_killed_goes_on(data, checkpoint, undisturbed, tmp_path, monkeypatch):
    out = tmp_path / "out"
    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(process, "spawn", partial(forked_training, saves=2))
        with pytest.raises(EngineError, match="the training was killed"):
            run(data, checkpoint, out)
    assert not (out / "inverter").exists()
    run(data, checkpoint, out, said.append)
    assert [each.split()[1] for each in said if each.startswith("epoch")] == ["3", "4"]
    assert results(out) == undisturbed


def test_a_command_that_is_killed_goes_on(data, checkpoint, undisturbed, tmp_path):
    out = tmp_path / "out"
    given = {"data": data, "embedder": checkpoint, "out": out, "epochs": EPOCHS, "seed": SEED}
    given |= {"learning-rate": 3e-3, "batch-size": 4, "max-tokens": 48, "held-out": 0}
    asked = ["invert", *(f"--{name}={value}" for name, value in given.items())]
    with forked_command(asked, tmp_path / "out.txt", tmp_path / "err.txt") as process:
        wait_until(
            lambda: list(out.glob(".inverter.work/checkpoints/*/sha256.json")), "a checkpoint"
        )
        process.kill()
    with forked_command(asked, tmp_path / "out.txt", tmp_path / "err.txt") as process:
        assert process.wait(HANGS) == 0, (tmp_path / "err.txt").read_text()
    assert results(out) == undisturbed
    assert "inverter less nearest" in (tmp_path / "out.txt").read_text()
