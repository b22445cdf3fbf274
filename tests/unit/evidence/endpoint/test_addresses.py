"""Addresses that are wrong: what is said of them, and never that the model is wrong."""

from collections.abc import Callable
from typing import Any

import pytest

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.endpoint.client import embed_at
from mia_batch.evidence.endpoint.probe import _guess_addresses
from tests.hostile_server import MODEL, Asked, HostileServer, Reply, TinyModel, failure
from tests.unit.evidence.endpoint.asking import KEY, NoJitter, opened, settings_for

TINY = TinyModel()
PAGE = b"<html><title>Welcome to our model garden</title></html>"
NOWHERE = {
    "404 of HTML": Reply(status=404, content=PAGE),
    "404 of JSON": Reply(status=404, content={"detail": "Not Found"}),
    "404 with the path": failure(404, "Invalid URL (POST /my-model/completions)"),
    "405 of JSON": Reply(status=405, content={"detail": "Method Not Allowed"}),
    "405 of HTML": Reply(status=405, content=b"<h1>405 Not Allowed</h1>"),
    "200 of HTML": Reply(content=PAGE),
    "200 with an error": Reply(content={"error": "Unexpected endpoint or method"}),
}


class Strict:
    """Knows some paths exactly, and answers alike at all others."""

    def __init__(self, elsewhere: Reply, *kinds: str) -> None:
        self._elsewhere = elsewhere
        names = ("models", *kinds)
        self._paths = {f"/v1/{name}" for name in names}

    def __call__(self, request: Asked) -> Reply:
        return TINY(request) if request.path in self._paths else self._elsewhere


def explain(
    answer: Callable[[Asked], Reply], folder: Any, path: str, **changed: Any
) -> str:
    with HostileServer(answer) as server:
        root = server.url.removesuffix("/v1")
        with pytest.raises((SettingsError, EngineError)) as caught:
            opened(server, folder, base_url=root + path, **changed)
        assert "\n" not in str(caught.value)
        return str(caught.value).replace(root, "ROOT")


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("path", ["", "/", "/v1/v1", "/v1/models", "/api", "/v2"])
@pytest.mark.parametrize("elsewhere", NOWHERE)
def test_a_wrong_path_blames_the_address_and_names_the_right_one(
    elsewhere, path, chat, tmp_path
):
    kind = "chat/completions" if chat else "completions"
    strict = Strict(NOWHERE[elsewhere], kind)
    sentence = explain(strict, tmp_path, path, chat=chat)
    assert sentence.startswith(f"the endpoint ROOT{path} ")
    assert sentence.endswith("; give base_url= as ROOT/v1, where models are listed")
    assert "refuses model" not in sentence
    assert "model=" not in sentence


@pytest.mark.parametrize("elsewhere", NOWHERE)
def test_a_web_page_is_no_endpoint(elsewhere, tmp_path):
    reply = NOWHERE[elsewhere]
    sentence = explain(lambda _: reply, tmp_path, "/v1")
    if elsewhere == "200 with an error":
        assert sentence.endswith("are not of the form that OpenAI's API has")
    else:
        assert "; check base_url=, which usually ends with /v1" in sentence
    assert "model=" not in sentence


@pytest.mark.parametrize(
    ("kind", "chat", "alternative"),
    [
        ("chat/completions", False, r"takes no completions \(.*\); try chat="),
        ("completions", True, r"takes no chats \(.*\); try the completions endpoint"),
    ],
)
def test_a_server_of_the_other_kind_is_told_from_a_wrong_address(
    kind, chat, alternative, tmp_path
):
    strict = Strict(NOWHERE["404 of JSON"], kind)
    with (
        HostileServer(strict) as server,
        pytest.raises(SettingsError, match=f"lists models and {alternative}"),
    ):
        opened(server, tmp_path, chat=chat)


@pytest.mark.parametrize(
    ("path", "chat"),
    [
        ("/v1/completions", False),
        ("/v1/completions/", False),
        ("/v1/chat/completions", True),
    ],
)
def test_an_address_may_name_what_is_asked(path, chat, tmp_path):
    strict = Strict(NOWHERE["404 of HTML"], "completions", "chat/completions")
    with HostileServer(strict) as server:
        root = server.url.removesuffix("/v1")
        changed = {"base_url": root + path, "chat": chat}
        with opened(server, tmp_path, **changed) as endpoint:
            assert endpoint.capabilities.max_model_len == 2048
        posted = {request.path for request in server.probes if request.method == "POST"}
    assert posted == {path.rstrip("/")}


@pytest.mark.parametrize(
    ("path", "chat", "sentence"),
    [
        ("/v1/chat/completions", False, "where chats are asked; add chat=, or leave"),
        ("/v1/completions", True, "where texts are completed; leave chat= out"),
    ],
)
def test_an_address_that_names_the_other_kind_is_refused_before_it_is_asked(
    path, chat, sentence, tmp_path
):
    with HostileServer(TINY) as server:
        root = server.url.removesuffix("/v1")
        with pytest.raises(SettingsError, match=f"base_url= ends with .*{sentence}"):
            opened(server, tmp_path, base_url=root + path, chat=chat)
        assert server.probes == []


@pytest.mark.parametrize(
    "message", ["The model `other` does not exist", "The API deployment is unknown"]
)
def test_a_model_that_is_not_there_is_named_with_those_that_are(message, tmp_path):
    unknown = failure(404, message, "model_not_found")
    with (
        HostileServer(lambda a: TINY(a) if a.method == "GET" else unknown) as server,
        pytest.raises(
            SettingsError,
            match=f"refuses model 'other' .*; give a model= that it lists, such as '{MODEL}'",
        ),
    ):
        opened(server, tmp_path, model="other")


def test_the_key_goes_to_no_other_host(tmp_path):
    requests_seen: list[Asked] = []

    def answer(request: Asked) -> Reply:
        requests_seen.append(request)
        return NOWHERE["404 of HTML"]

    explain(answer, tmp_path, "/api/v1/v1/models?version=2", api_key=KEY)
    hosts = {request.headers["host"].partition(":")[0] for request in requests_seen}
    assert hosts == {"127.0.0.1"}
    assert {request.path.partition("?")[2] for request in requests_seen} == {
        "version=2"
    }


@pytest.mark.parametrize(
    ("address", "guesses"),
    [
        ("http://h", ["http://h/v1"]),
        ("http://h/api", ["http://h/api/v1", "http://h/v1"]),
        ("http://h/v1", []),
        ("http://h/v1/v1/", ["http://h/v1"]),
        ("http://h/v1/chat/completions", ["http://h/v1"]),
        ("http://h/v1/chat", ["http://h/v1"]),
        ("http://h/v2?version=2", ["http://h/v1?version=2"]),
    ],
)
def test_addresses_that_may_be_meant(address, guesses):
    assert _guess_addresses(address) == guesses


def test_embeddings_at_a_wrong_path_blame_the_address(tmp_path):
    with HostileServer(lambda _: NOWHERE["404 of HTML"]) as server:
        settings = settings_for(server)
        with pytest.raises(EngineError, match="check base_url=, which usually ends"):
            embed_at(
                settings,
                [["a text"]],
                tmp_path / "journal.sqlite",
                lambda *_: None,
                rng=NoJitter(),
            )
