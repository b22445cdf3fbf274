"""DE-COP at an endpoint: chats that answer, and log-probabilities of the four labels."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import mia_batch
from mia_batch.pipeline import plan
from mia_batch.prompts.views import LABELS
from mia_batch.settings import load_settings
from tests.hostile_server import MODEL, Asked, HostileServer, Reply, TinyModel
from tests.next_token_server import BY_ID, NAMED, NextTokenModel
from tests.unit.pipeline.conftest import Listener

TEXTS = {"known": "one two three", "other": "four five six"}


class Chat:
    """Knows one text, and says A to questions about others; its words around the label differ."""

    said = ("{}", "{}.", "The answer is {}.", "**{}**")

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, asked: Asked) -> Reply:
        if asked.is_probe or asked.method == "GET":
            return TinyModel(honours=())(asked)
        assert asked.prompt.startswith("Answer the question")
        shown = dict(line.split(". ", 1) for line in asked.prompt.splitlines() if ". " in line[:3])
        label = next((label for label, text in shown.items() if text == TEXTS["known"]), "A")
        self.n += 1
        said = self.said[self.n % 4].format(label) if label != "A" or self.n % 8 else "Hard to say."
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        choice["message"] = {"role": "assistant", "content": said}
        return Reply(
            content={"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
        )


@pytest.fixture
def request_for(tmp_path):
    rows = [
        {"document_id": name, "text": text, "paraphrases": [f"{text} {i}" for i in range(3)]}
        for name, text in TEXTS.items()
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "corpus.parquet")

    def settings(server: HostileServer, out: str = "run", **changed: Any) -> dict[str, Any]:
        usual = {
            "input": str(tmp_path / "corpus.parquet"),
            "model": MODEL,
            "base_url": server.url,
            "attacks": "decop_v1",
            "paraphrases_column": "paraphrases",
            "report": False,
            "out": str(tmp_path / out),
        }
        return usual | changed

    return settings


def test_a_chat_is_asked_the_question_alone_and_what_it_says_is_read(request_for):
    listener = Listener()
    with HostileServer(Chat()) as server:
        settings = request_for(server, chat=True, price_in=1.0, price_out=1.0)
        planned = dict(plan(load_settings(settings)))
        run = mia_batch.audit(observer=listener, **settings)
        mia_batch.audit(**settings)
    assert planned["requests"] == "48 to 48"
    assert len(server.asked) == 48
    assert {asked.fields["max_tokens"] for asked in server.asked} == {8}
    assert {asked.fields["temperature"] for asked in server.asked} == {0.0}
    assert dict(run["scores"].select("document_id", "decop_v1").iter_rows()) == {
        "known": 1.0,
        "other": 0.25,
    }
    unread = run["samples"].filter(pl.col("candidate") == "Hard to say.").height
    assert unread > 0
    counted = run["findings"].filter(check="prompts", statistic="n_unread")
    assert counted["value"].to_list() == [unread]
    assert (
        f"{unread} of 48 answers name no label, or several; they are left out" in listener.sentences
    )


def test_answers_that_cannot_be_read_leave_a_text_unscored(request_for):
    with HostileServer(TinyModel(honours=())) as server:
        run = mia_batch.audit(**request_for(server, chat=True, choice_orders=4))
    assert run["samples"].height == 8
    assert run["scores"]["decop_v1"].to_list() == [None, None]
    assert all("no answer names one label" in reason for reason in run["unscored"]["reason"])


@pytest.mark.parametrize("honours", [(NAMED, BY_ID), ()])
def test_one_request_gives_the_log_probabilities_of_all_labels(checkpoint, request_for, honours):
    """Exactly where tokens can be named; else as far as the 20 most likely ones tell."""
    model = NextTokenModel(checkpoint, honours=honours)
    asked = {"attacks": "decop_probability_v1", "tokenizer": str(checkpoint), "choice_orders": 4}
    with HostileServer(model) as server:
        run = mia_batch.audit(**request_for(server, chat=True, **asked))
    ids = [token for (token,) in model.tokenizer.encode(LABELS)]
    key = ["target_id", "view_index"]
    rows = run["logprobs"].join(run["prompts"].select(*key, "context"), on=key)
    assert rows.height == 8
    assert sum(len(each.fields.get(NAMED, ())) == 4 for each in server.asked) == 8 * bool(honours)
    for row in rows.iter_rows(named=True):
        values = model.logprobs(row["context"])
        listed = {*ids} if honours else {*sorted(values, key=values.__getitem__)[-20:]}
        if listed.isdisjoint(ids):
            assert row["reason"] == "none of the answers is among the 20 tokens listed"
            continue
        assert row["bounded"] == (not listed.issuperset(ids))
        for token, logprob in zip(ids, row["logprob"], strict=True):
            if token in listed:
                assert logprob == pytest.approx(values[token], abs=1e-5)
            else:
                assert values[token] <= logprob + 1e-5


def test_labels_of_several_tokens_are_refused_before_anything_is_paid(checkpoint, request_for):
    with HostileServer(NextTokenModel(checkpoint)) as server:
        run = mia_batch.audit(
            **request_for(server, attacks="decop_logprob_v1", tokenizer=str(checkpoint))
        )
    assert not [each for each in server.asked if "Question" in str(each.prompt)]
    assert {*run["unscored"]["reason"]} == {"the answers A, B, C, D are not one token each"}


def test_a_column_that_holds_no_lists_is_refused_before_anything_is_asked(request_for):
    with HostileServer(TinyModel()) as server:
        for column, found in (("paraphrase", "is missing"), ("document_id", "is of type String")):
            settings = request_for(server, paraphrases_column=column)
            named = f"'{column}' of the input {found}"
            with pytest.raises(mia_batch.SettingsError, match=named):
                dict(plan(load_settings(settings)))
            with pytest.raises(mia_batch.SettingsError, match=named):
                mia_batch.audit(**settings)
    assert not server.asked


def test_log_probabilities_at_an_endpoint_need_the_tokenizer(request_for):
    with (
        HostileServer(TinyModel()) as server,
        pytest.raises(mia_batch.SettingsError, match="needs setting 'tokenizer'"),
    ):
        mia_batch.audit(**request_for(server, attacks="decop_logprob_v1"))
