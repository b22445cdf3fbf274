"""What is found out about several servers before they are asked as one source."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.request import Request
from tests.checkpoints import TEXTS
from tests.hostile_server import EVERYTHING, Asked, HostileServer, Reply, TinyModel, failure
from tests.next_token_server import BY_ID, NAMED, NextTokenModel
from tests.unit.evidence.endpoint.asking import opened_all, request, results, servers, texts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = TinyModel()


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (
            failure(401, "who?"),
            SettingsError,
            "refuses model 'tiny' (status 401: who?); check the A",
        ),
        (
            failure(404, "no such"),
            SettingsError,
            "refuses model 'tiny' (status 404: no such); check",
        ),
        (
            Reply(content=b"<html>"),
            EngineError,
            "gives no usable answer (it is not JSON: no message",
        ),
    ],
)
def test_a_server_that_cannot_be_asked_from_the_first_is_named(
    reply: Reply, error: type[Exception], message: str, tmp_path: Path
):
    with servers(MODEL, lambda _: reply) as several:
        with pytest.raises(error) as caught:
            opened_all(several, tmp_path)
        assert str(caught.value).startswith(f"the endpoint {several[1].url} {message[:40]}")


def test_a_server_that_is_not_there_from_the_first_is_named(tmp_path: Path):
    with HostileServer(MODEL) as gone:
        pass
    with HostileServer(MODEL) as server, pytest.raises(EngineError) as caught:
        opened_all([server, gone], tmp_path)
    assert str(caught.value).startswith(f"the endpoint {gone.url} cannot be reached: no connection")


@pytest.mark.parametrize("name", ["n", "seed", "top_k"])
def test_what_one_server_ignores_or_refuses_is_asked_of_none(name: str, tmp_path: Path):
    told: list[str] = []
    others: list[tuple[str, dict[str, Any]]] = [
        ("ignored", {"honours": EVERYTHING - {name}}),
        ("refused", {"refuses": [name]}),
    ]
    for found, lacking in others:
        told.clear()
        with servers(MODEL, TinyModel(**lacking)) as several:
            folder = tmp_path / found
            folder.mkdir()
            with opened_all(several, folder, tell=told.append) as endpoint:
                assert getattr(endpoint.capabilities, name) == found
                answers = results(endpoint, [request(i, n=2) for i in range(4)])
        assert [len(texts(answer)) for answer in answers.values()] == [2] * 4
        one, two = (server.url for server in several)
        (sentence,) = told
        assert sentence.startswith(f"{two} differs from {one}: ")
        assert f"{name} is {found!r}, not 'honoured'" in sentence
        if found == "refused" or name == "top_k":
            assert not any(
                asked.fields.get(name, 1) != 1 for server in several for asked in server.asked
            )


def test_the_shortest_context_is_that_of_all(tmp_path: Path):
    class Short(TinyModel):
        def __call__(self, asked: Asked) -> Reply:
            if asked.method == "GET":
                return Reply(content={"data": [{"id": "tiny", "max_model_len": 1024}]})
            return super().__call__(asked)

    told: list[str] = []
    with (
        servers(MODEL, Short()) as several,
        opened_all(several, tmp_path, tell=told.append) as endpoint,
    ):
        assert endpoint.capabilities.max_model_len == 1024
    one, two = (server.url for server in several)
    assert told == [
        f"{two} differs from {one}: max_model_len is 1024, not 2048; of each, what all can do is "
        "used"
    ]


def test_servers_that_draw_other_texts_with_the_same_seed_do_not_repeat_each_other(tmp_path: Path):
    class Other(TinyModel):
        def text(self, prompt: Any, seed: int) -> str:
            return super().text(prompt, seed + 1)

    told: list[str] = []
    with (
        servers(MODEL, Other()) as several,
        opened_all(several, tmp_path, tell=told.append) as endpoint,
    ):
        assert endpoint.capabilities.seed == "ignored"
        assert not endpoint.repeats
    assert told == ["with the same seed the servers of 'base_url' draw different texts"]


def test_a_server_that_gives_copies_where_others_draw_is_refused(tmp_path: Path):
    class Copying(TinyModel):
        def text(self, prompt: Any, seed: int) -> str:
            return super().text(prompt, 0)

    with servers(Copying(), MODEL) as several:
        with pytest.raises(SettingsError) as caught:
            opened_all(several, tmp_path)
        copies, draws = (server.url for server in several)
    assert str(caught.value) == (
        f"setting 'base_url': {copies} gives the same text whatever the seed, and {draws} does "
        "not; leave one of them out"
    )


def echoing(shift: float) -> Callable[[Asked], Reply]:
    """Echo words, each with a log-probability of its own."""

    def answer(asked: Asked) -> Reply:
        if asked.method == "GET":
            return Reply(content={"data": []})
        tokens = re.findall(r"\s*\S+", asked.prompt)
        values = [None, *(shift - len(token) for token in tokens[1:])]
        logprobs = {"tokens": [*tokens, " drawn"], "token_logprobs": [*values, -1.0]}
        choice = {"index": 0, "text": asked.prompt, "logprobs": logprobs}
        return Reply(content={"choices": [choice]})

    return answer


def test_servers_with_log_probabilities_of_two_models_are_refused(tmp_path: Path):
    with servers(echoing(0.0), echoing(-0.75)) as several:
        with pytest.raises(SettingsError) as caught:
            opened_all(several, tmp_path, kind="logprobs")
        one, two = (server.url for server in several)
    assert str(caught.value) == (
        f"setting 'base_url': {two} gives other log-probabilities than {one}, by 0.75 nats on "
        "average, so they do not serve the same model; leave one of them out"
    )


def test_log_probabilities_that_differ_as_accelerators_do_are_of_one_model(tmp_path: Path):
    asked = [
        Request(request_id=i, kind="logprobs", key=f"{i}", text=f"some text {i}") for i in range(6)
    ]
    with (
        servers(echoing(0.0), echoing(-0.125)) as several,
        opened_all(several, tmp_path, kind="logprobs") as endpoint,
    ):
        for each in asked:
            (answer,) = results(endpoint, [each]).values()
            assert answer.tokens is not None
            assert answer.tokens["logprob"][1:].tolist() in [[-5.0, -2.0], [-5.125, -2.125]]
    assert [len(server.asked) for server in several] == [3, 3]


@pytest.mark.parametrize("ids", [True, False])
def test_where_one_server_names_no_token_all_give_bounds(
    checkpoint: Path, tmp_path: Path, ids: bool
):
    exact = NextTokenModel(checkpoint)
    weak = NextTokenModel(checkpoint, honours=[BY_ID] if ids else [], most=7)
    told: list[str] = []
    asked = [
        Request(request_id=i, kind="logprobs", key=f"{i}", context=context, text=" of")
        for i, context in enumerate(text[: text.index(" ", 40)] for text in TEXTS[:8])
    ]
    with (
        servers(exact, weak) as several,
        opened_all(
            several,
            tmp_path,
            kind="logprobs",
            at_points=True,
            tokenizer=exact.tokenizer,
            tell=told.append,
        ) as endpoint,
    ):
        found = endpoint.capabilities
        for each in asked:
            results(endpoint, [each])
    assert (found.named_token, found.top_logprobs, found.token_id_names) == ("ignored", 5, ids)
    sent = [each.fields for server in several for each in server.asked]
    assert [len(server.asked) for server in several] == [4, 4]
    assert {fields["logprobs"] for fields in sent} == {5}
    assert not any(NAMED in fields for fields in sent)
    assert not any((BY_ID in fields) != ids for fields in sent)
    (sentence,) = told
    assert "named_token is 'ignored', not 'honoured'; top_logprobs is 5, not 20" in sentence
