"""What the probe finds at endpoints that honour more or less."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.endpoint import Capabilities
from tests.hostile_server import (
    EVERYTHING,
    MODEL,
    PENALTIES,
    Asked,
    Garbling,
    HostileServer,
    Reply,
    TinyModel,
    failure,
)
from tests.unit.evidence.endpoint.asking import KEY, opened, request, results, texts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BEST = Capabilities(
    n="honoured",
    seed="honoured",
    varied=True,
    top_k="honoured",
    output_token_ids=True,
    max_model_len=2048,
    greedy="honoured",
    neutral=dict.fromkeys(["min_p", *PENALTIES], "honoured"),
)


def probe(answer: Callable[[Asked], Reply], folder: Path, **changed: Any) -> dict[str, Any]:
    with HostileServer(answer) as server, opened(server, folder, **changed) as endpoint:
        return asdict(endpoint.capabilities)


def test_an_endpoint_that_can_everything(tmp_path: Path):
    assert probe(TinyModel(), tmp_path) == asdict(BEST)


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_what_is_ignored_in_silence_is_found_out(name: str, tmp_path: Path):
    found = probe(TinyModel(honours=EVERYTHING - {name}), tmp_path)
    lacking: object = "ignored" if name in {"n", "seed", "top_k"} else False
    changed = {name: lacking}
    if name in BEST.neutral:
        changed = {"neutral": BEST.neutral | {name: "ignored"}}
    if name == "temperature":
        changed = {"greedy": "ignored"}
    assert found == asdict(BEST) | changed


@pytest.mark.parametrize("name", ["n", "seed", "top_k"])
def test_what_is_refused_is_found_out(name: str, tmp_path: Path):
    found = probe(TinyModel(refuses=[name]), tmp_path)
    assert found.pop("dialect")["withdrawn"] == (("top_k",) if name == "top_k" else ())
    best = asdict(BEST)
    del best["dialect"]
    assert found == best | {name: "refused"}


def test_copies_of_one_continuation_are_not_several(tmp_path: Path):
    class Copies(TinyModel):
        def _choice(self, asked: Asked, index: int, given: int) -> dict[str, Any]:
            return {**super()._choice(asked, 0, given), "index": index}

    assert probe(Copies(), tmp_path)["n"] == "ignored"


def test_an_endpoint_that_never_samples_is_found_out(tmp_path: Path):
    class Greedy(TinyModel):
        def text(self, prompt: Any, seed: int) -> str:
            return super().text(prompt, 0)

    found = probe(Greedy(), tmp_path)
    assert (found["varied"], found["n"], found["top_k"]) == (False, "honoured", "ignored")


def test_at_temperature_0_top_k_makes_no_difference_and_is_not_tried(tmp_path: Path):
    assert probe(TinyModel(), tmp_path, temperature=0)["top_k"] is None


def test_a_gateway_that_garbles_each_prompt_twice_is_borne_by_the_probe_too(tmp_path: Path):
    with HostileServer(Garbling(2)) as server, opened(server, tmp_path) as endpoint:
        assert asdict(endpoint.capabilities) == asdict(BEST)
        found = results(endpoint, [request(i, n=2) for i in range(4)])
    assert [len(texts(result)) for result in found.values()] == [2] * 4
    assert len(server.asked) == 3 * 4


def test_a_gateway_that_garbles_every_question_twice_hides_nothing(tmp_path: Path):
    gateway = Garbling(2, by=lambda asked: sorted(asked.fields.items()))
    assert probe(gateway, tmp_path) == asdict(BEST)


def test_a_question_whose_answers_stay_garbled_counts_as_refused(tmp_path: Path):
    honest = TinyModel()
    broken = Reply(content=b"oops")
    found = probe(lambda asked: broken if "n" in asked.fields else honest(asked), tmp_path)
    assert found == asdict(BEST) | {"n": "refused"}


def test_unusable_answers_of_the_probe_are_paid_for_and_bounded(tmp_path: Path):
    with HostileServer(Garbling(3)) as server:
        with pytest.raises(EngineError, match=r"no usable answer .*is not JSON.*after 3 tries"):
            opened(server, tmp_path)
        assert len(server.probes) == 3
        prices = {"price_in": 0.0, "price_out": 1e6, "max_cost": 47.0}  # a token, a coin
        server._answer = Garbling(1)
        with pytest.raises(EngineError, match="'max_cost' is 47, of which 24 is spent"):
            opened(server, tmp_path, **prices)


@pytest.mark.parametrize(
    ("said", "serves"),
    [
        (None, None),
        (MODEL, None),
        (f"vendor/{MODEL.upper()}-2026-01-01", None),
        ("another", "another"),
        ("a\nb", "a b"),
    ],
)
def test_answers_of_another_model_are_noticed(said: str | None, serves: str | None, tmp_path: Path):
    tiny = TinyModel()

    def named(asked: Asked) -> Reply:
        reply = tiny(asked)
        return replace(reply, content={**reply.content, "model": said})

    assert probe(named, tmp_path)["serves"] == serves


def test_no_limit_no_question(tmp_path: Path):
    assert probe(TinyModel(refuses=["top_k"]), tmp_path, top_k=0)["top_k"] is None


def test_a_chat_endpoint_is_probed_by_chat(tmp_path: Path):
    with HostileServer(TinyModel()) as server, opened(server, tmp_path, chat=True) as endpoint:
        found = endpoint.capabilities
    assert (found.n, found.seed, found.top_k) == ("honoured", "honoured", "honoured")
    posted = [asked for asked in server.probes if asked.method == "POST"]
    assert {asked.path for asked in posted} == {"/v1/chat/completions"}


def test_probes_are_few_and_small(tmp_path: Path):
    with HostileServer(TinyModel()) as server, opened(server, tmp_path):
        pass
    assert len(server.probes) <= 19
    assert max(asked.fields.get("max_tokens", 0) for asked in server.probes) <= 24


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (failure(401, f"wrong key {KEY}"), SettingsError, r"wrong key \[key\]\); check the API"),
        (failure(403, "not you"), SettingsError, r"status 403: not you\); check the API key"),
        (failure(404, "no such model"), SettingsError, r"404: no such model\); check 'model'"),
        (failure(400, "max_tokens is old"), SettingsError, "400: max_tokens is old.*change what"),
        (failure(402, "pay"), EngineError, "status 402: pay.*the account is exhausted: pay in"),
        (failure(429, "x", "insufficient_quota"), EngineError, "account is exhausted: pay in"),
        (failure(503, "asleep"), EngineError, r"503: asleep \(after 4 tries\).*same command again"),
        (failure(429, "x", retry_after="3600"), EngineError, "it asks to wait 3600 s"),
        (Reply(content=b"<h1>Welcome</h1>"), EngineError, "no usable.*Welcome.*ends with /v1"),
        (Reply(content={"choices": []}), EngineError, "no usable answer.*no choices"),
        (
            Reply(status=307, headers={"Location": "http://elsewhere/v1"}),
            SettingsError,
            "a redirect to http://elsewhere/v1.*the address that answers by itself",
        ),
    ],
)
def test_what_concerns_every_request_is_said_at_once(
    reply: Reply, error: type[Exception], message: str, tmp_path: Path
):
    with HostileServer(lambda _: reply) as server, pytest.raises(error, match=message) as caught:
        opened(server, tmp_path)
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there_is_said_at_once(tmp_path: Path):
    with HostileServer(TinyModel()) as server:
        pass
    with pytest.raises(EngineError, match=r"cannot be reached: no connection.*its server runs"):
        opened(server, tmp_path)
