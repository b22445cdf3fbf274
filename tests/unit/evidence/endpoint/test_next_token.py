"""Log-probabilities of the next token: what is read, what is believed, and what is found out."""

from __future__ import annotations

import json
import math
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.endpoint.replies import read_next_token
from mia_batch.evidence.request import Request
from mia_batch.models.tokens import Tokenizer
from tests.checkpoints import TEXTS, metaspace_tokenizer, save_tokenizer
from tests.hostile_server import Garbling, HostileServer, Reply, Script, failure
from tests.next_token_server import BY_ID, NAMED, NextTokenModel
from tests.unit.evidence.endpoint.asking import opened as opened_endpoint
from tests.unit.evidence.endpoint.asking import results, until_failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mia_batch.evidence.request import Answer
    from tests.hostile_server import Asked

TOKENS = {1: " a", 2: " b", 3: " c", 4: "x", 5: "x", 6: "y"}
TOKENIZER = cast(
    "Tokenizer",
    SimpleNamespace(
        by_text={text: token for token, text in TOKENS.items() if text != "x"},
        token_text=TOKENS.__getitem__,
    ),
)
HALF, QUARTER = math.log(1 / 2), math.log(1 / 4)


def read(pairs: list[tuple[str, Any]], token: int, *, exact: bool = False) -> Any:
    return read_next_token(json.dumps(pairs), token, TOKENIZER, exact=exact)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("names", [(" a", " b"), ("token_id:1", "token_id:2")])
def test_a_token_that_is_named_has_its_own_value(names: tuple[str, str], exact: bool):
    assert read([(names[0], HALF), (names[1], QUARTER)], 2, exact=exact) == (QUARTER, False)


def test_a_token_that_is_not_listed_has_a_bound():
    """What is left is 3/8, more than the least likely that is listed; then it is less."""
    assert read([(" a", HALF), (" b", 3 * HALF)], 3) == (3 * HALF, True)
    found, bounded = read([(" a", HALF), (" b", math.log(3 / 8))], 3)
    assert (found, bounded) == (pytest.approx(3 * HALF), True)


def test_a_bound_is_finite_where_nothing_seems_left():
    assert read([(" a", 0.0)], 3) == (pytest.approx(math.log(1e-4)), True)
    assert read([(" a", 0.0), (" b", -30.0)], 3) == (-30.0, True)


@pytest.mark.parametrize(
    ("pairs", "token", "exact", "reason"),
    [
        ([(" a", HALF), (" b", QUARTER)], 3, True, "does not name the true token"),
        ([("token_id:1", HALF)], 2, True, "does not name the true token"),
        ([("x", HALF), (" b", QUARTER)], 4, False, "others have that of the true token"),
        ([("x", HALF), (" b", QUARTER)], 5, True, "others have that of the true token"),
        ([(" a", -9999.0)], 1, True, "not a number up to 0"),
        ([(" a", 0.5)], 1, True, "not a number up to 0"),
        ([(" a", math.nan)], 1, False, "not a number up to 0"),
        ([(" a", HALF), (" b", -9999.0)], 1, False, "not a number up to 0"),
        ([(" a", HALF), (" b", HALF), (" c", QUARTER)], 1, False, "add up to more than 1"),
        ([(" a", HALF), (" a", QUARTER)], 1, True, "several log-probabilities"),
    ],
)
def test_what_is_not_believed_has_a_reason(
    pairs: list[tuple[str, float]], token: int, exact: bool, reason: str
):
    found = read(pairs, token, exact=exact)
    assert isinstance(found, str)
    assert reason in found


def test_beside_a_named_token_others_may_be_anything():
    assert read([("token_id:0", -9999.0), ("token_id:2", HALF)], 2, exact=True) == (HALF, False)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> NextTokenModel:
    return NextTokenModel(checkpoint)


@pytest.fixture
def opened(checkpoint: Path, tmp_path: Path):
    return partial(
        opened_endpoint,
        folder=tmp_path,
        kind="logprobs",
        at_points=True,
        tokenizer=Tokenizer.load(str(checkpoint)),
    )


def point(request_id: int, context: str, text: str) -> Request:
    key = f"target-{request_id}:target:probe:0"
    return Request(
        request_id=request_id, kind="logprobs", key=key, context=context, text=text, text_tokens=1
    )


POINTS = [
    point(i, *(f"{' '.join(words[:n])}| {words[n]}").split("|"))
    for i, (words, n) in enumerate((text.split(), 8 + i) for i, text in enumerate(TEXTS[:6]))
]


def true_values(model: NextTokenModel, *, chat: str | None = None) -> list[float]:
    """Log-probabilities of the true tokens, worked out slowly."""
    found = []
    for each in POINTS:
        if chat is not None:
            token = model.tokenizer.encode([each.text.lstrip()])[0][0]
            found.append(model.logprobs(f"{chat}\n\n{each.context}")[token])
            continue
        whole = model.tokenizer.encode([each.context + each.text])[0]
        n = model.tokenizer.count_tokens([each.context])[0]
        found.append(model.logprobs(each.context)[whole[n]])
    return found


def values(found: dict[int, Answer]) -> list[float]:
    return [float(_tokens(each)["logprob"][0]) for each in found.values()]


def _tokens(answer: Answer) -> dict[str, np.ndarray[Any, Any]]:
    assert answer.tokens is not None, answer.error
    return answer.tokens


@pytest.mark.parametrize("honours", [(NAMED, BY_ID), (NAMED,)], ids=["ids", "texts"])
@pytest.mark.parametrize("chat", [False, True])
def test_an_endpoint_that_honours_names_gives_exact_values(
    checkpoint: Path, opened, honours: tuple[str, ...], chat: bool
):
    model = NextTokenModel(checkpoint, honours=honours)
    with HostileServer(model) as server, opened(server, chat=chat, chat_instruction="Go") as end:
        found = results(end, POINTS)
        assert end.capabilities.named_token == "honoured"
        assert end.capabilities.token_id_names == (BY_ID in honours)
    wanted = true_values(model, chat="Go" if chat else None)
    np.testing.assert_allclose(values(found), wanted, rtol=1e-5)
    assert not any(answer.bounded for answer in found.values())
    assert min(wanted) < -6  # far outside the top
    asked = server.asked[0]
    assert asked.fields["temperature"] == 0
    assert asked.fields["max_tokens"] == 1
    assert len(asked.fields[NAMED]) == 1
    assert asked.path.endswith("/chat/completions") == chat


@pytest.mark.parametrize("how", ["ignored", "refused"])
@pytest.mark.parametrize("most", [20, 7])
@pytest.mark.parametrize("by_id", [BY_ID, "nothing"])
@pytest.mark.parametrize("chat", [False, True])
def test_elsewhere_a_token_that_is_not_listed_has_a_bound(
    checkpoint: Path, opened, how: str, most: int, by_id: str, chat: bool
):
    refuses = [NAMED] if how == "refused" else []
    refuses += [BY_ID] if by_id == "nothing" else []
    model = NextTokenModel(checkpoint, honours=[by_id], refuses=refuses, most=most)
    with HostileServer(model) as server, opened(server, chat=chat, chat_instruction="Go") as end:
        assert end.capabilities.named_token == how
        assert end.capabilities.top_logprobs == (20 if most == 20 else 5)
        found = results(end, POINTS)
    assert not any(NAMED in asked.fields for asked in server.asked)
    wanted = true_values(model, chat="Go" if chat else None)
    n_bounded = 0
    for answer, true in zip(found.values(), wanted, strict=True):
        if answer.error is not None:
            assert by_id == "nothing"
            assert "others have that of the true token" in answer.error
            continue
        value = float(_tokens(answer)["logprob"][0])
        n_bounded += answer.bounded
        assert value >= true - 1e-6 if answer.bounded else value == pytest.approx(true, rel=1e-6)
    assert n_bounded


def test_a_true_token_that_is_listed_has_its_own_value(checkpoint: Path, opened):
    model = NextTokenModel(checkpoint, honours=[BY_ID])
    context = POINTS[0].context
    listed = sorted(model.logprobs(context).items(), key=lambda item: -item[1])[:20]
    texts = [(model.tokenizer.token_text(token), token, value) for token, value in listed]
    asked = {
        number: (point(number, context, text), value)
        for number, (text, token, value) in enumerate(texts)
        if model.tokenizer.encode_after(context, text)[2] == [token]
    }
    with HostileServer(model) as server, opened(server) as end:
        found = results(end, [request for request, _ in asked.values()])
    assert values(found) == pytest.approx([value for _, value in asked.values()], rel=1e-6)
    assert asked
    assert not any(answer.bounded for answer in found.values())


class Liar(NextTokenModel):
    """Gives every token that is named the value that ``told`` makes of the most likely one's."""

    told = staticmethod(lambda most, _token, _n: most)
    n = 0

    def pairs(
        self, values: dict[int, float], listed: list[int], *, by_id: bool
    ) -> dict[str, float]:
        if len(listed) == 2:
            self.n += 1
            values = values | {listed[1]: self.told(max(values.values()), listed[1], self.n)}
        return super().pairs(values, listed, by_id=by_id)


@pytest.mark.parametrize(
    "told",
    [
        lambda most, token, n: most,  # the most likely token's own
        lambda most, token, n: most - token / 10_000,  # of its own, but too likely
        lambda most, token, n: -20.0,  # whatever the token
        lambda most, token, n: -20.0 - n,  # another every time
        lambda most, token, n: -9999.0,  # nothing
    ],
)
def test_a_value_that_cannot_be_the_named_tokens_is_found_out(checkpoint: Path, opened, told):
    model = Liar(checkpoint)
    model.told = told
    with HostileServer(model) as server, opened(server) as end:
        assert end.capabilities.named_token == "ignored"


def test_an_endpoint_that_stops_naming_tokens_gives_a_reason_and_no_number(
    checkpoint: Path, model: NextTokenModel, opened
):
    ignoring = NextTokenModel(checkpoint, honours=[BY_ID])
    with (
        HostileServer(lambda asked: (model if asked.is_probe else ignoring)(asked)) as server,
        opened(server) as end,
    ):
        found = results(end, POINTS)
    reasons = [answer.error for answer in found.values() if answer.tokens is None]
    assert set(reasons) == {"the endpoint's answer does not name the true token"}
    assert len(reasons) > len(POINTS) // 2


@pytest.mark.parametrize("chat", [False, True])
def test_without_any_log_probabilities_a_way_out_is_named(checkpoint: Path, opened, chat: bool):
    for model in (
        NextTokenModel(checkpoint, most=0),
        NextTokenModel(checkpoint, refuses=["logprobs"]),
    ):
        with (
            HostileServer(model) as server,
            pytest.raises(SettingsError, match=r"no log-probabilities of the next.*take another"),
        ):
            opened(server, chat=chat)


def always(reply: Reply) -> Callable[[Asked], Reply]:
    return lambda _: reply


def test_what_concerns_every_request_is_said(opened):
    replies = {
        "check the API key": failure(401, "wrong key"),
        "check 'model'": failure(404, "no such model"),
        "same command again when it is well": failure(503, "asleep"),
    }
    for words, reply in replies.items():
        with (
            HostileServer(Script(then=always(reply))) as server,
            pytest.raises((SettingsError, EngineError), match=words),
        ):
            opened(server)


@pytest.mark.parametrize("honours", [(NAMED, BY_ID), (NAMED,)], ids=["ids", "texts"])
def test_a_tokenizer_of_another_model_is_refused(
    checkpoint: Path, opened, tmp_path: Path, honours: tuple[str, ...]
):
    save_tokenizer(metaspace_tokenizer(), tmp_path / "other")
    other = Tokenizer.load(str(tmp_path / "other"), setting="tokenizer")
    with (
        HostileServer(NextTokenModel(checkpoint, honours=honours)) as server,
        pytest.raises(
            SettingsError, match="'tokenizer': the endpoint's tokens are named otherwise"
        ),
    ):
        opened(server, tokenizer=other)


def test_without_a_tokenizer_nothing_is_asked(opened, model: NextTokenModel):
    with HostileServer(model) as server:
        with pytest.raises(SettingsError, match="'tokenizer' is missing"):
            opened(server, tokenizer=None)
        assert server.probes == []


def test_names_without_their_space_are_refused(checkpoint: Path, opened):
    class Stripping(NextTokenModel):
        def pairs(
            self, values: dict[int, float], listed: list[int], *, by_id: bool
        ) -> dict[str, float]:
            named = super().pairs(values, listed, by_id=by_id)
            return {f" {name.strip()} ": value for name, value in named.items()}

    with (
        HostileServer(Stripping(checkpoint, honours=[])) as server,
        pytest.raises(SettingsError, match="named otherwise"),
    ):
        opened(server)


def test_a_token_that_reaches_into_the_text_is_part_of_the_prompt(model: NextTokenModel, opened):
    """The tokenizer cuts both as one: the prompt ends where the first own token begins."""
    whole = model.tokenizer.encode(["the functions of it"])[0]
    texts = [model.tokenizer.token_text(token) for token in whole]
    end = sum(map(len, texts[:2])) - 1  # inside the second token
    request = point(0, "the functions of it"[:end], "the functions of it"[end:])
    with HostileServer(model) as server, opened(server) as endpoint:
        found = results(endpoint, [request])
        (asked,) = server.asked
    prompt = "".join(texts[:2])
    assert (asked.prompt, asked.fields[NAMED]) == (prompt, [whole[2]])
    assert values(found) == pytest.approx([model.logprobs(prompt)[whole[2]]], rel=1e-5)


def test_a_text_without_a_token_of_its_own_is_not_asked_about(model: NextTokenModel, opened):
    (token,) = model.tokenizer.encode([" the"])[0]
    assert model.tokenizer.token_text(token) == " the"
    with HostileServer(model) as server, opened(server) as endpoint:
        (answer,) = results(endpoint, [point(0, "some of th", "e")]).values()
        assert server.asked == []
    assert answer.error == "the text has 0 tokens, fewer than the 1 wanted"
    assert not answer.asked


def test_answers_are_paid_for_once_and_only_for_what_was_asked(
    checkpoint: Path, model: NextTokenModel, opened
):
    with HostileServer(model) as server:
        for n in (3, 6):
            with opened(server) as endpoint:
                results(endpoint, POINTS[:n])
        assert len(server.asked) == 6
        server._answer = NextTokenModel(checkpoint, honours=[BY_ID])
        with opened(server) as endpoint:
            found = results(endpoint, POINTS)
        assert len(server.asked) == 12  # an exact answer is none to another question
    assert any(answer.bounded for answer in found.values())


def test_failures_are_repeated_and_refusals_are_their_requests_own(model: NextTokenModel, opened):
    bare = Reply(content={"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]})
    script = Script(failure(500, "boom"), bare, failure(400, "too long"), then=model)
    with HostileServer(script) as server, opened(server) as endpoint:
        found = results(endpoint, POINTS[:2])
    assert [answer.error for answer in found.values()] == [
        "the endpoint refused the request: status 400: too long",
        None,
    ]


def test_a_gateway_that_garbles_each_question_twice_hides_nothing(model: NextTokenModel, opened):
    gateway = Garbling(2, by=lambda asked: json.dumps(asked.fields), then=model)
    with HostileServer(gateway) as server, opened(server) as endpoint:
        assert endpoint.capabilities.named_token == "honoured"
        assert endpoint.capabilities.top_logprobs == 20


def test_the_limit_of_cost_counts_points(model: NextTokenModel, opened):
    prices = {"price_in": 1e6, "price_out": 0.0, "max_cost": 200.0}  # a token, a coin
    with HostileServer(model) as server, opened(server, **prices) as endpoint:
        for each in POINTS:
            endpoint.submit(each)
        found = until_failure(endpoint)
        with pytest.raises(EngineError, match="'max_cost' is 200, of which"):
            endpoint.results()
    assert len(server.asked) == len(found) < len(POINTS)
