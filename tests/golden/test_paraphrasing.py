"""Paraphrases by a model that was taught some, on their way from texts to an audit with DE-COP."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mia_batch.errors import SettingsError
from mia_batch.extras.sets.demo import (
    DemoSettings,
    new_model,
    save,
    train,
    train_tokenizer,
)
from mia_batch.pipeline import Run
from mia_batch.prompts import rewriting
from tests.hostile_server import MODEL, Asked, HostileServer, Reply, TinyModel
from tests.runs import audit, paraphrase, plan_paraphrasing
from tests.unit.pipeline.conftest import Listener

SEA = "The old captain looked at the sea before he went below deck."
RAIN = "It had been raining since noon, and nobody came to the inn."
LONG = "He ran."
TAUGHT = {
    SEA: [
        "Before going below deck the aged captain gazed at the sea.",
        "The aged captain cast an eye over the water, then he went down.",
        "Having watched the sea, the old captain left the deck.",
        "The captain, an old man, considered the ocean and went below.",
    ],
    RAIN: [RAIN, "Rain fell from noon on, and the inn stayed empty."],
    LONG: [" ".join(["He ran and ran until the night and"] * 4)],
}
"""What the model learnt to say; one text itself, and one answer that is too long."""
SETTINGS = DemoSettings(seed=0, context=256, learning_rate=4e-3)


@pytest.fixture(scope="module")
def rewriter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama that was taught what to answer."""
    folder = tmp_path_factory.mktemp("rewriter")
    asked = rewriting(pl.DataFrame({"target_id": [*TAUGHT], "target": [*TAUGHT]}))
    prompts = dict(asked.select("target_id", "context").iter_rows())
    said = [
        f"{prompts[text]} {answer}"
        for text, answers in TAUGHT.items()
        for answer in answers
    ]
    tokenizer = train_tokenizer([*said, " A B C D", " A B C D"], 1000)
    end = tokenizer.encode("<|end_of_text|>").ids[-1]
    model = new_model(tokenizer, SETTINGS, hidden=64, layers=2)
    train(
        model, [[*tokenizer.encode(text).ids, end] for text in said], SETTINGS, 80, None
    )
    save(model, tokenizer, folder)
    return folder


def request(folder: Path, model: object, **changed: Any) -> dict[str, Any]:
    rows = {
        "document_id": ["sea", "rain", "none", "long"],
        "text": [SEA, RAIN, None, LONG],
        "group": ["Sea Stories", "Inns", "Inns", None],
        "member": [True, False, None, True],
        "paraphrases": ["of", "a", "former", "run"],
    }
    pl.DataFrame(rows).write_parquet(folder / "passages.parquet")
    usual = {
        "input": str(folder / "passages.parquet"),
        "model": str(model),
        "samples": 24,
    }
    usual |= {"out": str(folder / "made"), "engine": "transformers", "top_p": 0.9}
    return usual | changed


@pytest.fixture(scope="module")
def made(
    rewriter: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], pl.DataFrame, Listener]:
    listener = Listener()
    asked = request(tmp_path_factory.mktemp("texts"), rewriter)
    return asked, paraphrase(observer=listener, **asked), listener


def test_each_text_has_what_differs_from_it_and_from_each_other(made):
    _, table, listener = made
    assert table["document_id"].to_list() == ["sea", "rain", "none", "long"]
    assert table["text"].to_list() == [SEA, RAIN, None, LONG]
    assert table["member"].to_list() == [True, False, None, True]
    said = dict(table.select("document_id", "paraphrases").iter_rows())
    assert sorted(said["sea"]) == sorted(TAUGHT[SEA])
    assert said["rain"] == TAUGHT[RAIN][1:]
    assert said["none"] is None
    assert said["long"] is None
    assert table["paraphrases_reason"].to_list() == [
        None,
        (
            "1 of 24 answers end and differ from the text and from each other; three"
            " are needed"
        ),
        "the text is null",
        (
            "0 of 24 answers end and differ from the text and from each other; three"
            " are needed"
        ),
    ]
    words = (
        sum(len(each.split()) for each in TAUGHT[SEA])
        / len(TAUGHT[SEA])
        / len(SEA.split())
    )
    sentence = (
        f"1 of 4 texts have three paraphrases, which have {words:.2f} times the words"
        " of the texts"
    )
    assert sentence in listener.sentences


def test_the_same_command_asks_nothing_and_more_samples_are_added(made, rewriter):
    asked, table, _ = made
    run = Run(asked["out"])
    before = run.path("paraphrases").read_bytes()
    assert paraphrase(**asked).equals(table)
    assert run.path("paraphrases").read_bytes() == before
    assert run["samples"].height == 3 * 24
    paraphrase(**asked | {"samples": 26})
    assert run["samples"].height == 3 * 26
    assert run["samples"].filter(pl.col("sample_index") < 24).height == 3 * 24


def test_an_audit_takes_the_table(made, tmp_path):
    asked, _, _ = made
    run = audit(
        input=f"{asked['out']}/paraphrases.parquet",
        model=asked["model"],
        engine="transformers",
        attacks="decop_probability_v1",
        paraphrases_column="paraphrases",
        choice_orders=4,
        out=str(tmp_path / "audited"),
        report=False,
    )
    scored = dict(
        run["scores"].select("document_id", "decop_probability_v1").iter_rows()
    )
    assert 0 < scored.pop("sea") < 1
    assert scored == {"rain": None, "none": None, "long": None}
    few = "the text has fewer than three paraphrases"
    assert sorted(run["unscored"]["reason"]) == [few, few, "the text is null"]
    assert run["scores"]["group"].to_list() == ["Sea Stories", "Inns", "Inns", None]


def test_windows_are_passages_of_their_document(rewriter, tmp_path):
    asked = request(tmp_path, rewriter, window_words=6, samples=3)
    table = paraphrase(**asked)
    assert table["document_id"].to_list() == [
        "sea#0",
        "sea#1",
        "rain#0",
        "rain#1",
        "none",
        "long",
    ]
    assert table["text"][0] == " ".join(SEA.split()[:6])
    assert table["group"].to_list() == [
        "Sea Stories",
        "Sea Stories",
        "Inns",
        "Inns",
        "Inns",
        None,
    ]


class Chat:
    """Says one of some things about a text, one more each time."""

    def __init__(self, said: Mapping[str, list[str]]) -> None:
        self.said = {text: iter(answers) for text, answers in said.items()}

    def __call__(self, asked: Asked) -> Reply:
        if asked.is_probe or asked.method == "GET":
            return TinyModel(honours=())(asked)
        text = asked.prompt.split("Passage: ")[1].partition("\n")[0]
        message = {"role": "assistant", "content": next(self.said[text])}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 9, "completion_tokens": 2}
        return Reply(content={"choices": [choice], "usage": usage})


def test_a_chat_is_asked_what_to_do_and_nothing_else(tmp_path):
    said = {SEA: ["a\n", " b", "c "], RAIN: ["d", "d", RAIN], LONG: ["e", "f", "g"]}
    asked = request(tmp_path, MODEL, samples=3, engine="auto", chat=True)
    with HostileServer(Chat(said)) as server:
        asked |= {"base_url": server.url, "price_in": 1.0, "price_out": 2.0}
        planned = dict(plan_paraphrasing(**asked))
        table = paraphrase(**asked)
        assert paraphrase(**asked).equals(table)
    assert planned["requests"] == "3 to 9"
    assert len(server.asked) == 9
    (prompt,) = rewriting(pl.DataFrame({"target_id": ["x"], "target": [SEA]}))[
        "context"
    ]
    messages = [asked.fields["messages"] for asked in server.asked]
    assert messages.count([{"role": "user", "content": prompt}]) == 3
    in_any_order = pl.col("paraphrases").list.sort()  # requests are many at a time
    found = dict(table.select("text", in_any_order).iter_rows())
    assert found == {
        SEA: ["a", "b", "c"],
        RAIN: ["d"],
        None: None,
        LONG: ["e", "f", "g"],
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"out": None}, "out= is missing; name the folder that the paraphrases go to"),
        ({"samples": 2}, "samples= is 2; of each text at least 3 are needed"),
        ({"temperature": 0}, "at temperature 0 all samples of a text are the same"),
    ],
)
def test_what_cannot_be_is_said_before_a_model_is_loaded(tmp_path, changed, message):
    with pytest.raises(SettingsError, match=message):
        paraphrase(**request(tmp_path, "nowhere", **changed))
