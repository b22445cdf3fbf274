"""Requests, journal and endpoint together: killed, started again, silent about the key."""

import json
import logging
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mia_batch.errors import EngineError, MiaBatchError
from mia_batch.evidence.endpoint import journal as journals
from mia_batch.evidence.endpoint.client import embed_at, identify, read_vectors
from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.evidence.endpoint.wire import Tokens
from mia_batch.evidence.request import Continuation
from mia_batch.tables import followed
from tests.conftest import REPOSITORY
from tests.embedding_server import EmbeddingServer, vector
from tests.hostile_server import (
    EVERYTHING,
    Asked,
    HostileServer,
    Reply,
    Script,
    TinyModel,
    failure,
)
from tests.processes import HANGS
from tests.unit.evidence.endpoint.asking import (
    KEY,
    NoJitter,
    answered,
    opened,
    request,
    results,
    settings_for,
    texts,
    until_failure,
)

MODEL = TinyModel()
REQUESTS = 60
IN_FLIGHT = 4
CLIENT = f"""
import sys
from pathlib import Path
from random import Random
from mia_batch.evidence.endpoint import Endpoint, ClientSettings
from tests.unit.evidence.endpoint.asking import KEY, request, results, texts
settings = ClientSettings(
    base_url=sys.argv[1],
    model="tiny",
    api_key=KEY,
    max_concurrency={IN_FLIGHT},
)
with Endpoint.open(settings, journal=Path(sys.argv[2])) as endpoint:
    found = results(endpoint, [request(i, n=2) for i in range({REQUESTS})])
    print([texts(result) for result in found.values()])
"""


class Tripwire:
    """An honest endpoint that from some request on holds its answers and raises an alarm."""

    def __init__(self, served: int, in_flight: int = IN_FLIGHT) -> None:
        self.alarm = threading.Event()
        self._left = served
        self._to_hold = in_flight
        self._lock = threading.Lock()

    def __call__(self, wire_request: Asked) -> Reply:
        if wire_request.is_probe:
            return MODEL(wire_request)
        with self._lock:
            self._left -= 1
            if self._left >= 0:
                return MODEL(wire_request)
            self._to_hold -= 1
            if self._to_hold == 0:
                self.alarm.set()
        return Reply(hold=threading.Event())


def start_client(server: HostileServer, journal: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLIENT, server.url, str(journal)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def test_killed_clients_ask_nothing_again_but_what_was_in_flight(tmp_path):
    kills = [0, 20]
    journal = tmp_path / "journal.sqlite"
    with HostileServer(MODEL) as server:
        for served in kills:
            tripwire = Tripwire(served)
            server._answer = tripwire
            client = start_client(server, journal)
            # The slots are full, so all before is journalled
            assert tripwire.alarm.wait(HANGS)
            client.send_signal(signal.SIGKILL)
            client.communicate()
            assert client.returncode == -signal.SIGKILL
        server._answer = MODEL
        client = start_client(server, journal)
        output, _ = client.communicate(timeout=HANGS)
    expected = [
        [MODEL.text(f"prompt number {i}", 65536 * i + j) for j in range(2)]
        for i in range(REQUESTS)
    ]
    assert output.strip() == str(expected)
    assert len(server.asked) == REQUESTS + IN_FLIGHT * len(kills)
    times = Counter(wire_request.prompt for wire_request in server.asked)
    assert len(times) == REQUESTS
    assert journal.read_bytes().count(KEY.encode()) == 0


def test_closing_does_not_wait_for_answers_that_never_come(tmp_path):
    with HostileServer(MODEL) as server:
        server._answer = Script(*[server.never()] * 9, then=MODEL)
        endpoint = opened(server, tmp_path, timeout=3600.0)
        endpoint.submit(request(1))
        assert endpoint.results(timeout=0.2) == []
        endpoint.close()
        endpoint.close()
        with pytest.raises(EngineError, match="has been closed; open another"):
            endpoint.submit(request(2))
        assert "endpoint" not in {thread.name for thread in threading.enumerate()}
        server._answer = MODEL
        with opened(server, tmp_path) as endpoint:  # the journal is free again
            assert texts(results(endpoint, [request(1)])[1]) == [
                MODEL.text("prompt number 1", 65536)
            ]


def test_a_client_that_cannot_start_leaves_nothing_behind(tmp_path):
    with HostileServer(MODEL) as server:
        for _ in range(2):
            with pytest.raises(EngineError, match="unable to open database file"):
                opened(server, tmp_path / "missing")
    assert "endpoint" not in {thread.name for thread in threading.enumerate()}


def test_the_most_talkative_log_does_not_hold_the_key(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    answered(MODEL, tmp_path, [request(1)])
    assert "send_request_headers.complete" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    "reply",
    [
        failure(401, f"Incorrect API key provided: {KEY}"),
        failure(400, f"header Authorization: Bearer {KEY} is not understood"),
        failure(500, f"crash while handling {KEY}"),
        Reply(content=f"<html>{KEY}</html>".encode()),
        Reply(content={"choices": [{"text": "a", "finish_reason": KEY}]}),
        Reply(status=302, headers={"Location": f"http://elsewhere/{KEY}"}),
        Reply(content={}, cut_after=1, headers={"X-Key": KEY}),
    ],
    ids=["401", "400", "500", "html", "finish", "redirect", "cut"],
)
@pytest.mark.parametrize("first", [True, False])
def test_the_key_shows_up_nowhere(reply, first, tmp_path, caplog):
    # Of a header that quotes the key, httpcore's DEBUG would tell
    caplog.set_level(logging.INFO)
    texts_seen = []
    script = Script(*[reply] * 9)
    with HostileServer((lambda _: reply) if first else script) as server:
        try:
            with opened(server, tmp_path) as endpoint:
                texts_seen += [repr(endpoint), repr(endpoint.capabilities)]
                texts_seen += [
                    repr(result) for result in results(endpoint, [request(1)]).values()
                ]
        except MiaBatchError as error:
            texts_seen += traceback.format_exception(error)
    assert texts_seen
    assert KEY not in "".join(texts_seen)
    assert KEY not in caplog.text
    for file in tmp_path.iterdir():
        assert KEY.encode() not in file.read_bytes()


def expected(request_id: int, n: int) -> list[str]:
    prompt = f"prompt number {request_id}"
    return [MODEL.text(prompt, 65536 * request_id + i) for i in range(n)]


def choice(index: int, text: Any, **columns: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": "stop", **columns}


def asked_for(server: HostileServer) -> list[tuple[int, int]]:
    """Seed and number of every request for samples."""
    return [
        (wire_request.fields["seed"], wire_request.fields["n"])
        for wire_request in server.asked
    ]


def test_a_request_says_everything_that_decides_a_sample(tmp_path):
    changed = {"temperature": 0.7, "top_p": 0.9, "top_k": 40}
    answers_by_id, server = answered(MODEL, tmp_path, [request(3, n=2)], **changed)
    result = answers_by_id[3]
    assert texts(result) == expected(3, 2)
    assert [output.n_tokens for output in result.continuations] == [6, 6]
    assert [output.finish_reason for output in result.continuations] == [
        "length",
        "length",
    ]
    (wire_request,) = server.asked
    assert wire_request.path == "/v1/completions"
    assert wire_request.fields == {
        "model": "tiny",
        "prompt": "prompt number 3",
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stream": False,
        "max_tokens": 8,
        "n": 2,
        "seed": 3 * 65536,
        "return_token_ids": True,
    }


def test_what_the_endpoint_refuses_is_not_sent(tmp_path):
    refused = ["n", "seed", "top_k", "return_token_ids", "min_p", "repetition_penalty"]
    answers_by_id, server = answered(
        TinyModel(refuses=refused), tmp_path, [request(3, n=2)]
    )
    assert len(texts(answers_by_id[3])) == 2
    assert [wire_request.fields.keys() for wire_request in server.asked] == [
        {"model", "prompt", "temperature", "top_p", "max_tokens"}
        | {"presence_penalty", "frequency_penalty", "stream"}
    ] * 2


GAPS = Reply(content={"choices": [choice(1, " b"), choice(2, None), choice(4, " e")]})


@pytest.mark.parametrize(
    ("answer", "n", "seeds_and_counts", "odd_texts"),
    [
        (
            TinyModel(honours=EVERYTHING - {"n"}),
            3,
            [(65536, 1), (65537, 1), (65538, 1)],
            {},
        ),
        (TinyModel(most=4), 10, [(65536, 10), (65540, 6), (65544, 2)], {}),
        (Script(GAPS), 5, [(65536, 5), (65536, 1), (65538, 2)], {1: " b", 4: " e"}),
    ],
    ids=["n ignored", "fewer choices", "gaps"],
)
def test_what_is_missing_is_asked_for_with_its_own_seeds(
    answer, n, seeds_and_counts, odd_texts, tmp_path
):
    answers_by_id, server = answered(answer, tmp_path, [request(1, n=n)])
    expected_texts = [odd_texts.get(i, text) for i, text in enumerate(expected(1, n))]
    assert (texts(answers_by_id[1]), asked_for(server)) == (
        expected_texts,
        seeds_and_counts,
    )


def test_a_text_that_stays_null_fails_its_request_after_a_few_tries(tmp_path):
    def always_null(wire_request):
        seed = 0 if wire_request.is_probe else wire_request.fields["seed"]
        if seed not in (65536, 65537):
            return MODEL(wire_request)
        choices = (
            [choice(0, None)] if seed == 65537 else [choice(0, " a"), choice(1, None)]
        )
        return Reply(content={"choices": choices[: wire_request.fields["n"]]})

    with HostileServer(always_null) as server:
        with opened(server, tmp_path) as endpoint:
            answers_by_id = results(endpoint, [request(1, n=2), request(2, n=2)])
        assert (
            answers_by_id[1].error
            == "the endpoint gave no usable answer: choice 0 cannot be used "
            "(it holds no text) (after 3 tries)"
        )
        assert answers_by_id[1].continuations == []
        assert texts(answers_by_id[2]) == expected(2, 2)
        assert asked_for(server)[:3] == [(65536, 2), (65537, 1), (65537, 1)]
        server._answer = MODEL
        with opened(server, tmp_path) as endpoint:  # asks for what is missing only
            (result,) = results(endpoint, [request(1, n=2)]).values()
        assert texts(result) == [" a", expected(1, 2)[1]]
        assert asked_for(server)[-1] == (65537, 1)


def test_journalled_answers_are_never_asked_for_again(tmp_path):
    requests = [request(i, n=3) for i in range(6)]
    with HostileServer(MODEL) as server:
        with opened(server, tmp_path) as endpoint:
            first = results(endpoint, requests[:4])
        with opened(server, tmp_path) as endpoint:
            answers_of_calls = [results(endpoint, requests) for _ in range(2)]
    assert len(server.asked) == 6
    assert [texts(result) for result in answers_of_calls[0].values()] == [
        expected(i, 3) for i in range(6)
    ]
    # Answers have no equality: others hold arrays
    assert repr(answers_of_calls[0]) == repr(answers_of_calls[1])
    assert {i: repr(answers_of_calls[0][i]) for i in range(4)} == {
        i: repr(first[i]) for i in range(4)
    }


def test_other_settings_and_instructions_share_no_answers(tmp_path):
    chats: list[dict[str, Any]] = [
        {"chat": True},
        {"chat": True, "chat_instruction": "Go on."},
    ]
    other_changes: list[dict[str, Any]] = [
        {},
        {"temperature": 0.5},
        {"top_k": 7},
        {"top_p": 0.5},
    ]
    with HostileServer(MODEL) as server:
        for changed in [*chats, *other_changes] * 2:
            with opened(server, tmp_path, **changed) as endpoint:
                assert results(endpoint, [request(1)])[1].error is None
    paths = ["/v1/chat/completions"] * 2 + ["/v1/completions"] * 4
    assert [wire_request.path for wire_request in server.asked] == paths
    assert server.asked[0].prompt.endswith("no quotation marks.\n\nprompt number 1")
    assert server.asked[1].prompt == "Go on.\n\nprompt number 1"


def test_as_many_requests_as_allowed_are_in_flight(tmp_path):
    with HostileServer(MODEL) as server:
        server._answer = Script(*[server.never()] * 5, then=MODEL)
        with opened(server, tmp_path, max_concurrency=5) as endpoint:
            for i in range(9):
                endpoint.submit(request(i))
            assert endpoint.results(timeout=0.5) == []
            assert len(server.asked) == 5


def test_a_full_disk_ends_the_run_and_loses_no_answer(tmp_path, limit_files):
    requests = [request(i) for i in range(60)]
    with HostileServer(MODEL) as server:
        with opened(server, tmp_path, max_concurrency=4) as endpoint:
            limit_files(100_000)
            for client_request in requests:
                endpoint.submit(client_request)
            stored_answers = until_failure(endpoint)
            with pytest.raises(
                EngineError, match=r"journal .* cannot be used .* same command"
            ):
                endpoint.results()
            limit_files(resource.RLIM_INFINITY)
        n_asked_before = len(server.asked)
        assert 0 < len(stored_answers) <= n_asked_before < len(requests)
        with opened(server, tmp_path, max_concurrency=4) as endpoint:
            answers_by_id = results(endpoint, requests)
    assert [texts(result) for result in answers_by_id.values()] == [
        expected(i, 1) for i in range(60)
    ]
    repeated = len(server.asked) - len(requests)
    assert (
        repeated == n_asked_before - len(stored_answers) <= 4
    )  # in flight when the disk was full


def test_a_mistake_of_the_caller_ends_the_run_with_a_sentence(tmp_path):
    with HostileServer(MODEL) as server, opened(server, tmp_path) as endpoint:
        endpoint.submit(replace(request(1), context="\ud800"))  # half a character
        with pytest.raises(EngineError, match="the client of the endpoint has failed"):
            endpoint.results()
    assert server.asked == []


ODD = Continuation(
    text=" é\x00\n\u2028\U0001f600 end ", n_tokens=None, finish_reason=None
)
EMPTY = Continuation(text="", n_tokens=0, finish_reason="stop")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.sqlite"


def test_answers_come_back_as_they_were_by_sample(path):
    with Journal(path) as journal:
        assert journal.find(b"a") == {}
        journal.record(b"a", {0: ODD}, Tokens(5, 2))
        journal.record(b"a", {3: EMPTY}, Tokens(5, 1))
        journal.record(b"b", {0: EMPTY}, Tokens(1, 0))
    with Journal(path) as journal:
        assert journal.find(b"a") == {0: ODD, 3: EMPTY}
        assert journal.find(b"b") == {0: EMPTY}
        assert journal.find(b"c") == {}
        assert journal.spent() == Tokens(11, 3)


def test_the_first_answer_counts(path):
    with Journal(path) as journal:
        journal.record(b"a", {0: EMPTY}, Tokens(1, 1))
        journal.record(b"a", {0: ODD, 1: ODD}, Tokens(1, 1))
        assert journal.find(b"a") == {0: EMPTY, 1: ODD}
        database = journal._database
        rows = database.execute("SELECT sample, text FROM answers").fetchall()
        assert rows == [(0, ""), (1, ODD.text)]
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)  # every commit


def test_an_answer_that_cannot_be_stored_leaves_nothing_and_says_so(path):
    with Journal(path) as journal:
        pages = journal._database.execute("PRAGMA page_count").fetchone()[0]
        journal._database.execute(f"PRAGMA max_page_count = {pages}")  # a full disk
        long = Continuation(text="x" * 10**6, n_tokens=1, finish_reason="stop")
        with pytest.raises(
            EngineError, match=r"journal.*is full.*free disk space.*same command"
        ):
            journal.record(b"a", {0: long}, Tokens(1, 1))
        assert journal.find(b"a") == {}
        assert journal.spent() == Tokens(0, 0)


def test_a_journal_has_one_owner_and_a_file_that_is_none_is_left_alone(path):
    with Journal(path), pytest.raises(EngineError, match=r"locked.*end the other run"):
        Journal(path)
    Journal(path).close()
    path.write_bytes(b"my thesis, only copy" * 100)
    with pytest.raises(EngineError, match="file is not a database"):
        Journal(path)
    assert path.read_bytes() == b"my thesis, only copy" * 100


def test_a_transaction_that_a_crash_cut_short_never_happened(path, tmp_path):
    with Journal(path) as journal:
        journal.record(b"a", {0: EMPTY}, Tokens(1, 1))
        journal.record(b"b", {0: ODD}, Tokens(1, 1))
        torn_journal = tmp_path / "cut.sqlite"
        log = (tmp_path / "journal.sqlite-wal").read_bytes()
        torn_journal.write_bytes(path.read_bytes())
        (tmp_path / "cut.sqlite-wal").write_bytes(log[:-100])
    with Journal(torn_journal) as journal:
        assert journal.find(b"a") == {0: EMPTY}
        assert journal.find(b"b") == {}
        assert journal.spent() == Tokens(1, 1)


def test_requests_are_counted_by_time_and_version(path):
    with Journal(path) as journal:
        assert journal.answered()["times"] == dict.fromkeys(
            ("answered", "undated"), 0
        ) | {
            "first": None,
            "last": None,
        }
        two = {0: EMPTY, 1: EMPTY}
        journal.record(b"a", two, Tokens(1, 1), sent="T2", system_fingerprint="fp_1")
        journal.record(b"b", two, Tokens(1, 1), sent="T1", system_fingerprint="fp_1")
        journal.record(b"b", {2: EMPTY}, Tokens(1, 1), sent="T3")
        journal.record(b"", {}, Tokens(1, 1))
        assert journal.answered() == {
            "times": {"answered": 3, "undated": 0, "first": "T1", "last": "T3"},
            "system_fingerprint": {"fp_1": 2, "not given": 1},
        }


def test_a_journal_of_an_older_version_goes_on(path):
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE answers (request BLOB NOT NULL, sample INTEGER NOT NULL, text"
        " TEXT NOT NULL, n_tokens INTEGER, finish_reason TEXT, PRIMARY KEY (request,"
        " sample)) WITHOUT ROWID;INSERT INTO answers VALUES (x'61', 0, '', 0, 'stop')"
    )
    database.close()
    with Journal(path) as journal:
        journal.record(b"b", {0: EMPTY}, Tokens(1, 1), sent="T1")
        assert journal.find(b"a") == {0: EMPTY}
        assert journal.answered() == {
            "times": {"answered": 2, "undated": 1, "first": "T1", "last": "T1"},
            "system_fingerprint": {"not given": 1},
        }


def test_requests_share_an_answer_only_where_nothing_differs():
    sample_request = request(1, n=2)
    settings: dict[str, object] = {"model": "m", "top_k": 50}
    identity = identify(sample_request, settings)
    assert identity == identify(
        replace(sample_request, request_id=7), {"top_k": 50, "model": "m"}
    )
    other_identities = [
        identify(replace(sample_request, key="other"), settings),
        identify(replace(sample_request, context="other"), settings),
        identify(replace(sample_request, kind="logprobs"), settings),
        identify(replace(sample_request, seed=1), settings),
        identify(replace(sample_request, n=3), settings),
        identify(replace(sample_request, max_tokens=9), settings),
        identify(sample_request, settings | {"top_k": None}),
        identify(sample_request, settings | {"model": "other"}),
    ]
    assert len({identity, *other_identities}) == 9


def test_who_follows_the_folder_gets_copies_at_intervals(path, monkeypatch):
    class Keeping:
        """Keeps what a copy holds, which is gone afterwards."""

        def __init__(self):
            self.copies = []

        def put(self, path, content):
            raise AssertionError

        def remove(self, path):
            raise AssertionError

        def put_copy(self, path, content):
            with closing(sqlite3.connect(content)) as copy:
                n_rows = copy.execute("SELECT count(*) FROM answers").fetchone()[0]
            self.copies.append((path.name, n_rows))

    keeping = Keeping()
    continuations = {0: Continuation(text="a", n_tokens=1, finish_reason=None)}
    monkeypatch.setattr(journals, "_SECONDS_BETWEEN_COPIES", 0.0)
    with followed(path.parent, keeping), Journal(path) as answers:
        monkeypatch.setattr(journals, "_MOST_TIME_COPYING", 1e9)
        answers.record(b"1", continuations, Tokens(1, 1))
        answers.record(b"2", continuations, Tokens(1, 1))
        monkeypatch.setattr(journals, "_SECONDS_BETWEEN_COPIES", 1e9)
        answers.record(b"3", continuations, Tokens(1, 1))
        answers.record(b"4", continuations, Tokens(1, 1))
    assert keeping.copies == [("journal.sqlite", n) for n in (1, 2, 3)]
    assert [path_left.name for path_left in path.parent.iterdir()] == ["journal.sqlite"]


# Embeddings over HTTP, from an endpoint that misbehaves.

BLOCKS = [["one", "two"], ["three"], ["four", "five", "six"]]


def ask(
    answer: EmbeddingServer, folder: Path, **changed: Any
) -> tuple[dict[int, Any], list[list[str]]]:
    vectors_by_block: dict[int, Any] = {}
    with HostileServer(answer) as server:
        settings = settings_for(server, **changed)
        embed_at(
            settings,
            BLOCKS,
            folder / "journal",
            vectors_by_block.__setitem__,
            rng=NoJitter(),
        )
    return vectors_by_block, [
        embedding_request.fields["input"]
        for embedding_request in server.asked + server.probes
    ]


def expected_vectors() -> dict[int, list[Any]]:
    return {
        number: [np.array(vector(text), np.float32).tolist() for text in block]
        for number, block in enumerate(BLOCKS)
    }


def plain(vectors_by_block: dict[int, Any]) -> dict[int, list[Any]]:
    return {
        number: [
            text_vectors if isinstance(text_vectors, str) else text_vectors.tolist()
            for text_vectors in block
        ]
        for number, block in vectors_by_block.items()
    }


@pytest.mark.parametrize("concurrency", [1, 4])
def test_vectors_belong_to_their_texts(concurrency, tmp_path):
    vectors_by_block, inputs_asked = ask(
        EmbeddingServer(), tmp_path, max_concurrency=concurrency
    )
    assert plain(vectors_by_block) == expected_vectors()
    assert sorted(inputs_asked) == sorted(BLOCKS)


def test_refusals_that_pass_and_answers_of_no_use_are_asked_for_again(tmp_path):
    data = [{"index": 0, "embedding": [1.0, 2.0]}]
    bad = [
        failure(429, "slow down"),
        failure(503, "not now"),
        Reply(content=b'{"data": [{"in'),
        Reply(content={"data": data}),
    ]
    vectors_by_block, inputs_asked = ask(EmbeddingServer(*bad), tmp_path)
    assert plain(vectors_by_block) == expected_vectors()
    assert inputs_asked.count(BLOCKS[0]) == 5


def test_a_text_that_is_refused_does_not_take_its_block_along(tmp_path):
    vectors_by_block, inputs_asked = ask(EmbeddingServer(refuses="five"), tmp_path)
    reason = (
        "the endpoint gives no embedding (status 400: maximum context length exceeded)"
    )
    expected_blocks = expected_vectors()
    expected_blocks[2][1] = reason
    assert plain(vectors_by_block) == expected_blocks
    assert [
        input_texts
        for input_texts in inputs_asked
        if len(input_texts) == 1 and input_texts != ["three"]
    ] == [
        ["four"],
        ["five"],
        ["six"],
    ]


def test_a_key_that_is_refused_ends_all(tmp_path):
    with pytest.raises(
        EngineError, match=r"takes no more requests \(status 401: who are you"
    ):
        ask(EmbeddingServer(*[failure(401, "who are you")] * 9), tmp_path)


def test_the_limit_of_cost_is_kept(tmp_path):
    prices = {"price_in": 1e6, "price_out": 0.0, "max_cost": 50.0}
    with pytest.raises(EngineError, match=r"max_cost= is 50, of which 9 is spent"):
        ask(EmbeddingServer(), tmp_path, **prices)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        [{"index": 0}],
        [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}],
        [{"index": i, "embedding": [1.0]} for i in range(3)],
        [{"index": i, "embedding": [float("nan")]} for i in range(2)],
        [{"index": i, "embedding": ["a"]} for i in range(2)],
        [{"index": i, "embedding": 1.0} for i in range(2)],
        "data",
    ],
)
def test_what_is_no_vector_for_each_text(data):
    document = json.loads(json.dumps({"data": data}))
    assert isinstance(read_vectors(document, 2), str)
