"""Bodies of replies, sound and broken; settings, and the most that a run can cost."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint import Capabilities, ClientSettings, wire
from mia_batch.evidence.endpoint.wire import Reply
from mia_batch.evidence.request import Continuation
from tests.unit.evidence.endpoint.asking import KEY

HOST: dict[str, Any] = {"base_url": "http://host/v1", "model": "m"}
SETTINGS = ClientSettings(**HOST, api_key=KEY)


def read(document: Any, n: int = 2) -> wire.Choices:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return wire.RequestFormat(SETTINGS).read(
        body, wire.WireRequest({}, n, 0, wire.Tokens(1, 1))
    )


def choices(*items: Any, **columns: Any) -> dict[str, Any]:
    return {"choices": list(items), **columns}


def continuation(
    text: str, n_tokens: int | None = None, finish: Any = None
) -> Continuation:
    return Continuation(text=text, n_tokens=n_tokens, finish_reason=finish)


def test_choices_are_in_the_order_of_their_index_and_the_usage_tells_the_tokens_of_one():
    answer = read(
        choices(
            {"index": 1, "text": " b", "finish_reason": "stop", "token_ids": [7]},
            {"index": 0, "text": " a", "finish_reason": "length", "token_ids": [7, 8]},
            usage={"prompt_tokens": 3, "completion_tokens": 3},
        )
    )
    assert answer.continuations == {
        0: continuation(" a", 2, "length"),
        1: continuation(" b", 1, "stop"),
    }
    assert (answer.tokens, answer.problem) == (wire.Tokens(3, 3), None)
    usage = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    answer = read(choices({"text": "a", "finish_reason": "eos_token"}, usage=usage))
    assert answer.continuations == {0: continuation("a", 9, "stop")}
    answer = read(choices({"text": "a"}, {"text": ""}, usage=usage))
    assert answer.continuations == {0: continuation("a"), 1: continuation("")}
    # Fewer choices are no problem here
    answer = read(choices({"index": 1, "text": "b"}))
    assert (answer.continuations, answer.problem) == ({1: continuation("b")}, None)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        3,
        {},
        {"prompt_tokens": -1},
        {"prompt_tokens": "3"},
        {"prompt_tokens": 2**70},
    ],
)
def test_a_usage_that_makes_no_sense_counts_as_unknown(usage):
    answer = read(choices({"text": "a"}, usage=usage))
    assert (answer.tokens, answer.problem) == (None, None)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        *((choice, "it holds no text") for choice in ({}, {"text": None}, {"text": 3})),
        ({"text": "a", "index": "0"}, "Input should be a valid integer"),
        ({"text": "\ud800"}, "its text is not valid Unicode"),
        ({"text": "a", "finish_reason": "ERROR"}, "the endpoint ended it with 'error'"),
        ("a", "it is not an object"),
    ],
)
def test_a_choice_that_cannot_be_used_leaves_the_others(bad, reason):
    answer = read(choices(bad, {"index": 1, "text": "b"}))
    assert answer.continuations == {1: continuation("b")}
    assert answer.problem == f"choice 0 cannot be used ({reason})"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (choices(), "it holds no choices"),
        ({"error": {"message": "no"}}, "it holds no choices: {'message': 'no'}"),
        ({"choices": {"text": "a"}}, "it holds no choices"),
        (
            choices({"text": "a"}, {"text": "b"}, {"text": "c"}),
            "it holds 3 choices where 2",
        ),
        (
            choices({"index": 0, "text": "a"}, {"index": 0, "text": "b"}),
            "index 0 twice or beyond",
        ),
        (choices({"index": 2, "text": "a"}), "index 2 twice or beyond 1"),
        (choices({"index": -1, "text": "a"}), "index -1 twice or beyond 1"),
        (b'{"choices": [{"text": "a"', 'it is not JSON: {"choices": [{"text": "a"'),
        (b"[1]", "it is not JSON: [1]"),
        (b"", "it is not JSON: nothing"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON: [[["),
        (b'{"choices": ' + b"9" * 5000 + b"}", "it is not JSON"),
        (
            (
                b"<html><style>p {}</style><body>\n<h1>Bad\x1b[31m"
                b" gateway</h1></body></html>"
            ),
            "it is not JSON: Bad [31m gateway",
        ),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_has_nothing(document, problem):
    answer = read(document)
    assert answer.continuations == {}
    assert answer.problem is not None
    assert problem in answer.problem


@pytest.mark.parametrize(
    ("status", "document", "reason"),
    [
        (
            400,
            {"error": {"code": "content_filter", "message": "no"}},
            "the provider filtered the prompt (content_filter)",
        ),
        (
            403,
            {"error": {"innererror": {"code": "ResponsibleAIPolicyViolation"}}},
            "the provider filtered the prompt (ResponsibleAIPolicyViolation)",
        ),
        (400, {"error": {"code": "invalid_request_error"}}, None),
        (400, {"error": "content_filter"}, None),
        (500, {"error": {"code": "content_filter"}}, None),
        (400, [], None),
    ],
)
def test_an_error_that_names_a_filter_is_about_the_prompt(status, document, reason):
    reply = Reply(status=status, headers={}, body=json.dumps(document).encode())
    request = wire.WireRequest({}, 2, 0, wire.Tokens(1, 1))
    filtered = wire.RequestFormat(SETTINGS).read_filtered(reply, request)
    if reason is None:
        assert filtered is None
    else:
        filtered_part = Continuation(answer="filtered", reason=reason)
        assert filtered is not None
        assert filtered.continuations == {0: filtered_part, 1: filtered_part}
        assert filtered.is_prompt_filtered


def filter_results(**results: Any) -> list[dict[str, Any]]:
    return [{"prompt_index": 0, "content_filter_results": results}]


def test_no_choices_are_a_filter_only_where_one_says_that_it_stopped_the_prompt():
    stopping = filter_results(hate={"filtered": True}, jailbreak={"filtered": False})
    answer = read(choices(prompt_filter_results=stopping, usage={"prompt_tokens": 9}))
    assert answer.continuations[1].reason == "the provider filtered the prompt (hate)"
    assert (answer.tokens, answer.problem) == (wire.Tokens(9, 0), None)
    passing = filter_results(hate={"filtered": False, "severity": "safe"})
    answer = read(choices(prompt_filter_results=passing))
    assert answer.problem == "it holds no choices"
    answer = read(choices({"text": "a"}, prompt_filter_results=stopping))
    assert answer.continuations == {0: continuation("a")}


def test_only_filters_that_stopped_an_answer_are_named():
    results = {
        "hate": {"filtered": False, "severity": "safe"},
        "sexual": {"filtered": True},
    }
    document = choices(
        {"finish_reason": "content_filter", "content_filter_results": results}
    )
    answer = read(document, n=1)
    assert answer.continuations[0].reason == (
        "the provider filtered the answer (content_filter, sexual)"
    )


def test_the_key_is_not_quoted():
    quoting = choices({"text": "a", "finish_reason": KEY})
    for document in (f"you sent {KEY}".encode(), {"error": f"you sent {KEY}"}, quoting):
        assert KEY not in str(read(document).problem)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=8,
)
choice_like = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ["text", "index", "finish_reason", "token_ids"], json_values
    ),
)
document_like = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(choice_like | json_values, max_size=3) | json_values,
        "usage": json_values,
        "error": json_values,
    },
)


@given(document_like | json_values)
def test_nothing_that_json_can_say_breaks_the_reader(document):
    answer = read(document)
    assert set(answer.continuations) <= {0, 1}
    assert all(isinstance(choice.text, str) for choice in answer.continuations.values())
    assert answer.continuations or answer.problem is not None


def test_chat_answers_hold_the_text_in_a_message():
    chat = wire.Chat(replace(SETTINGS, chat_instruction="Go on."))
    assert chat.prompt_fields("Once") == {
        "messages": [{"role": "user", "content": "Go on.\n\nOnce"}]
    }
    body = json.dumps(
        choices(
            {"message": {"content": "upon"}, "finish_reason": "stop"}, {"message": None}
        )
    ).encode()
    answer = chat.read(body, wire.WireRequest({}, 2, 0, wire.Tokens(1, 1)))
    assert answer.continuations == {0: continuation("upon", None, "stop")}
    assert answer.problem == "choice 1 cannot be used (it holds no text)"


# What endpoints say when they refuse.


def refusal(content: Any, status: int = 400, **headers: str):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return wire.read_refusal(Reply(status=status, headers=headers, body=body), SETTINGS)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"error": {"message": "too long", "code": None}}, "too long"),
        ({"object": "error", "message": "too long", "code": 400}, "too long"),
        ({"error": "too long"}, "too long"),
        ({"detail": [{"msg": "too long"}]}, "[{'msg': 'too long'}]"),
        ({"error": {}}, '{"error": {}}'),
        (
            b"<html><head><script>x()</script></head><h1>No\n entry</h1></html>",
            "No entry",
        ),
        (b"", "no message"),
    ],
)
def test_every_usual_shape_is_read(content, sentence):
    assert refusal(content).sentence == f"status 400: {sentence}"


def test_codes_are_kept_apart_a_redirect_is_named_and_the_key_is_not():
    paid = refusal(
        {"error": {"message": "pay", "type": "insufficient_quota", "code": None}}, 429
    )
    assert paid.codes == {"insufficient_quota"}
    assert refusal(b"busy", 503).codes == frozenset()
    redirected = refusal(b"", 302, location=f"http://elsewhere/?key={KEY}")
    assert (
        redirected.sentence == "status 302: a redirect to http://elsewhere/?key=[key]"
    )
    assert KEY not in refusal({"error": {"message": f"{KEY} is wrong"}}, 401).sentence
    assert KEY not in refusal(f"{KEY} is wrong".encode(), 401).sentence
    assert wire.shorten("a\n\t b\x1b[0m <b>c</b>") == "a b [0m c"
    assert wire.shorten("x" * 1000) == "x" * 300 + " ..."
    assert wire.Echo(SETTINGS).text({"text": "a b", "logprobs": None}) is None


def read_echoed(
    tokens: Any, logprobs: Any, text: str, context: str = "", n_drawn: int | None = 1
) -> tuple[bool, list[float | None]] | str:
    """Whether a special token came first, and the values, None for NaN; or the reason."""
    echo_read = wire.read_echo(tokens, logprobs, context, text, n_drawn=n_drawn)
    if isinstance(echo_read, str):
        return echo_read
    bos, logprob = echo_read
    return bos, [None if math.isnan(value) else value for value in logprob.tolist()]


TWO, MINUS = ["a", " b", " x"], [None, -1.0, -9.0]
CUT_CHARACTER = ["a", "bytes:\\xe2\\x80", "bytes:\\x9d", "b", " x"]
ONE_TWO = (["<s>", "one", " t", "wo", " x"], [None, -1.0, -2.0, -3.0, -9.0])


@pytest.mark.parametrize(
    ("echo_arguments", "echo_values"),
    [
        ((TWO, MINUS, "a b"), (False, [None, -1.0])),
        ((["<s>", *TWO], [None, -2.0, -1.0, -9.0], "a b"), (True, [-2.0, -1.0])),
        # A value of a first token that nothing precedes is not believed.
        ((TWO, [-7.0, -1.0, -9.0], "a b"), (False, [None, -1.0])),
        # Not every endpoint lists the drawn token, which may be without text.
        *(
            ((TWO[:2], [None, -1.0], "a b", "", n), (False, [None, -1.0]))
            for n in (0, 1, None)
        ),
        *(
            (([*TWO[:2], ""], MINUS, "a b", "", n), (False, [None, -1.0]))
            for n in (1, None)
        ),
        ((*ONE_TWO, " two", "one"), (True, [-2.0, -3.0])),
        ((*ONE_TWO, "two", "one "), (True, [-3.0])),  # " t" reaches into the text
        # Characters that are cut into bytes.
        ((CUT_CHARACTER, ONE_TWO[1], "a\u201db"), (False, [None, -1.0, -2.0, -3.0])),
    ],
)
def test_of_an_echo_only_tokens_that_start_in_the_text_count(
    echo_arguments, echo_values
):
    assert read_echoed(*echo_arguments) == echo_values


@pytest.mark.parametrize(
    ("tokens", "logprobs", "words"),
    [
        (None, [None, -1.0], "not one for each token"),
        (["a", 5], [None, -1.0], "not one for each token"),
        (["a", " b"], None, "not one for each token"),
        (["a", " b", " x"], [None, -1.0], "not one for each token"),
        ([], [], "are not the prompt"),
        (["a", " c", " x"], [None, -1.0, -1.0], "are not the prompt"),
        (["a", " b", " x", " y"], [None, -1.0, -1.0, -1.0], "are not the prompt"),
        (["<s>", "<s>", "a", " b"], [None, -1.0, -1.0, -1.0], "are not the prompt"),
        (["a b", " x"], [None, -1.0], "no token that something precedes"),
        (["a", " b", " x"], [None, None, -1.0], "not a number up to 0"),
        (["a", " b", " x"], [None, 0.5, -1.0], "not a number up to 0"),
        (["a", " b", " x"], [None, "-1", -1.0], "not a number up to 0"),
        (["a", " b", " x"], [None, -9999.0, -1.0], "not a number up to 0"),
        (["a", " b", " x"], [None, math.nan, -1.0], "not a number up to 0"),
        (["a", " b", " x"], [None, -math.inf, -1.0], "not a number up to 0"),
    ],
)
def test_an_echo_that_does_not_fit_has_its_reason(tokens, logprobs, words):
    reason_read = read_echoed(tokens, logprobs, "a b")
    assert isinstance(reason_read, str)
    assert words in reason_read


# Settings of an endpoint, and the most that a run can cost.


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "http://[::1]:8000/v1/",
        "http://h",
        "http://h/@me/v1",
    ],
)
def test_addresses(url):
    assert ClientSettings(base_url=url, model="m").base_url == url


# Fmt: skip
@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000/v1",
        "ftp://host/v1",
        "http://",
        "http://host:port/v1",
        "http://host:0",
        "http://host:99999/v1",
        "http://ho st/v1",
        "http://host/v1#x",
        "http://host/v1\n",
        "http://[::1/v1",
        "http://hö.de/v1",
    ],
)
def test_what_is_no_address(url):
    with pytest.raises(SettingsError, match=r"base_url= is .* write it like https://"):
        ClientSettings(base_url=url, model="m")


@pytest.mark.parametrize("name", ["key", "access_token", "sig"])
def test_a_query_that_may_be_a_secret_is_refused_and_not_shown(name):
    with pytest.raises(SettingsError, match=f"base_url= carries '{name}'") as caught:
        ClientSettings(base_url=f"http://host/v1?{name}=hidden", model="m")
    assert "hidden" not in str(caught.value)
    address = "http://host/v1?api-version=1"
    assert ClientSettings(base_url=address, model="m").base_url == address


@pytest.mark.parametrize("host", ["host/v1", "host:port/v1"])
def test_an_address_does_not_carry_secrets_and_its_error_does_not_show_them(host):
    with pytest.raises(SettingsError, match="user name or password") as caught:
        ClientSettings(base_url=f"https://user:{KEY}@{host}", model="m")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("key", ["", *(KEY + end for end in "\n é\x00")])
def test_a_key_that_http_cannot_carry_is_refused_unseen(key):
    with pytest.raises(
        SettingsError, match="the API key is empty or has spaces"
    ) as caught:
        ClientSettings(**HOST, api_key=key)
    assert KEY not in str(caught.value)


def test_the_key_is_not_shown():
    settings_texts = (
        f"{SETTINGS!r}{SETTINGS}{SETTINGS.sample_identity(Capabilities())!r}"
    )
    assert KEY not in settings_texts
    assert SETTINGS.redact(f"wrong key {KEY}, {KEY}!") == "wrong key [key], [key]!"
    for short in (None, "e"):
        assert (
            ClientSettings(**HOST, api_key=short).redact("the server") == "the server"
        )


@pytest.mark.parametrize("missing", ["price_in", "price_out"])
def test_a_limit_of_cost_needs_prices(missing):
    cost_settings: dict[str, Any] = {
        "max_cost": 1.0,
        "price_in": 1.0,
        "price_out": 1.0,
    } | {missing: None}
    with pytest.raises(SettingsError, match="give price_in= and price_out="):
        ClientSettings(**HOST, **cost_settings)


# The most that a run can cost, and what it did.


def priced(**changed: Any) -> ClientSettings:
    price_settings = {"price_in": 2.0, "price_out": 10.0, "max_cost": None} | changed
    return ClientSettings(**HOST, **price_settings)


def test_a_cost_by_hand_and_without_prices():
    assert wire.money(priced(), wire.Tokens(1048, 4000)) == pytest.approx(
        (1048 * 2 + 4000 * 10) / 1e6
    )
    settings = priced(price_out=None)
    assert wire.money(settings, wire.Tokens(1, 1)) is None
    ledger = wire.Ledger(settings, wire.Tokens(10, 10))
    assert ledger.spent is None
    assert ledger.fits(wire.Tokens(10**9, 10**9))
    settings = ClientSettings(**HOST, chat=True, chat_instruction="Go on: é")
    assert wire.most_prompt_tokens(settings, prompt_bytes=100, prompts=2) == 100 + 2 * (
        9 + 16
    )


def test_requests_in_flight_count_at_their_maximum():
    ledger = wire.Ledger(
        priced(price_in=0.0, price_out=1e6, max_cost=10.0), wire.Tokens(0, 1)
    )
    states = [(ledger.idle, ledger.spent, most_that_fits(ledger))]
    ledger.reserve(wire.Tokens(0, 6))
    states.append((ledger.idle, ledger.spent, most_that_fits(ledger)))
    ledger.settle(wire.Tokens(0, 6), wire.Tokens(0, 2))
    states.append((ledger.idle, ledger.spent, most_that_fits(ledger)))
    assert states == [(True, 1.0, 9), (False, 1.0, 3), (True, 3.0, 7)]


@pytest.mark.parametrize(
    ("stated", "texts", "paid"),
    [
        ((0, 0), [" a b c d"], (3, 4)),  # words of the prompt, and of what came
        ((0, 0), ["a" * 40], (3, 5)),
        ((0, 0), ["a b", None, "c d e"], (3, 5)),
        ((0, 0), ["a " * 100], (3, 8)),  # never more than the most that it can use
        ((7, 6), [" a b c d"], (7, 6)),  # an honest count stays
    ],
)
def test_what_was_sent_and_what_came_is_paid_for_whatever_a_server_says(
    stated, texts, paid
):
    request = wire.WireRequest({}, 2, 0, wire.Tokens(20, 8), "one two three")
    assert wire.paid_for(wire.Tokens(*stated), request, texts) == wire.Tokens(*paid)


@pytest.mark.parametrize("n", [1, 2])
def test_an_answer_far_longer_than_what_was_asked_for_is_not_kept(n):
    request = wire.WireRequest({}, n, 0, wire.Tokens(9, 40 * n), "prompt")
    body = json.dumps(choices(*[{"text": "a" * 10**6}] * n)).encode()
    choices_read = wire.RequestFormat(SETTINGS).read(body, request)
    assert choices_read.continuations == {}
    assert "characters, far beyond 40 tokens" in str(choices_read.problem)


def most_that_fits(ledger: wire.Ledger) -> int:
    return max(n for n in range(100) if ledger.fits(wire.Tokens(0, n)))
