"""What the probe finds at endpoints that honour more or less."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

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
    LlamaCpp,
    Reply,
    TinyModel,
    failure,
)
from tests.unit.evidence.endpoint.asking import KEY, opened

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


def probe(
    answer: Callable[[Asked], Reply], folder: Path, **changed: Any
) -> dict[str, Any]:
    with HostileServer(answer) as server, opened(server, folder, **changed) as endpoint:
        return asdict(endpoint.capabilities)


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_what_is_ignored_in_silence_is_found_out(name, tmp_path):
    capabilities = probe(TinyModel(honours=EVERYTHING - {name}), tmp_path)
    missing: object = "ignored" if name in {"n", "seed", "top_k"} else False
    changed = {name: missing}
    if name in BEST.neutral:
        changed = {"neutral": BEST.neutral | {name: "ignored"}}
    if name == "temperature":
        changed = {"greedy": "ignored"}
    assert capabilities == asdict(BEST) | changed


@pytest.mark.parametrize("name", ["n", "seed", "top_k"])
def test_what_is_refused_is_found_out(name, tmp_path):
    capabilities = probe(TinyModel(refuses=[name]), tmp_path)
    assert capabilities.pop("dialect")["withdrawn"] == (
        ("top_k",) if name == "top_k" else ()
    )
    best = asdict(BEST)
    del best["dialect"]
    assert capabilities == best | {name: "refused"}


class Copies(TinyModel):
    def _choice(self, request: Asked, index: int, number: int) -> dict[str, Any]:
        return {**super()._choice(request, 0, number), "index": index}


class Greedy(TinyModel):
    def text(self, prompt: Any, seed: int) -> str:
        return super().text(prompt, 0)


@pytest.mark.parametrize(
    ("answer", "changed", "found_out"),
    [
        (Copies(), {}, {"n": "ignored"}),
        (Greedy(), {}, {"varied": False, "n": "honoured", "top_k": "ignored"}),
        # Top-k is not tried where it makes no difference, or is no limit.
        (TinyModel(), {"temperature": 0}, {"top_k": None}),
        (TinyModel(refuses=["top_k"]), {"top_k": 0}, {"top_k": None}),
        (LlamaCpp(4), {}, {"prompt_slots": 4}),
        (LlamaCpp(), {}, {"prompt_slots": 1}),  # it does not say how many
    ],
)
def test_what_an_odd_endpoint_is_found_to_do(answer, changed, found_out, tmp_path):
    assert probe(answer, tmp_path, **changed).items() >= found_out.items()


BROKEN = Reply(content=b"oops")


@pytest.mark.parametrize(
    ("answer", "changed", "found_out"),
    [
        (TinyModel(), {}, {}),
        # Hides nothing
        (
            Garbling(2, by=lambda wire_request: sorted(wire_request.fields.items())),
            {},
            {},
        ),
        (
            lambda wire_request: (
                BROKEN if "n" in wire_request.fields else TinyModel()(wire_request)
            ),
            {},
            {"n": "refused"},
        ),
    ],
)
def test_an_endpoint_that_can_everything(answer, changed, found_out, tmp_path):
    assert probe(answer, tmp_path, **changed) == asdict(BEST) | found_out


def test_unusable_answers_of_the_probe_are_paid_for_and_bounded(tmp_path):
    with HostileServer(Garbling(3)) as server:
        with pytest.raises(
            EngineError, match=r"no usable answer .*is not JSON.*after 3 tries"
        ):
            opened(server, tmp_path)
        assert sum(request.method == "POST" for request in server.probes) == 3
        # A token, a coin
        prices = {
            "price_in": 0.0,
            "price_out": 1e6,
            "max_cost": 47.0,
        }
        server._answer = Garbling(1)
        with pytest.raises(EngineError, match="max_cost= is 47, of which 24 is spent"):
            opened(server, tmp_path, **prices)


@pytest.mark.parametrize(
    ("model_said", "serves"),
    [
        (None, None),
        (MODEL, None),
        (f"vendor/{MODEL.upper()}-2026-01-01", None),
        ("another", "another"),
        ("a\nb", "a b"),
    ],
)
def test_answers_of_another_model_are_noticed(model_said, serves, tmp_path):
    tiny = TinyModel()

    def answer_as(request):
        reply = tiny(request)
        return replace(reply, content={**reply.content, "model": model_said})

    assert probe(answer_as, tmp_path)["serves"] == serves


def test_a_chat_endpoint_is_probed_by_chat(tmp_path):
    with (
        HostileServer(TinyModel()) as server,
        opened(server, tmp_path, chat=True) as endpoint,
    ):
        capabilities = endpoint.capabilities
    assert (capabilities.n, capabilities.seed, capabilities.top_k) == (
        "honoured",
        "honoured",
        "honoured",
    )
    posted = [request for request in server.probes if request.method == "POST"]
    assert {request.path for request in posted} == {"/v1/chat/completions"}
    assert len(server.probes) <= 28  # few and small
    assert max(request.fields["max_tokens"] for request in posted) <= 64


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (
            failure(401, f"wrong key {KEY}"),
            SettingsError,
            r"wrong key \[key\]\); check the API",
        ),
        (
            failure(403, "not you"),
            SettingsError,
            r"status 403: not you\); check the API key",
        ),
        (
            failure(404, "no such model"),
            SettingsError,
            r"404: no such model\); check model=",
        ),
        (
            failure(400, "max_tokens is old"),
            SettingsError,
            "400: max_tokens is old.*change what",
        ),
        (
            failure(402, "pay"),
            EngineError,
            "status 402: pay.*the account is exhausted: pay in",
        ),
        (
            failure(429, "x", "insufficient_quota"),
            EngineError,
            "account is exhausted: pay in",
        ),
        (
            failure(503, "asleep"),
            EngineError,
            r"503: asleep \(after 4 tries\).*same command again",
        ),
        (failure(429, "x", retry_after="3600"), EngineError, "it asks to wait 3600 s"),
        (
            Reply(content=b"<h1>Welcome</h1>"),
            EngineError,
            "no usable.*Welcome.*ends with /v1",
        ),
        (Reply(content={"choices": []}), EngineError, "no usable answer.*no choices"),
        (
            failure(400, "filtered", "content_filter"),
            EngineError,
            r"filtered the prompt \(content_filter\)\); the prompt is harmless",
        ),
        (
            Reply(status=307, headers={"Location": "http://elsewhere/v1"}),
            SettingsError,
            "a redirect to http://elsewhere/v1.*the address that answers by itself",
        ),
    ],
)
def test_what_concerns_every_request_is_said_at_once(reply, error, message, tmp_path):
    with (
        HostileServer(lambda _: reply) as server,
        pytest.raises(error, match=message) as caught,
    ):
        opened(server, tmp_path)
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
