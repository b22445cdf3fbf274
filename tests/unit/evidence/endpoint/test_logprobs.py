"""Log-probabilities of an endpoint: of an echoed prompt, and of the next token."""

import json
import math
import re
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint.wire import read_next_token
from mia_batch.evidence.request import Answer, Request
from mia_batch.models.tokens import Tokenizer
from tests.checkpoints import TEXTS, metaspace_tokenizer, save_tokenizer
from tests.hostile_server import (
    MODEL,
    Asked,
    Garbling,
    HostileServer,
    LlamaCpp,
    Reply,
    Script,
    StreamOnly,
    TinyModel,
)
from tests.next_token_server import BY_ID, NAMED, NextTokenModel
from tests.unit.evidence.endpoint.asking import answered, results
from tests.unit.evidence.endpoint.asking import opened as opened_endpoint


def value(tokens: list[str], index: int) -> float:
    """What the echoing model says of a token: it depends on all before it."""
    return -(len("".join(tokens[: index + 1])) % 7) - 0.5


def echo(request: Asked) -> Reply:
    """A model whose tokens are words with the space before them, after a special token."""
    if request.method == "GET":
        return Reply(content={"data": [{"id": MODEL, "max_model_len": 2048}]})
    tokens = ["<s>", *re.findall(r"\s*\S+|\s+$", request.prompt), " drawn"]
    logprobs = [None, *(value(tokens[1:], i) for i in range(len(tokens) - 1))]
    choice = {
        "index": 0,
        "text": request.prompt + " drawn",
        "finish_reason": "length",
        "logprobs": {"tokens": tokens, "token_logprobs": logprobs},
    }
    usage = {"prompt_tokens": len(tokens) - 1, "completion_tokens": 1}
    return Reply(content={"choices": [choice], "usage": usage})


def text_request(request_id: int, text: str, **changes: Any) -> Request:
    key = f"target-{request_id}:text:0"
    return Request(
        request_id=request_id, kind="logprobs", key=key, text=text, **changes
    )


opened = partial(opened_endpoint, kind="logprobs")


def logprobs(result: Answer) -> list[float]:
    assert result.tokens is not None, result.error
    assert result.tokens.keys() == {"logprob"}
    logprobs_of_text: list[float] = result.tokens["logprob"].tolist()
    return logprobs_of_text


def test_a_text_gets_the_values_of_its_tokens_and_nothing_sent_changes_them(tmp_path):
    changed = {"temperature": 0.3, "top_k": 7, "top_p": 0.5}
    requests = [text_request(i, f"text number {i} of some") for i in range(9)]
    with HostileServer(echo) as server, opened(server, tmp_path, **changed) as endpoint:
        answers_by_id = results(endpoint, requests)
        assert endpoint.capabilities.max_model_len == 2048
    for number, result in answers_by_id.items():
        tokens = ["text", " number", f" {number}", " of", " some"]
        assert logprobs(result) == [value(tokens, i) for i in range(5)]
        assert (result.passes, result.bos) == (1, True)
    assert server.asked[0].fields == {
        "model": MODEL,
        "prompt": "text number 0 of some",
        "echo": True,
        "logprobs": 1,
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stream": False,
    }


def test_a_stream_gives_the_same_values_of_a_text(tmp_path):
    requests = [text_request(i, f"text number {i} of some") for i in range(3)]
    answers, _ = answered(StreamOnly(echo), tmp_path, requests, kind="logprobs")
    for number, result in answers.items():
        tokens = ["text", " number", f" {number}", " of", " some"]
        assert logprobs(result) == [value(tokens, i) for i in range(5)]
        assert result.bos


def test_a_context_is_cut_to_its_last_tokens_sent_and_not_scored(checkpoint, tmp_path):
    tokenizer = Tokenizer.load(str(checkpoint))
    context = TEXTS[0][:300]
    requests = [
        text_request(0, " and text", context="some context"),
        text_request(1, " and text", context=context, context_tokens=5),
    ]
    changed = {"kind": "logprobs", "tokenizer": tokenizer}
    answers_by_id, server = answered(echo, tmp_path, requests, **changed)
    tokens = ["some", " context", " and", " text"]
    assert logprobs(answers_by_id[0]) == [value(tokens, 2), value(tokens, 3)]
    context_kept = server.asked[1].prompt.removesuffix(" and text")
    assert context.endswith(context_kept)
    assert tokenizer.count_tokens([context_kept]) == [5]


NOT_CUT = "the context cannot be cut without its tokens; give --tokenizer"


@pytest.mark.parametrize(
    ("request_fields", "error"),
    [
        ({"text": "text", "context": "some context", "context_tokens": 1}, NOT_CUT),
        ({"text": "", "context": "context"}, "the text has no token"),
        ({"kind": "samples"}, "the endpoint was opened for logprobs, not for samples"),
    ],
)
def test_what_cannot_be_asked_is_not_asked_for(request_fields, error, tmp_path):
    request_fields = Request(
        **{"request_id": 0, "kind": "logprobs", "context": "a context"} | request_fields
    )
    answers_by_id, server = answered(echo, tmp_path, [request_fields], kind="logprobs")
    assert (answers_by_id[0].error, answers_by_id[0].passes, server.asked) == (
        error,
        0,
        [],
    )


def test_a_limit_of_tokens_takes_the_first_and_refuses_shorter_texts(tmp_path):
    requests = [
        text_request(i, "one two three", text_tokens=2 + 2 * i) for i in range(2)
    ]
    answers_by_id, _ = answered(echo, tmp_path, requests, kind="logprobs")
    assert len(logprobs(answers_by_id[0])) == 2
    assert answers_by_id[1].error == "the text has 3 tokens, fewer than the 4 wanted"
    assert not answers_by_id[1].is_eligible


def test_tokens_that_are_not_the_prompts_fail_their_request_and_unscored_is_nan(
    tmp_path,
):
    def normalising(wire_request):
        """Lowers the text, and has no special token before it."""
        reply = echo(wire_request)
        if wire_request.method == "POST":
            listed = reply.content["choices"][0]["logprobs"]
            del listed["tokens"][0], listed["token_logprobs"][0]
            listed["tokens"][0] = listed["tokens"][0].replace("Some", "some")
        return reply

    requests = [text_request(0, "Some text"), text_request(1, "some text")]
    answers_by_id, _ = answered(normalising, tmp_path, requests, kind="logprobs")
    assert (
        answers_by_id[0].error
        == "the endpoint's tokens, put together, are not the prompt"
    )
    assert answers_by_id[1].tokens is not None
    assert answers_by_id[1].tokens["logprob"].dtype == np.float32
    assert not answers_by_id[1].bos
    assert [math.isnan(logprob) for logprob in logprobs(answers_by_id[1])] == [
        True,
        False,
    ]


NO_ECHO = (
    r"does not echo log-probabilities of prompts \(.*\); take another endpoint, or"
)


@pytest.mark.parametrize(
    ("answer", "changed", "match"),
    [
        (TinyModel(honours=()), {}, NO_ECHO),
        (TinyModel(honours=("echo_logprobs",)), {}, NO_ECHO),  # without tokens
        (
            TinyModel(refuses=["echo"]),
            {},
            r"not echo log-prob.*unknown field \['echo'\].*take",
        ),
        (
            LlamaCpp(then=TinyModel(honours=())),
            {},
            r"does not echo .*llama\.cpp.*give the model's file itself, model= ",
        ),
        (None, {"kind": "fills"}, "gives samples and logprobs, but no fills"),
        (None, {"chat": True}, "chat: a chat endpoint gives no log-prob"),
        (None, {"at_points": True}, "tokenizer= is missing"),
    ],
)
def test_what_gives_no_log_probabilities_is_refused(answer, changed, match, tmp_path):
    with HostileServer(answer or echo) as server:
        with pytest.raises(SettingsError, match=match):
            opened(server, tmp_path, **changed)
        assert server.asked == []
        assert bool(server.probes) == (answer is not None)


# Log-probabilities of the next token: what is read, what is believed, and what is found
# out.

TOKENS = {1: " a", 2: " b", 3: " c", 4: "x", 5: "x", 6: "y"}
TOKENIZER = cast(
    "Tokenizer",
    SimpleNamespace(
        ids_by_text={text: token for token, text in TOKENS.items() if text != "x"},
        token_text=TOKENS.__getitem__,
    ),
)
HALF, QUARTER = math.log(1 / 2), math.log(1 / 4)


def read(pairs: list[tuple[str, Any]], token: int, *, exact: bool = False) -> Any:
    return read_next_token(pairs, token, TOKENIZER, exact=exact)


@pytest.mark.parametrize(
    ("pairs", "exact", "logprob_and_exact"),
    [
        # Others may be odd
        (
            [("token_id:0", -9999.0), ("token_id:2", HALF)],
            True,
            (HALF, False),
        ),
        # What is left is 3/8, more than the least likely that is listed; then it is
        # less.
        ([(" a", HALF), (" c", 3 * HALF)], False, (3 * HALF, True)),
        ([(" a", HALF), (" c", math.log(3 / 8))], False, (3 * HALF, True)),
        # It is finite where nothing seems left.
        ([(" a", 0.0)], False, (math.log(1e-4), True)),
        ([(" a", 0.0), (" c", -30.0)], False, (-30.0, True)),
    ],
)
def test_a_token_that_is_not_listed_has_a_bound(pairs, exact, logprob_and_exact):
    assert read(pairs, 2, exact=exact) == (
        pytest.approx(logprob_and_exact[0]),
        logprob_and_exact[1],
    )


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("names", [(" a", " b"), ("token_id:1", "token_id:2")])
def test_a_token_that_is_named_has_its_own_value(names, exact):
    assert read([(names[0], HALF), (names[1], QUARTER)], 2, exact=exact) == (
        QUARTER,
        False,
    )


@pytest.mark.parametrize(
    ("pairs", "token", "exact", "reason"),
    [
        ([(" a", HALF), (" b", QUARTER)], 3, True, "does not name the true token"),
        ([("token_id:1", HALF)], 2, True, "does not name the true token"),
        (
            [("x", HALF), (" b", QUARTER)],
            4,
            False,
            "others have that of the true token",
        ),
        ([("x", HALF), (" b", QUARTER)], 5, True, "others have that of the true token"),
        ([(" a", -9999.0)], 1, True, "not a number up to 0"),
        ([(" a", 0.5)], 1, True, "not a number up to 0"),
        ([(" a", math.nan)], 1, False, "not a number up to 0"),
        ([(" a", HALF), (" b", -9999.0)], 1, False, "not a number up to 0"),
        (
            [(" a", HALF), (" b", HALF), (" c", QUARTER)],
            1,
            False,
            "add up to more than 1",
        ),
        ([(" a", HALF), (" a", QUARTER)], 1, True, "several log-probabilities"),
    ],
)
def test_what_is_not_believed_has_a_reason(pairs, token, exact, reason):
    outcome = read(pairs, token, exact=exact)
    assert isinstance(outcome, str)
    assert reason in outcome


@pytest.fixture(scope="module")
def model(checkpoint):
    return NextTokenModel(checkpoint)


@pytest.fixture
def opened_at_points(checkpoint, tmp_path):
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
        request_id=request_id,
        kind="logprobs",
        key=key,
        context=context,
        text=text,
        text_tokens=1,
    )


POINTS = [
    point(i, *(f"{' '.join(words[:n])}| {words[n]}").split("|"))
    for i, (words, n) in enumerate(
        (text.split(), 8 + i) for i, text in enumerate(TEXTS[:6])
    )
]


def true_values(model: NextTokenModel, *, chat: str | None = None) -> list[float]:
    """Log-probabilities of the true tokens, worked out slowly."""
    true_logprobs = []
    for request in POINTS:
        if chat is not None:
            token = model.tokenizer.encode([request.text.lstrip()])[0][0]
            true_logprobs.append(model.logprobs(f"{chat}\n\n{request.context}")[token])
            continue
        whole = model.tokenizer.encode([request.context + request.text])[0]
        n = model.tokenizer.count_tokens([request.context])[0]
        true_logprobs.append(model.logprobs(request.context)[whole[n]])
    return true_logprobs


def values(answers_by_id: dict[int, Answer]) -> list[float]:
    return [float(_tokens(answer)["logprob"][0]) for answer in answers_by_id.values()]


def _tokens(answer: Answer) -> dict[str, np.ndarray[Any, Any]]:
    assert answer.tokens is not None, answer.error
    return answer.tokens


@pytest.mark.parametrize("honours", [(NAMED, BY_ID), (NAMED,)], ids=["ids", "texts"])
@pytest.mark.parametrize("chat", [False, True])
def test_an_endpoint_that_honours_names_gives_exact_values(
    checkpoint, opened_at_points, honours, chat
):
    model = NextTokenModel(checkpoint, honours=honours)
    with (
        HostileServer(model) as server,
        opened_at_points(server, chat=chat, chat_instruction="Go") as end,
    ):
        answers_by_id = results(end, POINTS)
        assert end.capabilities.named_token == "honoured"
        assert end.capabilities.token_id_names == (BY_ID in honours)
    expected = true_values(model, chat="Go" if chat else None)
    np.testing.assert_allclose(values(answers_by_id), expected, rtol=1e-5)
    assert not any(answer.bounded for answer in answers_by_id.values())
    assert min(expected) < -6  # far outside the top
    wire_request = server.asked[0]
    assert wire_request.fields["temperature"] == 0
    assert wire_request.fields["max_tokens"] == 1
    assert len(wire_request.fields[NAMED]) == 1
    assert wire_request.path.endswith("/chat/completions") == chat


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_gives_the_same_values_of_points(model, opened_at_points, chat):
    with (
        HostileServer(StreamOnly(model)) as server,
        opened_at_points(server, chat=chat, chat_instruction="Go") as end,
    ):
        answers = results(end, POINTS)
    exact_values = true_values(model, chat="Go" if chat else None)
    np.testing.assert_allclose(values(answers), exact_values, rtol=1e-5)


@pytest.mark.parametrize(
    ("how_named", "most_listed", "by_id", "chat"),
    [
        ("ignored", 20, BY_ID, False),
        ("refused", 7, BY_ID, True),
        ("ignored", 7, "nothing", True),
        ("refused", 20, "nothing", False),
        ("ignored", 20, "nothing", True),
        ("refused", 7, "nothing", False),
    ],
)
def test_elsewhere_a_token_that_is_not_listed_has_a_bound(
    checkpoint, opened_at_points, how_named, most_listed, by_id, chat
):
    refuses = [NAMED] if how_named == "refused" else []
    refuses += [BY_ID] if by_id == "nothing" else []
    model = NextTokenModel(
        checkpoint, honours=[by_id], refuses=refuses, most=most_listed
    )
    with (
        HostileServer(model) as server,
        opened_at_points(server, chat=chat, chat_instruction="Go") as end,
    ):
        assert end.capabilities.named_token == how_named
        assert end.capabilities.top_logprobs == (20 if most_listed == 20 else 5)
        answers_by_id = results(end, POINTS)
    assert not any(NAMED in wire_request.fields for wire_request in server.asked)
    expected = true_values(model, chat="Go" if chat else None)
    n_bounded = 0
    for answer, true in zip(answers_by_id.values(), expected, strict=True):
        if answer.error is not None:
            assert by_id == "nothing"
            assert "others have that of the true token" in answer.error
            continue
        value = float(_tokens(answer)["logprob"][0])
        n_bounded += answer.bounded
        assert (
            value >= true - 1e-6
            if answer.bounded
            else value == pytest.approx(true, rel=1e-6)
        )
    assert n_bounded


class Liar(NextTokenModel):
    """Gives every token that is named the value that ``invent`` makes of the most likely one's."""

    invent = staticmethod(lambda highest, _token, _n: highest)
    n = 0

    def pairs(
        self, values: dict[int, float], listed: list[int], *, by_id: bool
    ) -> dict[str, float]:
        if len(listed) == 2:
            self.n += 1
            values = values | {
                listed[1]: self.invent(max(values.values()), listed[1], self.n)
            }
        return super().pairs(values, listed, by_id=by_id)


@pytest.mark.parametrize(
    "logprob_said",
    [
        lambda highest, token, n: highest,  # the most likely token's own
        lambda highest, token, n: (
            highest - token / 10_000
        ),  # of its own, but too likely
        lambda highest, token, n: -20.0,  # whatever the token
        lambda highest, token, n: -20.0 - n,  # another every time
        lambda highest, token, n: -9999.0,  # nothing
    ],
)
def test_a_value_that_cannot_be_the_named_tokens_is_found_out(
    checkpoint, opened_at_points, logprob_said
):
    model = Liar(checkpoint)
    model.invent = logprob_said
    with HostileServer(model) as server, opened_at_points(server) as end:
        assert end.capabilities.named_token == "ignored"


def test_an_endpoint_that_stops_naming_tokens_gives_a_reason_and_no_number(
    checkpoint, model, opened_at_points
):
    ignoring = NextTokenModel(checkpoint, honours=[BY_ID])
    with (
        HostileServer(
            lambda wire_request: (model if wire_request.is_probe else ignoring)(
                wire_request
            )
        ) as server,
        opened_at_points(server) as end,
    ):
        answers_by_id = results(end, POINTS)
    reasons = [
        answer.error for answer in answers_by_id.values() if answer.tokens is None
    ]
    assert set(reasons) == {"the endpoint's answer does not name the true token"}
    assert len(reasons) > len(POINTS) // 2


def test_a_filtered_point_says_so_and_costs_itself_alone(model, opened_at_points):
    error = {"code": "content_filter", "innererror": {"code": "of its own"}}
    filtering = Script(Reply(status=400, content={"error": error}), then=model)
    with HostileServer(filtering) as server:
        for _ in range(2):
            with opened_at_points(server) as end:
                answers = results(end, POINTS)
            errors = [answer.error for answer in answers.values()]
            reason = "the provider filtered the prompt (content_filter, of its own)"
            assert errors.count(None) == len(POINTS) - 1
            assert reason in errors
        assert len(server.asked) == len(POINTS)


class Stripping(NextTokenModel):
    def pairs(
        self, values: dict[int, float], listed: list[int], *, by_id: bool
    ) -> dict[str, float]:
        listed_pairs = super().pairs(values, listed, by_id=by_id)
        return {f" {name.strip()} ": value for name, value in listed_pairs.items()}


NAMED_OTHERWISE = "tokenizer: the endpoint's tokens are named otherwise"
NO_LISTING = r"no log-probabilities of the next.*take another"


@pytest.mark.parametrize(
    ("kind", "server_options", "changed", "match"),
    [
        (NextTokenModel, {"most": 0}, {"chat": False}, NO_LISTING),
        (NextTokenModel, {"most": 0}, {"chat": True}, NO_LISTING),
        (NextTokenModel, {"refuses": ["logprobs"]}, {"chat": False}, NO_LISTING),
        (NextTokenModel, {"refuses": ["logprobs"]}, {"chat": True}, NO_LISTING),
        (
            NextTokenModel,
            {"honours": (NAMED, BY_ID)},
            {"tokenizer": "other"},
            NAMED_OTHERWISE,
        ),
        (
            NextTokenModel,
            {"honours": (NAMED,)},
            {"tokenizer": "other"},
            NAMED_OTHERWISE,
        ),
        (Stripping, {"honours": ()}, {}, NAMED_OTHERWISE),
    ],
)
def test_what_lists_no_tokens_or_those_of_another_tokenizer_is_refused(
    checkpoint, opened_at_points, tmp_path, kind, server_options, changed, match
):
    if "tokenizer" in changed:
        save_tokenizer(metaspace_tokenizer(), tmp_path / "other")
        changed = {
            "tokenizer": Tokenizer.load(str(tmp_path / "other"), setting="tokenizer")
        }
    with (
        HostileServer(kind(checkpoint, **server_options)) as server,
        pytest.raises(SettingsError, match=match),
    ):
        opened_at_points(server, **changed)


def test_a_token_that_reaches_into_the_text_is_part_of_the_prompt(
    model, opened_at_points
):
    """The tokenizer cuts both as one: the prompt ends where the first own token begins."""
    text = "children of it"
    whole = model.tokenizer.encode([text])[0]
    texts = [model.tokenizer.token_text(token) for token in whole]
    end = sum(map(len, texts[:2])) - 1
    assert end > len(texts[0])  # inside the second token
    request = point(0, text[:end], text[end:])
    with HostileServer(model) as server, opened_at_points(server) as endpoint:
        answers_by_id = results(endpoint, [request])
        (wire_request,) = server.asked
    prompt = "".join(texts[:2])
    assert (wire_request.prompt, wire_request.fields[NAMED]) == (prompt, [whole[2]])
    assert values(answers_by_id) == pytest.approx(
        [model.logprobs(prompt)[whole[2]]], rel=1e-5
    )


def test_a_text_without_a_token_of_its_own_is_not_asked_about(model, opened_at_points):
    (token,) = model.tokenizer.encode([" the"])[0]
    assert model.tokenizer.token_text(token) == " the"
    with HostileServer(model) as server, opened_at_points(server) as endpoint:
        (answer,) = results(endpoint, [point(0, "some of th", "e")]).values()
        assert server.asked == []
    assert answer.error == "the text has 0 tokens, fewer than the 1 wanted"
    assert not answer.is_eligible


def test_answers_are_paid_for_once_and_only_for_what_was_asked(
    checkpoint, model, opened_at_points
):
    with HostileServer(model) as server:
        for n in (3, 6):
            with opened_at_points(server) as endpoint:
                results(endpoint, POINTS[:n])
        assert len(server.asked) == 6
        server._answer = NextTokenModel(checkpoint, honours=[BY_ID])
        with opened_at_points(server) as endpoint:
            answers_by_id = results(endpoint, POINTS)
        assert len(server.asked) == 12  # an exact answer answers no other question
    assert any(answer.bounded for answer in answers_by_id.values())


def test_a_gateway_that_garbles_each_question_twice_hides_nothing(
    model, opened_at_points
):
    gateway = Garbling(
        2, by=lambda wire_request: json.dumps(wire_request.fields), then=model
    )
    with HostileServer(gateway) as server, opened_at_points(server) as endpoint:
        assert endpoint.capabilities.named_token == "honoured"
        assert endpoint.capabilities.top_logprobs == 20
