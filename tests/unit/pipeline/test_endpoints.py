"""Audits of an endpoint on loopback: what they give, what they cost, what they leave behind."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.endpoint import CHAT_INSTRUCTION
from mia_batch.pipeline import plan
from mia_batch.prompts import LABELS
from mia_batch.settings import load_settings
from tests.hostile_server import Asked, HostileServer, Reply, Script, TinyModel, failure
from tests.next_token_server import BY_ID, NAMED, NextTokenModel
from tests.runs import audit, documents, found, planned, written
from tests.unit.pipeline.conftest import Listener

KEY = "sk-never-to-be-seen"  # that of all tests in this folder
MATCHED = {"preset": "matched", "samples": 3}
# 1 a token of output
FREE_IN = {
    "price_in": 0.0,
    "price_out": 1e6,
    "max_concurrency": 1,
}
PRICES = {"price_in": 1000.0, "price_out": 10_000.0}


class NamedModel(TinyModel):
    """Another version answers from the fifth request on."""

    n_answered = 0

    def _document(self, request: Asked, n: int) -> dict[str, Any]:
        name = "fp_old" if self.n_answered < 4 else "fp_new"
        self.n_answered += not request.is_probe
        return super()._document(request, n) | {"system_fingerprint": name}


def test_every_target_has_its_samples_every_request_the_key_and_its_time(request_for):
    with HostileServer(NamedModel()) as server:
        run = audit(**request_for(server, **MATCHED))
        n_asked, address = len(server.asked), server.url
        assert audit(**request_for(server, **MATCHED)).manifest == run.manifest
    assert run["scores"]["n_samples"].to_list() == [3] * 6 + [0, 0]
    first = run["samples"].row(0, named=True)
    prefix = run["targets"].filter(target_id=first["target_id"])["prefix"][0]
    seed = next(
        request.fields["seed"] for request in server.asked if request.prompt == prefix
    )
    assert first["candidate"].startswith(
        TinyModel().text(prefix, seed).rpartition(" ")[0]
    )
    assert (first["n_tokens"], first["finish_reason"], first["prompt"]) == (
        18,
        "length",
        None,
    )
    assert {request.headers["authorization"] for request in server.asked} == {
        f"Bearer {KEY}"
    }
    assert run.manifest.engines["samples of target"]["capabilities"]["n"] == "honoured"
    requests = run.manifest.requests
    assert requests["endpoint"] == address
    assert requests["system_fingerprint"] == {"fp_new": n_asked - 4, "fp_old": 4}
    assert requests["tools"] == "none sent"
    assert requests["web_search"].startswith("No tool was offered.")
    assert (requests["times"]["answered"], requests["times"]["undated"]) == (n_asked, 0)
    assert (
        run.manifest.times["begin"]
        <= requests["times"]["first"]
        <= requests["times"]["last"]
    )
    assert "requests" not in run.manifest.custody
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_a_short_candidate_is_asked_for_again_only_where_the_endpoint_repeats_itself(
    request_for,
):
    with HostileServer(TinyModel()) as server:
        audit(**request_for(server, **MATCHED))
        repeated = [request.fields["max_tokens"] for request in server.asked]
        first = [
            request.fields["max_tokens"]
            for request in server.asked
            if request.fields["n"] == 3
        ]
    with HostileServer(TinyModel(honours={"n", "top_k"})) as server:
        run = audit(**request_for(server, "unseeded", **MATCHED))
        once = [request.fields["max_tokens"] for request in server.asked]
    assert len(once) == 6
    assert len(repeated) == 6 + 2 * 18  # six words of twenty: short at three attempts
    assert sorted(once) == sorted(2 * budget for budget in first)
    assert run["samples"]["short"].to_list() == [True] * 18


def test_the_cost_is_said_before_the_first_request(request_for):
    listener = Listener()
    with HostileServer(TinyModel()) as server:
        money = PRICES | {"currency": "EUR", "max_cost": 100.0}
        settings = request_for(server, **MATCHED, **money)
        foreseen = planned(settings)
        run = audit(observer=listener, **settings)
        requests = server.asked
        plan_lines = planned(settings)
    plan_said = dict(line.partition(": ")[::2] for line in listener.sentences)
    costs = [
        line_number
        for line_number, line in enumerate(listener.sentences)
        if "cost" in line
    ]
    assert listener.sentences.index(f"probing {server.url}") > costs[0]
    sampled = run["targets"].filter(pl.col("reason").is_null())
    prompt_tokens = 3 * (sum(len(text.encode()) for text in sampled["prefix"]) + 6 * 16)
    price = ""
    for name, attempts in {
        "at most, first attempts": 1,
        "at most, all attempts": 3,
    }.items():
        assert plan_said[name] == foreseen[name]
        foreseen_tokens, _, price = plan_said[name].partition(" prompt tokens, ")
        # What an answer has so far is paid for again, as a part of the prompt.
        n_more = int(foreseen_tokens.replace(",", "")) - attempts * prompt_tokens
        assert (n_more > 0) == (attempts > 1)
    n_drawn = 6 * sum(request.fields.get("n", 1) for request in requests)
    # The server counts words; of long ones a token for every eight bytes counts, at
    # least.
    prompt_lengths = [
        max(len(request.prompt.split()), (len(request.prompt) + 16) // 8)
        for request in requests
    ]
    paid = 1000 * sum(prompt_lengths) + 10_000 * n_drawn
    assert paid / 1e6 < float(price.rpartition(" ")[2])
    assert (
        listener.sentences[-1]
        == f"spent EUR {paid / 1e6:.2f} of at most 100.00 (prices as given; "
        "some thirty small requests of each probe come on top)"
    )
    assert foreseen["time"] == "unknown: --tokens-per-second X takes X tokens a second"
    with pytest.raises(SettingsError, match="probe needs a model that runs here"):
        dict(plan(load_settings(settings | {"out": None}), speed="probe"))
    assert dict(plan(load_settings(settings | {"out": None}), speed=1))[
        "time"
    ].startswith("about ")
    with pytest.raises(
        SettingsError, match="speed= is 0; give tokens a second, or 'probe'"
    ):
        dict(plan(load_settings(settings | {"out": None}), speed=0))
    assert plan_said["prompts"] == "6"
    assert foreseen["requests"] == "6 to 54"
    assert plan_lines["left"] == "nothing is left to ask: the run is finished"
    assert not {"prompts", "samples", "then"} & plan_lines.keys()
    decoded = next(line for line in listener.sentences if line.startswith("decoded"))
    assert decoded.startswith(f"decoded {18 * 6 * 3} tokens, {3 * 6 * 3} a text")


def test_the_limit_of_cost_stops_before_it_is_passed_and_no_answer_is_paid_for_twice(
    request_for,
):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, **FREE_IN, probes=4, continue_strongest=0)
        with pytest.raises(EngineError, match=r"max_cost= is 250.* higher"):
            audit(**settings, max_cost=250.0)
        first = len(server.asked)
        assert first > 0
        n_probes = sum(request.method == "POST" for request in server.probes)
        assert 6 * (first + n_probes) <= 250  # 6 tokens an answer of one sample
        run = audit(**settings, max_cost=1e6)
        request = [
            (a.prompt, a.fields["seed"], a.fields["max_tokens"]) for a in server.asked
        ]
    assert first < len(request) == len(set(request)) == 24
    assert run["scores"]["n_samples"].max() == 4


def test_a_refused_prompt_is_a_row_with_its_reason_and_is_tried_again_when_asked(
    request_for,
):
    refused = failure(400, "this text is not allowed")
    honest = TinyModel()
    with HostileServer(Script(refused, refused, then=honest)) as server:
        settings = request_for(server, **MATCHED, max_concurrency=1)
        run = audit(**settings)
        assert run.manifest.failed["targets"] == 2
        assert run.manifest.failed["of"] == 6
        (reason,) = run.manifest.failed["reasons"]
        assert "this text is not allowed" in reason
        assert sorted(run["scores"]["n_samples"].to_list()) == [0] * 4 + [3] * 4
        n_asked = len(server.asked)
        audit(**settings)
        assert len(server.asked) == n_asked
        again = audit(**settings, retry_failed=True)
    assert again.manifest.failed == {
        "targets": 0,
        "of": 6,
        "again": 0,
        "reasons": {},
        "incomplete": {"targets": 0, "missing": 0, "asked": 0, "reasons": {}},
    }
    assert again["scores"]["n_samples"].to_list() == [3] * 6 + [0, 0]
    with HostileServer(honest) as server:
        whole = audit(**request_for(server, "whole", **MATCHED))
    names = [name for name in whole["scores"].columns if name.startswith("samia")]
    assert again["scores"].select(names).equals(whole["scores"].select(names))


def test_chat_is_evidence_of_its_own(request_for):
    with HostileServer(TinyModel()) as server:
        audit(**request_for(server, **MATCHED))
        was = "'endpoint chat_instruction' of model 'target' was None"
        with pytest.raises(SettingsError, match=was):
            audit(**request_for(server, preset="matched", chat=True, samples=4))
        run = audit(**request_for(server, "chat", **MATCHED, chat=True))
    assert "verbatim" in run.manifest.models["target"]["endpoint chat_instruction"]
    assert {request.path for request in server.asked[-3:]} == {"/v1/chat/completions"}


def test_a_server_that_is_not_there_is_said_and_nothing_is_lost(request_for):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, **MATCHED, max_retries=0)
    with pytest.raises(EngineError, match="cannot be reached"):
        audit(**settings)
    assert (
        json.loads((Path(settings["out"]) / "run.json").read_text())["targets"]["total"]
        == 8
    )


# DE-COP: chats that answer, and log-probabilities of the four labels.

TEXTS = {"known": "one two three", "other": "four five six"}


class Chat:
    """Knows one text, and says A to questions about others; its words around the label differ."""

    sentences = ("{}", "{}.", "The answer is {}.", "**{}**")

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, request: Asked) -> Reply:
        if request.is_probe or request.method == "GET":
            return TinyModel(honours=())(request)
        assert request.prompt.startswith("Answer the question")
        choice_texts = dict(
            line.split(". ", 1)
            for line in request.prompt.splitlines()
            if ". " in line[:3]
        )
        label = next(
            (label for label, text in choice_texts.items() if text == TEXTS["known"]),
            "A",
        )
        self.n += 1
        answer = (
            self.sentences[self.n % 4].format(label)
            if label != "A" or self.n % 8
            else "Hard to say."
        )
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        choice["message"] = {"role": "assistant", "content": answer}
        return Reply(
            content={
                "choices": [choice],
                "usage": {"prompt_tokens": 9, "completion_tokens": 2},
            }
        )


@pytest.fixture
def choices_for(tmp_path, request_for):
    rows = [
        {
            "document_id": name,
            "text": text,
            "paraphrases": [f"{text} {i}" for i in range(3)],
        }
        for name, text in TEXTS.items()
    ]
    corpus = written(tmp_path, pl.DataFrame(rows), "choices")
    usual = {
        "input": corpus,
        "attacks": "decop_v1",
        "paraphrases_column": "paraphrases",
    }
    return lambda server, **changed: request_for(server, **usual | changed)


def test_a_chat_is_asked_the_question_alone_and_what_it_says_is_read(choices_for):
    listener = Listener()
    with HostileServer(Chat()) as server:
        settings = choices_for(server, chat=True, price_in=1.0, price_out=1.0)
        foreseen = planned(settings)
        run = audit(observer=listener, **settings)
        audit(**settings)
    assert foreseen["requests"] == "48"
    assert len(server.asked) == 48
    assert {request.fields["max_tokens"] for request in server.asked} == {8}
    assert {request.fields["temperature"] for request in server.asked} == {0.0}
    scores = dict(run["scores"].select("document_id", "decop_v1").iter_rows())
    assert scores == {"known": 1.0, "other": 0.25}
    unread = run["samples"].filter(pl.col("candidate") == "Hard to say.").height
    assert unread > 0
    assert found(run, "prompts")["n_unread"] == unread
    sentence = f"{unread} of 48 answers name no label, or several; they are left out"
    assert sentence in listener.sentences


def test_answers_that_cannot_be_read_leave_a_text_unscored(choices_for):
    with HostileServer(TinyModel(honours=())) as server:
        run = audit(**choices_for(server, chat=True, choice_orders=4))
    assert run["samples"].height == 8
    assert run["scores"]["decop_v1"].to_list() == [None, None]
    assert all(
        "no answer names one label" in reason for reason in run["unscored"]["reason"]
    )


@pytest.mark.parametrize("honours", [(NAMED, BY_ID), ()])
def test_one_request_gives_the_log_probabilities_of_all_labels(
    checkpoint, choices_for, honours
):
    """Exactly where tokens can be named; else as far as the 20 most likely ones tell."""
    model = NextTokenModel(checkpoint, honours=honours)
    chat_settings = {
        "attacks": "decop_probability_v1",
        "tokenizer": str(checkpoint),
        "choice_orders": 4,
    }
    with HostileServer(model) as server:
        run = audit(**choices_for(server, chat=True, **chat_settings))
    ids = [token for (token,) in model.tokenizer.encode(LABELS)]
    key = ["target_id", "view_index"]
    rows = run["logprobs"].join(run["prompts"].select(*key, "context"), on=key)
    assert rows.height == 8
    assert sum(
        len(request.fields.get(NAMED, ())) == 4 for request in server.asked
    ) == 8 * bool(honours)
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


def test_labels_of_several_tokens_are_refused_before_anything_is_paid(
    checkpoint, choices_for
):
    with HostileServer(NextTokenModel(checkpoint)) as server:
        run = audit(
            **choices_for(server, attacks="decop_logprob_v1", tokenizer=str(checkpoint))
        )
    assert not [
        request for request in server.asked if "Question" in str(request.prompt)
    ]
    assert {*run["unscored"]["reason"]} == {
        "the answers A, B, C, D are not one token each"
    }


# Probes: what is asked, said, paid and added later.


class Knowing:
    """Answers with the true next word, without a space before it where it is a chat."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __call__(self, request: Asked) -> Reply:
        if request.is_probe or request.method == "GET":
            return TinyModel(honours=())(request)
        prompt = request.prompt.removeprefix(f"{CHAT_INSTRUCTION}\n\n")
        rest = next(
            text[len(prompt) :] for text in self.texts if text.startswith(prompt)
        )
        # As they stand: it may go on from them
        words = "".join(re.findall(r"\s*\S+", rest)[:2])
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "text": words}
        if request.path.endswith("/chat/completions"):
            choice["message"] = {"role": "assistant", "content": words.strip()}
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": 2}
        return Reply(content={"choices": [choice], "usage": usage})


@pytest.mark.parametrize(
    ("word_rule", "chat"),
    [("whitespace", False), ("space", True), ("rouge", False), ("unicode", True)],
)
def test_the_true_next_word_is_right_with_and_without_its_space(
    request_for, chat, word_rule
):
    texts = documents()["text"].drop_nulls().to_list()
    listener = Listener()
    with HostileServer(Knowing(texts)) as server:
        settings = request_for(server, probes=4, chat=chat, word_rule=word_rule)
        run = audit(observer=listener, **settings)
    assert run["scores"]["probe_first_word_v1"].to_list() == [1.0] * 6 + [None] * 2
    assert {request.fields["temperature"] for request in server.asked} == {0.0}
    assert median(request.fields["max_tokens"] for request in server.asked) <= 8
    assert not [line for line in listener.sentences if line.startswith("it ")]


def test_the_cost_counts_every_point(request_for):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, probes=4, **PRICES)
        foreseen = planned(settings)
        run = audit(**settings)
        plan_lines = planned(settings)
    cuts = run["prompts"]["cut"].drop_nulls()
    prompt_tokens = int(cuts.sum()) + 16 * cuts.len()
    assert cuts.len() == 24
    assert foreseen["requests"] == "24 to 72"
    assert foreseen["at most, first attempts"].startswith(
        f"{prompt_tokens:,} prompt tokens, "
    )
    most_tokens = foreseen["at most, all attempts"].partition(" ")[0].replace(",", "")
    assert 3 * prompt_tokens < int(most_tokens) < 4 * prompt_tokens
    assert plan_lines["left"] == "nothing is left to ask: the run is finished"
    assert not {"prompts", "samples", "then"} & plan_lines.keys()
    assert "requests" not in plan_lines


def cost_of(line: str) -> float:
    return float(re.findall(r"USD ([\d,.]+\d)", line)[0].replace(",", ""))


def test_the_dry_run_adds_up_all_parts_and_names_a_limit_that_could_stop_it(
    request_for,
):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, **PRICES, probes=4, continue_strongest=0)
        all_settings = settings | {"continue_strongest": 3, "controls": True}
        alone, all_parts = planned(settings), planned(all_settings)
        whole = cost_of(all_parts["the whole run, at most"])
        enough = planned(all_settings | {"max_cost": whole + 0.01})
        limited = planned(all_settings | {"max_cost": whole - 0.01})
        alone_in_doubt = planned(settings | {"continue_strongest": 3, "max_cost": 12.0})
    assert server.asked == []
    parts = ["at most, all attempts", "continuations, at most", "controls, at most"]
    assert cost_of(alone["the whole run, at most"]) == cost_of(alone[parts[0]])
    assert whole == pytest.approx(
        sum(cost_of(all_parts[name]) for name in parts), abs=0.02
    )
    assert "limit" not in enough
    assert alone_in_doubt["limit"].startswith(
        "--max-cost may leave some texts without a continuation: with all of them the"
    )
    assert (
        limited["limit"]
        == f"--max-cost may stop the run, which could cost USD {whole:,.2f}"
    )
