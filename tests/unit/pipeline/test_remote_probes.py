"""Probes of an endpoint on loopback: what is asked, what is said and paid, what is added later."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

import mia_batch
from mia_batch.evidence.endpoint import CHAT_INSTRUCTION
from mia_batch.pipeline import plan
from mia_batch.settings import load_settings
from tests.hostile_server import MODEL, Asked, HostileServer, Reply, TinyModel
from tests.unit.pipeline.conftest import Listener, documents

TABLES = ("scores", "unscored", "metrics", "rarity")
PRICES = {"price_in": 1000.0, "price_out": 10_000.0}


class Knowing:
    """Answers with the true next word, without a space before it where it is a chat."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __call__(self, asked: Asked) -> Reply:
        if asked.is_probe or asked.method == "GET":
            return TinyModel(honours=())(asked)
        prompt = asked.prompt.removeprefix(f"{CHAT_INSTRUCTION}\n\n")
        after = next(text[len(prompt) :] for text in self.texts if text.startswith(prompt))
        words = " " + " ".join(after.split()[:2])
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "text": words}
        if asked.path.endswith("/chat/completions"):
            choice["message"] = {"role": "assistant", "content": words.strip()}
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": 2}
        return Reply(content={"choices": [choice], "usage": usage})


@pytest.fixture
def request_for(tmp_path):
    documents().write_parquet(tmp_path / "corpus.parquet")

    def settings(server: HostileServer, out: str = "run", **changed: Any) -> dict[str, Any]:
        usual = {
            "input": str(tmp_path / "corpus.parquet"),
            "model": MODEL,
            "base_url": server.url,
            "probes": 4,
            "report": False,
            "out": str(tmp_path / out),
        }
        return usual | changed

    return settings


def asked_of(server: HostileServer) -> list[tuple[str, int]]:
    return [(asked.prompt, asked.fields["seed"]) for asked in server.asked]


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("word_rule", ["whitespace", "space", "rouge", "unicode"])
def test_the_true_next_word_is_right_with_and_without_its_space(request_for, chat, word_rule):
    texts = documents()["text"].drop_nulls().to_list()
    listener = Listener()
    with HostileServer(Knowing(texts)) as server:
        settings = request_for(server, chat=chat, word_rule=word_rule)
        run = mia_batch.audit(observer=listener, **settings)
    assert run["scores"]["probe_first_word_v1"].to_list() == [1.0] * 6 + [None] * 2
    assert {asked.fields["temperature"] for asked in server.asked} == {0.0}
    assert median(asked.fields["max_tokens"] for asked in server.asked) <= 8
    assert not [line for line in listener.sentences if line.startswith("it ")]


def test_the_cost_counts_every_point(request_for):
    with HostileServer(TinyModel()) as server:
        planned = dict(plan(load_settings(request_for(server, **PRICES))))
        run = mia_batch.audit(**request_for(server, **PRICES))
        left = dict(plan(load_settings(request_for(server, **PRICES))))
    cuts = run["prompts"]["cut"].drop_nulls()
    prompt_tokens = int(cuts.sum()) + 16 * cuts.len()
    assert cuts.len() == 24
    assert planned["requests"] == "24 to 72"
    assert planned["at most, first attempts"].startswith(f"{prompt_tokens:,} prompt tokens, ")
    assert planned["at most, all attempts"].startswith(f"{3 * prompt_tokens:,} prompt tokens, ")
    assert (left["prompts"], left["samples"]) == ("0", "0")
    assert "requests" not in left


def test_the_limit_of_cost_stops_before_it_is_passed_and_no_answer_is_paid_for_twice(request_for):
    spending = {"price_in": 0.0, "price_out": 1e6, "max_concurrency": 1}  # 1 a token of output
    with HostileServer(TinyModel()) as server:
        with pytest.raises(mia_batch.EngineError, match=r"'max_cost' is 150"):
            mia_batch.audit(**request_for(server, **spending, max_cost=150.0))
        assert 0 < len(server.asked) < 24
        assert 6 * (len(server.asked) + len(server.probes)) <= 150  # 6 tokens an answer
        mia_batch.audit(**request_for(server, **spending, max_cost=1e6))
        asked = asked_of(server)
    assert len(asked) == len(set(asked)) == 24


def test_more_points_and_more_texts_ask_only_for_what_is_missing(request_for, tmp_path):
    every = documents(12)
    with HostileServer(TinyModel()) as server:
        mia_batch.audit(**request_for(server, probes=2))
        assert len(server.asked) == 6 * 2
        mia_batch.audit(**request_for(server, probes=5))
        assert len(server.asked) == 6 * 5
        every.write_parquet(tmp_path / "corpus.parquet")
        grown = mia_batch.audit(**request_for(server, probes=5))
        asked = asked_of(server)
        undisturbed = mia_batch.audit(**request_for(server, out="whole", probes=5))
    assert len(asked) == len(set(asked)) == 10 * 5
    assert_equal(grown, undisturbed)


def test_more_samples_are_added_to_drawn_answers(request_for):
    with HostileServer(
        TinyModel(),
    ) as server:
        mia_batch.audit(**request_for(server, samples=2))
        two = server.asked[:]
        four = mia_batch.audit(**request_for(server, samples=4))
        later = server.asked[len(two) :]
        undisturbed = mia_batch.audit(**request_for(server, out="whole", samples=4))
    assert [asked.fields["n"] for asked in (*two, *later)] == [2] * 48
    first = {asked.prompt: asked.fields["seed"] for asked in two}
    assert {asked.prompt: asked.fields["seed"] - 2 for asked in later} == first
    assert_equal(four, undisturbed)


def assert_equal(run: mia_batch.Run, undisturbed: mia_batch.Run) -> None:
    """Same tables, but that of a change of plan; those in parts have the same rows."""
    for name in TABLES:
        assert run.path(name).read_bytes() == undisturbed.path(name).read_bytes(), name
    for made in (run, undisturbed):
        plan_of = made["findings"].filter(check="plan")
        assert plan_of["verdict"][0] == ("changed" if made is run else "as_planned")
    verdicts, wanted_verdicts = (each["verdicts"].drop("planned") for each in (run, undisturbed))
    assert verdicts.equals(wanted_verdicts)
    key = ["target_id", "view_index", "sample_index"]
    for name in ("samples", "features"):
        rows, wanted = (each[name].sort(key) for each in (run, undisturbed))
        assert rows.equals(wanted), name
