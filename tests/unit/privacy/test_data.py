"""Texts that are tuned on, tasks of GLUE, canaries, and what is refused of them."""

import json
import re

import polars as pl
import pytest
from huggingface_hub import constants

from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.privacy import data

WORDS = ["apple", "bread", "chair", "dream", "eagle"]


def read_dataset(place, frame=None, **changed):
    if frame is not None:
        place /= "texts.parquet"
        frame.write_parquet(place)
    columns = {"text": "text", "target": None, "group": None} | changed
    return data.read_texts(place, columns, share=0.6, seed=3)


def number_texts(n, copies_each=1):
    return [f"text {number // copies_each}" for number in range(n)]


def test_groups_and_equal_texts_stay_together_and_a_coin_decides(tmp_path):
    texts = pl.DataFrame({"text": number_texts(3000), "who": number_texts(3000, 3)})
    dataset = read_dataset(tmp_path, texts, group="who")
    for column in ("part", "member"):
        assert (
            dataset.group_by("group").agg(pl.col(column).n_unique())[column].max() == 1
        )
    audited = dataset.filter(part="audited")
    assert audited["group"].n_unique() == 600
    assert audited["member"].mean() == pytest.approx(0.5, abs=3 * (0.25 / 600) ** 0.5)
    assert (
        dataset.filter(part="auxiliary")["member"].null_count()
        == dataset.height - audited.height
    )
    texts = pl.DataFrame({"text": number_texts(200, 2), "who": [None, *range(1, 200)]})
    dataset = read_dataset(
        tmp_path, texts.with_columns(pl.col("who").cast(pl.String)), group="who"
    )
    for column in ("group", "part", "member"):
        assert (
            dataset.group_by("text").agg(pl.col(column).n_unique())[column].max() == 1
        )
    assert dataset["group"].n_unique() == 100


def test_each_text_is_learnt_by_one_shadow_model_of_a_pair(tmp_path):
    dataset = read_dataset(tmp_path, pl.DataFrame({"text": number_texts(400)}))
    audited = set(dataset.filter(part="audited")["id"])
    first_shadow, second_shadow, target = (
        set(data.select_learnt(dataset, number, 3)["id"]) for number in (0, 1, None)
    )
    assert first_shadow | second_shadow == audited
    assert not first_shadow & second_shadow
    assert target == set(dataset.filter("member")["id"])
    # The target's half is drawn apart from theirs.
    assert len(first_shadow & target) == pytest.approx(
        len(audited) / 4, abs=3 * (240 * 3 / 16) ** 0.5
    )


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([], "has no rows; give at least 20 texts"),
        (["a", "b"] * 30, "has 2 different texts or groups; give at least 20"),
        (
            [*map(str, range(30)), None],
            "row 31: nothing in column 'text'; leave such rows out",
        ),
        (
            [" ", *map(str, range(30)), ""],
            "row 1 and 1 others: nothing in column 'text'",
        ),
    ],
)
def test_what_is_refused(tmp_path, texts, reason):
    with pytest.raises(CorpusError, match=rf"texts\.parquet.*{reason}"):
        read_dataset(
            tmp_path, pl.DataFrame({"text": texts}, schema={"text": pl.String})
        )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache in which the hub, which cannot be reached, has left two tasks of GLUE."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    dataset_folder, numbers = tmp_path / "datasets--nyu-mll--glue", range(60)
    (dataset_folder / "refs").mkdir(parents=True)
    (dataset_folder / "refs" / "main").write_text("0" * 40)
    premise = [f"It rained for {number // 2} days." for number in numbers]
    tasks = {
        "sst2": {"sentence": [f"film {number}" for number in numbers]},
        "mnli": {
            "premise": premise,
            "hypothesis": [f"It was {number % 2}." for number in numbers],
        },
    }
    for task, texts in tasks.items():
        folder = dataset_folder / "snapshots" / ("0" * 40) / task
        folder.mkdir(parents=True)
        rows = pl.DataFrame(
            texts | {"label": [number % 2 for number in numbers], "idx": numbers}
        )
        rows.write_parquet(folder / "train-00000-of-00001.parquet")
        rows.with_columns(label=-1).write_parquet(
            folder / "test-00000-of-00001.parquet"
        )


@pytest.mark.usefixtures("cache")
def test_a_task_of_glue_is_its_training_texts_pairs_joined():
    task_texts = read_dataset("glue:sst2", target="label")
    assert task_texts["text"].to_list() == [f"film {number}" for number in range(60)]
    assert task_texts["target"].to_list() == ["0", "1"] * 30
    task_texts = read_dataset("glue:mnli", target="label", group="premise")
    assert task_texts["text"][4] == "It rained for 2 days. [SEP] It was 0."
    assert task_texts["group"].to_list()[:3] == ["It rained for 0 days."] * 2 + [
        "It rained for 1 days."
    ]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("name", "group", "reason"),
    [
        (
            "glue:sst",
            None,
            "GLUE has no task 'sst' with classes; give one of cola, mnli, mrpc",
        ),
        ("glue:stsb", None, "GLUE has no task 'stsb' with classes"),
        (
            "glue:rte",
            None,
            "glue:rte was not fetched before, and cannot be now (nyu-mll/glue",
        ),
        ("glue:sst2", "premise", "glue:sst2 has no column 'premise', only 'sentence'"),
    ],
)
def test_a_task_that_is_refused(name, group, reason):
    with pytest.raises(CorpusError, match=re.escape(reason)):
        read_dataset(name, group=group)


def test_a_task_where_nothing_was_fetched_before(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CorpusError, match="glue:sst2 was not fetched before"):
        read_dataset("glue:sst2")


def test_the_seven_formats_of_table_4():
    formats = {
        canary_format.name: canary_format
        for canary_format in data.paper_formats(WORDS, 0)
    }
    sizes = {
        "name": 960,
        "city": 90,
        "email": 3840,
        "phone_number": 10**5,
        "letters": 26**6,
    }
    sizes |= {"one_word": 5, "three_words": 125}
    assert {
        name: canary_format.size for name, canary_format in formats.items()
    } == sizes
    phone = formats["phone_number"]
    assert (
        phone.text(90584)
        == "My phone number is 9 0 5 8 4. You can call me by this number."
    )
    assert (
        formats["letters"].text(1) == "The letters are a a a a a b. It is my password."
    )
    assert formats["name"].text(25) == "My name is Alan Baker"
    assert formats["email"].text(0).endswith("@example.com")
    *four, blank = formats["three_words"].template.split()
    assert (len(four), {*four} <= {*WORDS}, blank) == (4, True, "{}")
    assert formats["city"].question == "Where do you live?"
    for canary_format in formats.values():
        numbers = range(min(canary_format.size, 2000))
        assert len({canary_format.text(number) for number in numbers}) == len(numbers)


def test_a_file_of_formats(tmp_path):
    path = tmp_path / "formats.json"
    pin = {
        "name": "pin",
        "template": "PIN: {}",
        "slots": [["1", "2"]] * 4,
        "between": "",
    }
    path.write_text(json.dumps([pin]))
    (canary_format,) = data.read_formats(path)
    assert canary_format == data.CanaryFormat(
        "pin", "PIN: {}", "", [["1", "2"]] * 4, ""
    )
    assert canary_format.text(5) == "PIN: 1212"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("nonsense", "Expecting value"),
        ("[]", "it holds none"),
        ('[{"name": "a"}]', "missing"),
        (
            '[{"name": "a", "template": "x", "slots": [["1", "2"]]}]',
            "not exactly one {}",
        ),
        (
            '[{"name": "a", "template": "{}", "slots": [["1", "1"]]}]',
            "or with one twice",
        ),
        (
            '[{"name": "a", "template": "{}", "slots": [["1"]]}]',
            "only be filled in one way",
        ),
    ],
)
def test_a_file_that_holds_no_formats(tmp_path, content, reason):
    path = tmp_path / "formats.json"
    path.write_text(content)
    with pytest.raises(
        SettingsError, match=rf"holds no formats of canaries.*{re.escape(reason)}"
    ):
        data.read_formats(path)
