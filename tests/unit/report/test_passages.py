"""The passages of a run in Python: what came out word for word, by text."""

import polars as pl
import pytest

import mia_batch
from tests.texts import invent_text


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("passages")
    texts = {name: invent_text(80, name).split() for name in ("long", "short", "none")}
    n_repeated = {"long": 30, "short": 22, "none": 5}
    rows = [
        {"document_id": name, "text": " ".join(words)} for name, words in texts.items()
    ]
    pl.DataFrame(rows).write_parquet(folder / "corpus.parquet")
    answers = [
        {
            "document_id": name,
            "candidate": " ".join([*words[40 : 40 + n_repeated[name]], "else"]),
        }
        for name, words in texts.items()
    ]
    pl.DataFrame(answers).write_parquet(folder / "made.parquet")
    finished = mia_batch.audit(
        folder / "corpus.parquet",
        samples_from=folder / "made.parquet",
        out=folder / "run",
    )
    return finished, texts


def test_passages_are_those_that_came_out_the_longest_first(run):
    finished, texts = run
    passages = finished.passages
    assert passages["document_id"].to_list() == ["long", "short"]
    assert passages["n_words"].to_list() == [30, 22]
    assert passages["role"].to_list() == ["target", "target"]
    for name, n, passage in zip(
        passages["document_id"], passages["n_words"], passages["passage"], strict=True
    ):
        assert passage.split() == texts[name][40 : 40 + n]
    rows = finished["findings"].filter(check="verbatim", statistic="document")
    assert {*rows["subject"]} == {"long", "short"}
