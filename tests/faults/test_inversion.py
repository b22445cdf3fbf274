"""Inversions that are killed go on, and end as those that were not."""

import signal

import polars as pl
import pytest

from mia_batch.extras.privacy.inversion.training import invert
from mia_batch.observer import Observer
from mia_batch.recipes import Recipe
from tests.forked import Forked
from tests.tuning import LEARNT, contents, die_saving

TEXTS = [" ".join(text.split()[i : i + 4]) for text in LEARNT for i in range(0, 16, 4)]
EPOCHS, SEED = 2, 3
RECIPE = Recipe(
    method="full",
    epochs=EPOCHS,
    learning_rate=3e-3,
    batch_size=4,
    max_tokens=48,
    patience=3,
)
RESULTS = ("texts.parquet", "figures.parquet", "summary.json")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "texts.parquet"
    pl.DataFrame({"text": TEXTS}).write_parquet(path)
    return path


def run(data, checkpoint, out, say=lambda _: None):
    observer = Observer()
    observer.stage = say  # type: ignore[method-assign]
    given = {"data": data, "embedder": str(checkpoint), "out": out}
    return invert(**given, recipe=RECIPE, seed=SEED, observer=observer)


@pytest.fixture(scope="module")
def undisturbed(data, checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    run(data, checkpoint, out)
    return results(out)


def results(out):
    """All bytes but those of the record of the making, which names the folder."""
    made = contents(out / "inverter")
    made.pop("training.json")
    return {name: (out / name).read_bytes() for name in RESULTS} | made


def _run(data, checkpoint, out):
    die_saving(1)
    run(data, checkpoint, out)


def test_a_training_that_is_killed_goes_on(data, checkpoint, undisturbed, tmp_path):
    out = tmp_path / "out"
    said: list[str] = []
    with Forked(_run, data, checkpoint, out) as process:
        pass
    assert process.poll() == -signal.SIGKILL
    assert not (out / "inverter").exists()
    run(data, checkpoint, out, said.append)
    assert [each.split()[1] for each in said if each.startswith("epoch")] == ["2"]
    assert results(out) == undisturbed
