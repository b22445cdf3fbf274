"""Tasks of GLUE, read from a cache of the hub as it lies on a disk."""

import re

import polars as pl
import pytest
from huggingface_hub import constants

from mia_batch.errors import CorpusError
from mia_batch.privacy.data import joined, read_texts


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache in which the hub, which cannot be reached, has left two tasks."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    kept = tmp_path / "datasets--nyu-mll--glue"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    numbers = range(60)
    tasks = {
        "sst2": {"sentence": [f"film {number}" for number in numbers]},
        "mnli": {
            "premise": [f"It rained for {number // 2} days." for number in numbers],
            "hypothesis": [f"It was wet {number % 2} times." for number in numbers],
        },
    }
    for task, texts in tasks.items():
        folder = kept / "snapshots" / ("0" * 40) / task
        folder.mkdir(parents=True)
        rows = pl.DataFrame(texts | {"label": [number % 2 for number in numbers], "idx": numbers})
        rows.write_parquet(folder / "train-00000-of-00001.parquet")
        rows.with_columns(label=-1).write_parquet(folder / "test-00000-of-00001.parquet")


def read(name, **changed):
    given = {"text": "text", "target": "label", "group": None, "share": 0.6, "seed": 3} | changed
    return read_texts(name, **given)


@pytest.mark.usefixtures("cache")
def test_a_task_is_its_training_texts():
    found = read("glue:sst2")
    assert found["text"].to_list() == [f"film {number}" for number in range(60)]
    assert found["target"].to_list() == ["0", "1"] * 30


@pytest.mark.usefixtures("cache")
def test_pairs_are_joined_and_keep_their_columns():
    found = read("glue:mnli", group="premise")
    assert found["text"][4] == "It rained for 2 days. [SEP] It was wet 0 times."
    assert found["group"].to_list() == [
        f"It rained for {number // 2} days." for number in range(60)
    ]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("glue:sst", "GLUE has no task 'sst' with classes; give one of cola, mnli, mrpc"),
        ("glue:stsb", "GLUE has no task 'stsb' with classes"),
        ("glue:rte", "glue:rte was not fetched before, and cannot be now (nyu-mll/glue"),
    ],
)
def test_what_cannot_be_had(name, reason):
    with pytest.raises(CorpusError, match=re.escape(reason)):
        read(name)


def test_nothing_was_fetched_before(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CorpusError, match="glue:sst2 was not fetched before"):
        read("glue:sst2")


@pytest.mark.usefixtures("cache")
def test_a_column_that_is_none_of_the_task():
    with pytest.raises(CorpusError, match="glue:sst2 has no column 'premise', only 'sentence'"):
        read("glue:sst2", group="premise")


def test_a_pair_of_which_one_text_is_missing_is_not_half_a_text():
    rows = pl.DataFrame({"one": ["a", None], "other": ["b", "c"]})
    assert joined(rows, ["one", "other"])["text"].to_list() == ["a [SEP] b", None]
