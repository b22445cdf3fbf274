"""Audits of an endpoint on loopback: what they give, what they cost, what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import mia_batch
from mia_batch.pipeline import plan
from mia_batch.settings import load_settings
from tests.hostile_server import MODEL, HostileServer, Script, TinyModel, failure
from tests.unit.pipeline.conftest import Listener, documents

KEY = "sk-never-to-be-seen"


@pytest.fixture
def request_for(tmp_path, monkeypatch):
    """Settings of an audit of a server."""
    documents().write_parquet(tmp_path / "corpus.parquet")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def settings(server: HostileServer, **changed: Any) -> dict[str, Any]:
        usual = {
            "input": str(tmp_path / "corpus.parquet"),
            "model": MODEL,
            "base_url": server.url,
            "preset": "matched",
            "samples": 3,
            "report": False,
            "out": str(tmp_path / "run"),
        }
        return usual | changed

    return settings


def test_every_target_has_its_samples_and_every_request_the_key(request_for):
    with HostileServer(TinyModel()) as server:
        run = mia_batch.audit(**request_for(server))
    assert run["scores"]["n_samples"].to_list() == [3] * 6 + [0, 0]
    first = run["samples"].row(0, named=True)
    prefix = run["targets"]["prefix"][0]
    seed = next(asked.fields["seed"] for asked in server.asked if asked.prompt == prefix)
    assert first["candidate"] == TinyModel().text(prefix, seed)
    assert (first["n_tokens"], first["finish_reason"], first["prompt"]) == (6, "length", None)
    assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {KEY}"}
    assert run.manifest.engines["samples of target"]["capabilities"]["n"] == "honoured"


def test_requests_are_recorded_with_their_times_and_the_versions_that_answered(request_for):
    class Named(TinyModel):
        def _document(self, asked, n):
            name = "fp_old" if self.named < 4 else "fp_new"
            self.named += not asked.is_probe
            return super()._document(asked, n) | {"system_fingerprint": name}

        named = 0

    with HostileServer(Named()) as server:
        run = mia_batch.audit(**request_for(server))
        n_asked, address = len(server.asked), server.url
        assert mia_batch.audit(**request_for(server)).manifest == run.manifest
    found = run.manifest.requests
    assert found["endpoint"] == address
    assert found["system_fingerprint"] == {"fp_new": n_asked - 4, "fp_old": 4}
    assert found["tools"] == "none sent"
    assert found["web_search"].startswith("No tool was offered.")
    assert (found["times"]["answered"], found["times"]["undated"]) == (n_asked, 0)
    assert run.manifest.times["begin"] <= found["times"]["first"] <= found["times"]["last"]
    assert "requests" not in run.manifest.custody


def test_the_key_stands_in_no_file_of_the_run(request_for):
    with HostileServer(TinyModel()) as server:
        run = mia_batch.audit(**request_for(server))
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_a_short_candidate_is_asked_for_again_only_where_the_endpoint_repeats_itself(request_for):
    with HostileServer(TinyModel()) as server:
        mia_batch.audit(**request_for(server))
        repeated = [asked.fields["max_tokens"] for asked in server.asked]
        first = [asked.fields["max_tokens"] for asked in server.asked if asked.fields["n"] == 3]
    unseeded = TinyModel(honours={"n", "top_k"})
    with HostileServer(unseeded) as server:
        again = request_for(server)
        run = mia_batch.audit(**again | {"out": again["out"] + "2"})
        once = [asked.fields["max_tokens"] for asked in server.asked]
    assert len(once) == 6
    assert len(repeated) == 6 + 2 * 18  # six words of twenty: short at three attempts
    assert sorted(once) == sorted(2 * budget for budget in first)
    assert run["samples"]["short"].to_list() == [True] * 18


def test_the_cost_is_told_before_the_first_request(request_for):
    listener = Listener()
    prices = {"price_in": 1000.0, "price_out": 10_000.0}
    with HostileServer(TinyModel()) as server:
        planned = dict(plan(load_settings(request_for(server, **prices))))
        run = mia_batch.audit(observer=listener, **request_for(server, **prices))
        left = dict(plan(load_settings(request_for(server, **prices))))
        address = server.url
    told = dict(line.partition(": ")[::2] for line in listener.sentences)
    assert listener.sentences.index(f"probing {address}") > next(
        index for index, line in enumerate(listener.sentences) if "cost" in line
    )
    sampled = run["targets"].filter(pl.col("reason").is_null())
    prompt_tokens = 3 * (sum(len(text.encode()) for text in sampled["prefix"]) + 6 * 16)
    for name, attempts in {"at most, first attempts": 1, "at most, all attempts": 3}.items():
        assert told[name] == planned[name]
        assert told[name].startswith(f"{attempts * prompt_tokens:,} prompt tokens, ")
    assert told["prompts"] == "6"
    assert planned["requests"] == "6 to 54"
    assert (left["prompts"], left["samples"]) == ("0", "0")
    decoded = next(line for line in listener.sentences if line.startswith("decoded"))
    assert decoded.startswith(f"decoded {18 * 6 * 3} tokens, {3 * 6 * 3} a text")


def test_the_limit_of_cost_stops_the_run_and_a_higher_one_goes_on(request_for):
    prices = {"price_in": 0.0, "price_out": 1e6, "max_concurrency": 1}
    with HostileServer(TinyModel()) as server:
        with pytest.raises(mia_batch.EngineError, match=r"'max_cost' is 400.* higher"):
            mia_batch.audit(**request_for(server, **prices, max_cost=400.0))
        asked = [(a.prompt, a.fields["seed"], a.fields["max_tokens"]) for a in server.asked]
        run = mia_batch.audit(**request_for(server, **prices, max_cost=1e6))
        later = [(a.prompt, a.fields["seed"], a.fields["max_tokens"]) for a in server.asked]
    assert asked
    assert len(set(later)) == len(later)
    assert run["scores"]["n_samples"].sum() == 18


def test_a_refused_prompt_is_a_row_with_its_reason_and_is_tried_again_when_asked(request_for):
    refused = failure(400, "this text is not allowed")
    honest = TinyModel()
    with HostileServer(Script(refused, refused, then=honest)) as server:
        settings = request_for(server, max_concurrency=1)
        run = mia_batch.audit(**settings)
        assert run.manifest.failed["targets"] == 2
        assert run.manifest.failed["of"] == 6
        (reason,) = run.manifest.failed["reasons"]
        assert "this text is not allowed" in reason
        assert sorted(run["scores"]["n_samples"].to_list()) == [0] * 4 + [3] * 4
        n_asked = len(server.asked)
        mia_batch.audit(**settings)
        assert len(server.asked) == n_asked
        again = mia_batch.audit(**settings, retry_failed=True)
    assert again.manifest.failed == {"targets": 0, "of": 6, "again": 0, "reasons": {}}
    assert again["scores"]["n_samples"].to_list() == [3] * 6 + [0, 0]
    with HostileServer(honest) as server:
        whole = mia_batch.audit(**request_for(server) | {"out": settings["out"] + "2"})
    names = [name for name in whole["scores"].columns if name.startswith("samia")]
    assert again["scores"].select(names).equals(whole["scores"].select(names))


def test_chat_is_evidence_of_its_own(request_for):
    with HostileServer(TinyModel()) as server:
        mia_batch.audit(**request_for(server))
        with pytest.raises(
            mia_batch.SettingsError, match="'endpoint chat_instruction' of model 'target' was None"
        ):
            mia_batch.audit(**request_for(server, chat=True, samples=4))
        chat = request_for(server, chat=True)
        run = mia_batch.audit(**chat | {"out": chat["out"] + "2"})
    assert "verbatim" in run.manifest.models["target"]["endpoint chat_instruction"]
    assert {asked.path for asked in server.asked[-3:]} == {"/v1/chat/completions"}


def test_a_key_variable_that_is_named_must_be_there(request_for):
    with (
        HostileServer(TinyModel()) as server,
        pytest.raises(mia_batch.SettingsError, match="'api_key_env' is 'NO_SUCH_KEY', but there"),
    ):
        mia_batch.audit(**request_for(server, api_key_env="NO_SUCH_KEY"))
    assert not server.probes


@pytest.mark.parametrize("address", ["ftp://host/v1", "http://user:word@host/v1", "nowhere"])
def test_an_address_that_cannot_be_one_is_refused_and_leaves_no_folder(
    request_for, tmp_path, address
):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, base_url=address)
    with pytest.raises(mia_batch.SettingsError, match="'base_url'"):
        mia_batch.audit(**settings)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_is_not_there_is_told_and_leaves_no_folder(request_for, tmp_path):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, tokenizer=str(tmp_path / "none"))
        message = r"^setting 'tokenizer': .*none.* cannot be loaded .*; give a folder that a token"
        with pytest.raises(mia_batch.SettingsError, match=message):
            mia_batch.audit(**settings)
    assert not server.asked
    assert not (tmp_path / "run").exists()


def test_a_server_that_is_not_there_is_told_and_nothing_is_lost(request_for):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, max_retries=0)
    with pytest.raises(mia_batch.EngineError, match="cannot be reached"):
        mia_batch.audit(**settings)
    assert json.loads((Path(settings["out"]) / "run.json").read_text())["targets"]["total"] == 8
