"""Audits by files of a batch service: what is written, what is taken back, what comes of it."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from mia_batch import Run
from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.endpoint import batch as batch_files
from tests import runs
from tests.batch_service import (
    CREATED,
    answer_line,
    failed_line,
    read_lines,
    read_requests,
    reply_line,
    serve,
    write_answers,
)
from tests.forked import forked_command
from tests.hostile_server import (
    EVERYTHING,
    Asked,
    HostileServer,
    Reply,
    TinyModel,
    failure,
)
from tests.next_token_server import NextTokenModel
from tests.processes import HANGS
from tests.runs import audit, planned, tables_of
from tests.unit.evidence.endpoint.test_logprobs import echo
from tests.unit.pipeline.conftest import Listener

KEY = "sk-never-to-be-seen"  # that of all tests in this folder
MATCHED = {"preset": "matched", "samples": 3}
PRICES = {"price_in": 1000.0, "price_out": 10_000.0}
FEW_WORDS = {"samples": 3, "attacks": "samia_v1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where requests are written."""
    return tmp_path / "requests"


class Batches:
    """An audit by files, of which each call is one command."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.sentences: list[str] = []

    def write(self, **changed: Any) -> Run:
        return self.call(requests_to=str(self.folder), **changed)

    def take(self, *paths: Path | str, **changed: Any) -> Run:
        return self.write(answers_from=[str(path) for path in paths], **changed)

    def call(self, **changed: Any) -> Run:
        listener = Listener()
        try:
            return audit(observer=listener, **self.settings | changed)
        finally:
            self.sentences = listener.sentences

    def said(self, part: str) -> str:
        (sentence,) = (text for text in self.sentences if part in text)
        return sentence

    def run_to_the_end(
        self, answer: Callable[[Asked], Reply], answers: Path, most_rounds: int = 40
    ) -> tuple[Run, int]:
        """Ask round after round; return the run, and how many rounds it took."""
        answers.mkdir()
        run = self.write()
        for number in range(most_rounds):
            lines = serve(self.folder, answer)
            if not lines:
                assert run.manifest.custody
                return run, number
            write_answers(answers / f"{number}.jsonl", lines)
            run = self.take(answers)
        pytest.fail("it does not end")


@pytest.fixture
def started(request_for, folder):
    """An audit whose first requests have been written, and its endpoint."""
    with HostileServer(TinyModel()) as server:
        batches = Batches(request_for(server, **MATCHED), folder)
        batches.write()
        yield batches, server


def test_a_run_by_files_has_the_tables_of_one_over_http(request_for, folder, tmp_path):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, "live", **MATCHED, **PRICES)
        listener = Listener()
        live = audit(**settings, observer=listener)
        sent = [request.fields for request in server.asked]
        batches = Batches(settings | {"out": str(tmp_path / "batch")}, folder)
        run, n_rounds = batches.run_to_the_end(TinyModel(), tmp_path / "answers")
        assert len(server.asked) == len(sent)  # the probe alone
    # Six words of twenty: short at three attempts
    assert n_rounds == 3
    assert tables_of(run.folder) == tables_of(live.folder)
    assert run["samples"].height == 18
    requests = run.manifest.requests
    assert requests["from_batch_files"] == requests["times"]["answered"] == len(sent)
    assert requests["times"]["first"].startswith("2026-09-21T14:13:20")
    assert run["responses"]["sent"].n_unique() == 1
    assert list(folder.iterdir()) == []
    by_files, over_http = batches.said("spent USD"), listener.sentences[-1]
    assert "prices as given, of batches 0.5 of them;" in by_files
    cost = float(over_http.split()[2])
    assert float(by_files.split()[2]) == pytest.approx(cost / 2, abs=0.01)


def test_bodies_are_what_the_client_sends_and_lines_have_no_key(
    request_for, folder, tmp_path
):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, **MATCHED)
        audit(**settings | {"out": str(tmp_path / "live")})
        first = [request.fields for request in server.asked if request.fields["n"] == 3]
        Batches(settings, folder).write()
    lines = read_requests(folder)
    for fields in first:
        assert fields.pop("stream") is False
    by_seed = sorted((line["body"] for line in lines), key=lambda body: body["seed"])
    assert by_seed == sorted(first, key=lambda fields: fields["seed"])
    for line in lines:
        assert set(line) == {"custom_id", "method", "url", "body"}
        assert (line["method"], line["url"]) == ("POST", "/v1/completions")
        assert re.fullmatch(r"mia-[0-9a-f]{32}-0-3-0", line["custom_id"])
    assert len({line["custom_id"] for line in lines}) == len(lines) == 6
    (path,) = folder.iterdir()
    assert KEY not in path.read_text()


def test_a_chat_without_several_samples_a_request_goes_in_one_round(
    request_for, folder, tmp_path
):
    model = TinyModel(honours={"seed", "top_k", "temperature"})
    with HostileServer(model) as server:
        settings = request_for(server, **FEW_WORDS, chat=True, out="live")
        settings["out"] = str(tmp_path / "live")
        live = audit(**settings)
        batches = Batches(settings | {"out": str(tmp_path / "batch")}, folder)
        batches.write()
        lines = read_requests(folder)
        assert Counter(line["custom_id"][-5:] for line in lines) == {
            "0-1-0": 6,
            "1-1-0": 6,
            "2-1-0": 6,
        }
        assert {line["url"] for line in lines} == {"/v1/chat/completions"}
        path = write_answers(tmp_path / "out.jsonl", serve(folder, model))
        run = batches.take(path)
    assert tables_of(run.folder) == tables_of(live.folder)


@pytest.mark.parametrize(
    "changed",
    [
        {"attacks": "loss_v1"},
        {"evidence": "probe-logprobs", "probes": 3},
        {"attacks": "token_hits_v1", "token_points": 4},
        {"attacks": "loss_v1,probe_loss_v1,token_hits_v1", "token_points": 2},
    ],
    ids=["echo", "points", "tokens", "all"],
)
def test_log_probabilities_and_points_go_in_one_round(
    request_for, folder, tmp_path, checkpoint, changed
):
    model = NextTokenModel(checkpoint)

    def answer(request: Asked) -> Reply:
        return echo(request) if request.fields.get("echo") else model(request)

    with HostileServer(answer) as server:
        settings = request_for(server, tokenizer=str(checkpoint), **changed)
        settings |= {"anyway": True, "max_failed": 1.0}
        live = audit(**settings | {"out": str(tmp_path / "live")})
        batches = Batches(settings, folder)
        run, n_rounds = batches.run_to_the_end(answer, tmp_path / "answers")
    assert n_rounds == 1
    batch_tables, expected = tables_of(run.folder), tables_of(live.folder)
    assert batch_tables == expected
    assert run.manifest.passes == live.manifest.passes


def test_walks_take_a_round_for_each_step(folder, tmp_path):
    model = runs.RecitingOneBook()
    with HostileServer(model) as server:
        settings = runs.of_walks(tmp_path) | {"base_url": server.url}
        live = audit(**settings, out=str(tmp_path / "live"))
        batches = Batches(settings | {"out": str(tmp_path / "run")}, folder)
        run, n_rounds = batches.run_to_the_end(model, tmp_path / "answers")
    assert n_rounds > 3
    assert max(run["extraction"]["n_rounds"]) > 1
    for name in ("extraction", "extracted_documents", "scores"):
        assert run[name].equals(live[name])


def test_what_follows_from_scores_is_written_after_them(request_for, folder, tmp_path):
    model = TinyModel()

    def answer(request: Asked) -> Reply:
        return echo(request) if request.fields.get("echo") else model(request)

    with HostileServer(answer) as server:
        settings = request_for(server, attacks="loss_v1", continue_strongest=3)
        live = audit(**settings | {"out": str(tmp_path / "live")})
        batches = Batches(settings, folder)
        batches.write()
        assert all(line["body"]["echo"] for line in read_requests(folder))
        path = write_answers(tmp_path / "1.jsonl", serve(folder, answer))
        batches.take(path)
        assert len(read_requests(folder)) == 3
        assert {line["body"]["temperature"] for line in read_requests(folder)} == {0}
        run, _ = batches.run_to_the_end(answer, tmp_path / "answers")
    assert run["samples"].height == 3
    assert tables_of(run.folder) == tables_of(live.folder)


class Remembering(TinyModel):
    """Goes on with the texts that it knows."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self._texts = texts

    def text(self, prompt: Any, seed: int) -> str:
        for text in self._texts:
            if text.startswith(str(prompt)):
                return f"{text.removeprefix(prompt)} and so on"
        return super().text(prompt, seed)


def test_groups_that_stop_when_they_are_decided_take_a_round_each(
    request_for, folder, tmp_path
):
    words = [f"w{number}" for number in range(1000, 1000 + 9 * 360)]
    Random(0).shuffle(words)
    texts = [" ".join(words[9 * n : 9 * n + 9]) for n in range(360)]
    groups = [f"book {n // 8:02}" for n in range(360)]
    table = pl.DataFrame({"text": texts, "group": groups})
    model = Remembering(texts[:16])
    with HostileServer(model) as server:
        settings = request_for(server, preset="matched", samples=1) | {
            "input": runs.written(tmp_path, table[:48], "asked"),
            "non_members": runs.written(tmp_path, table[48:], "outside"),
            "non_members_known": "made up",
            "level": "group",
            "stop_when_decided": True,
            "q": 0.2,
            "anyway": True,
        }
        live = audit(**settings | {"out": str(tmp_path / "live")})
        batches = Batches(settings, folder)
        batches.write()
        first = {line["body"]["prompt"] for line in read_requests(folder)}
        run, n_rounds = batches.run_to_the_end(model, tmp_path / "answers")
    assert len(first) < live["samples"]["target_id"].n_unique()
    assert n_rounds > 1
    assert tables_of(run.folder) == tables_of(live.folder)


def test_a_call_that_is_stopped_leaves_the_files_of_before(
    started, tmp_path, monkeypatch
):
    batches, _ = started
    requests_before = read_requests(batches.folder)
    path = write_answers(tmp_path / "out.jsonl", serve(batches.folder, TinyModel())[:2])

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(batch_files.BatchFiles, "finish", stop)
        with pytest.raises(KeyboardInterrupt):
            batches.take(path)
    assert [file.name for file in batches.folder.iterdir()] == ["requests-0001.jsonl"]
    assert read_requests(batches.folder) == requests_before
    batches.write()
    # What was taken is kept: four prompts, and what two answers are short of
    assert len(read_requests(batches.folder)) == 4 + 6


def test_what_is_left_is_asked_at_once_without_the_options(started, tmp_path):
    batches, server = started
    lines = serve(batches.folder, TinyModel())
    path = write_answers(tmp_path / "out.jsonl", lines[:4])
    with pytest.raises(EngineError) as error:
        batches.call(answers_from=path)
    assert str(error.value).startswith(
        "14 requests are not answered: give requests_to= as well to write them to"
        " files, or leave answers_from= out to have them asked now"
    )
    assert server.asked == []
    assert batches.said("answers are taken") == "4 answers are taken from files"
    run = batches.call()
    # Two prompts, and what is short of all answers
    assert len(server.asked) == 2 + 2 * 18
    live = audit(**batches.settings | {"out": str(tmp_path / "live")})
    assert tables_of(run.folder) == tables_of(live.folder)


def test_failures_are_asked_again_and_refusals_are_reasons(started, tmp_path):
    batches, server = started
    lines = read_requests(batches.folder)
    refusal = failure(400, "The prompt is too long", "too_long").content
    answers = [
        reply_line(lines[0]["custom_id"], 429, failure(429, "too many").content),
        failed_line(lines[1]["custom_id"], "batch_expired", "it took too long"),
        reply_line(lines[2]["custom_id"], 404, failure(404, "no such model").content),
        reply_line(lines[3]["custom_id"], 400, refusal),
        {"custom_id": lines[4]["custom_id"], "response": None, "error": None},
        answer_line(lines[5], TinyModel()),
    ]
    path = write_answers(tmp_path / "errors.jsonl", answers)
    batches.take(path)
    assert (
        batches.said("refused") == f"1 request is refused; the first is {path} line 4"
    )
    again = [text for text in batches.sentences if "after a failure" in text]
    assert len(again) == 3
    for text in again:
        assert re.fullmatch(
            "1 request is asked again after a failure: status (404: no such model"
            "|429: too many|500: it took too long|500: the service gives no answer)",
            text,
        )
    requests_left = {line["custom_id"] for line in read_requests(batches.folder)}
    asked_again = {lines[i]["custom_id"] for i in (0, 1, 2, 4)}
    assert asked_again < requests_left
    assert lines[3]["custom_id"] not in requests_left
    assert len(requests_left) == 4 + 3  # and what the answer is short of
    # The refusal needs its file no more
    run, _ = batches.run_to_the_end(TinyModel(), tmp_path / "answers")
    reasons = run["samples"].filter(pl.col("candidate").is_null())["reason"]
    assert (
        reasons.to_list()
        == ["the endpoint refused the request: status 400: The prompt is too long"] * 3
    )
    assert server.asked == []
    run = batches.write(retry_failed=True)
    (line,) = read_requests(batches.folder)
    assert line["body"] == lines[3]["body"]
    assert line["custom_id"] == lines[3]["custom_id"].removesuffix("0") + "1"
    whole = tmp_path / "again.jsonl"
    write_answers(whole, serve(batches.folder, TinyModel()))
    batches.take(path, whole, retry_failed=True)
    assert batches.said("earlier call").startswith("6 lines")


def test_a_prompt_that_is_filtered_is_an_answer(started, tmp_path):
    batches, _ = started
    lines = read_requests(batches.folder)
    refusal = failure(400, "Not about this", "content_filter").content
    filtered = [reply_line(lines[0]["custom_id"], 400, refusal)]
    run = batches.take(write_answers(tmp_path / "out.jsonl", filtered))
    assert batches.said("taken") == "1 answer is taken from files"
    assert len(read_requests(batches.folder)) == 5
    run, _ = batches.run_to_the_end(TinyModel(), tmp_path / "answers")
    counts = run["samples"]["answer"].cast(pl.String).value_counts()
    assert dict(counts.iter_rows()) == {"filtered": 3, "text": 15}


class Cutting(TinyModel):
    """Reads at most 300 words of a prompt, and counts no more."""

    def _document(self, request: Asked, n: int) -> dict[str, Any]:
        document = super()._document(request, n)
        usage = document["usage"]
        usage["prompt_tokens"] = min(usage["prompt_tokens"], 300)
        return document


def test_a_prompt_that_was_cut_is_no_evidence(request_for, folder, tmp_path):
    words = [f"w{number}" for number in range(2000)]
    texts = [" ".join(words[200 * n : 200 * n + 200]) for n in range(6)]
    texts += [" ".join(words[1200:1900])]
    table = pl.DataFrame({"text": texts})
    with HostileServer(Cutting()) as server:
        settings = request_for(server, **FEW_WORDS) | {
            "input": runs.written(tmp_path, table, "long"),
            "max_failed": 1.0,
            "max_length": 4096,
            "preset": "matched",
            "attacks": "samia_matched_v1",
        }
        live = audit(**settings | {"out": str(tmp_path / "live")})
        n_live = len(server.asked)
        batches = Batches(settings, folder)
        run, _ = batches.run_to_the_end(Cutting(), tmp_path / "answers")
        n_doubled = len(server.asked) - n_live
    reasons = run["samples"]["reason"].drop_nulls()
    assert reasons.len() == 3
    assert reasons.str.contains("it reads at most 300 tokens of a prompt").all()
    # The prompt twice in one, as of every call until its refusal is kept
    assert n_doubled == 1
    assert tables_of(run.folder) == tables_of(live.folder)


def test_doubles_count_once_and_the_first_answer_counts(started, tmp_path):
    batches, _ = started
    lines = serve(batches.folder, TinyModel())
    other_line = json.loads(json.dumps(lines[0]))
    other_line["response"]["body"]["choices"][0]["text"] = " something else" * 6
    failed = failed_line(lines[1]["custom_id"], "batch_expired", "late")
    first = write_answers(tmp_path / "1.jsonl", [failed, lines[0], lines[2]])
    write_answers(tmp_path / "2.jsonl", [lines[1], other_line, lines[2], *lines[3:]])
    batches.take(tmp_path / "?.jsonl", first)
    assert batches.said("the same request") == (
        "3 lines are passed over, because another answers the same request; the first"
        " answer counts, and 1 of them say something else; the first is"
        f" {tmp_path / '2.jsonl'} line 1"
    )
    assert batches.said("answers are taken") == "6 answers are taken from files"
    batches.take(tmp_path / "1.jsonl", tmp_path / "2.jsonl")
    assert batches.said("earlier call") == (
        "9 lines are passed over, because an earlier call has taken the answers"
    )
    assert len(read_requests(batches.folder)) == 18


def test_an_answer_of_fewer_samples_is_completed_and_one_of_none_asked_again(
    started, tmp_path
):
    batches, _ = started
    lines = read_requests(batches.folder)
    answers = [answer_line(line, TinyModel()) for line in lines]
    answers[0]["response"]["body"]["choices"].pop()
    answers[1]["response"]["body"]["choices"] = []
    path = write_answers(tmp_path / "out.jsonl", answers)
    batches.take(path)
    assert batches.said("less than").endswith(f"; the first is {path} line 2") or (
        batches.said("less than").endswith(f"; the first is {path} line 1")
    )
    requests_left = {line["custom_id"] for line in read_requests(batches.folder)}
    start, next_attempt = (lines[i]["custom_id"] for i in range(2))
    assert start.replace("-0-3-0", "-2-1-0") in requests_left
    assert next_attempt.replace("-0-3-0", "-0-3-1") in requests_left
    # The file of before says nothing new, and is not paid for twice
    batches.take(path)
    assert requests_left == {
        line["custom_id"] for line in read_requests(batches.folder)
    }
    assert batches.said("earlier call").startswith("6 lines")


def test_lines_that_are_none_are_set_aside(started, tmp_path, monkeypatch):
    monkeypatch.setattr(batch_files, "_LONGEST_LINE", 5000)
    monkeypatch.setattr(batch_files, "_CHUNK", 1000)
    batches, _ = started
    lines = [json.dumps(line) for line in serve(batches.folder, TinyModel())]
    long = '{"custom_id": "' + "x" * 20_000 + '"}'
    whole = ["", lines[0], long, "nonsense", "[1]", "\0", lines[1], lines[2]]
    path = tmp_path / "out.jsonl"
    path.write_text("\ufeff" + "\n".join([*whole, lines[3], lines[4][:-40]]))
    batches.take(path)
    assert batches.said("set aside") == (
        "5 lines are set aside as no whole line of an answer; the first is"
        f" {path} line 3"
    )
    assert batches.said("answers are taken") == "4 answers are taken from files"
    path.write_text(f"{lines[4]}\n{lines[5]}")  # no end of line at the end
    batches.take(path)
    assert batches.said("answers are taken") == "2 answers are taken from files"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "hello\n",
            "has no line of an answer; give the file that the service gave back",
        ),
        (
            '{"custom_id": "request-1", "response": {"status_code": 200}}',
            r"line 1 answers 'request-1', which this run has not asked with these",
        ),
        (
            '{"custom_id": "mia-' + 32 * "0" + '-0-3-0", "error": {"message": "x"}}',
            r"line 1 answers 'mia-0+-0-3-0', which this run has not asked with these"
            r" settings; leave this file out",
        ),
        (
            '{"custom_id": ["' + "../" * 500 + '"], "error": {"message": "x"}}',
            r"line 1 answers .{300,330}, which this run has not asked",
        ),
        (None, r"requests-0001.jsonl line 1 is a request and no answer"),
    ],
    ids=["no answers", "another name", "another run", "a list", "requests"],
)
def test_what_is_no_answer_to_the_run_is_refused(started, tmp_path, content, message):
    batches, server = started
    requests_before = read_requests(batches.folder)
    path = tmp_path / "out.jsonl"
    if content is None:
        path = batches.folder / "requests-0001.jsonl"
    else:
        path.write_text(content)
    with pytest.raises(SettingsError, match=f"answers_from: {re.escape(str(path))}"):
        batches.take(path)
    with pytest.raises(SettingsError, match=message):
        batches.take(path)
    assert read_requests(batches.folder) == requests_before
    assert server.asked == []


def test_answers_of_an_attempt_that_was_not_written_are_refused(started, tmp_path):
    batches, _ = started
    line = serve(batches.folder, TinyModel())[0]
    line["custom_id"] = line["custom_id"].removesuffix("0") + "7"
    path = write_answers(tmp_path / "out.jsonl", [line])
    with pytest.raises(SettingsError, match="which this run has not asked"):
        batches.take(path)


def test_a_run_that_is_begun_anew_writes_the_same_requests(
    started, request_for, tmp_path
):
    batches, server = started
    lines = read_requests(batches.folder)
    path = write_answers(tmp_path / "out.jsonl", serve(batches.folder, TinyModel()))
    other_batches = Batches(request_for(server, "other", **MATCHED), tmp_path / "more")
    with pytest.raises(SettingsError, match="give requests_to= first: the same"):
        other_batches.take(path)
    other_batches.write()
    assert read_requests(other_batches.folder) == lines
    other_batches.take(path)
    assert other_batches.said("answers are taken") == "6 answers are taken from files"


def test_answers_with_other_settings_are_not_taken(started, tmp_path):
    batches, server = started
    path = write_answers(tmp_path / "out.jsonl", serve(batches.folder, TinyModel()))
    batches.take(path, samples=4)
    assert batches.said("does not ask now") == (
        f"6 answers are to requests that the run does not ask now; the first is {path}"
        " line 1"
    )
    assert {line["body"]["n"] for line in read_requests(batches.folder)} == {4}
    assert server.asked == []


def test_answers_count_whatever_the_probe_says_of_several_samples(started, tmp_path):
    batches, server = started
    path = write_answers(tmp_path / "out.jsonl", serve(batches.folder, TinyModel()))
    server._answer = TinyModel(honours=EVERYTHING - {"n"})
    batches.take(path)
    assert batches.said("taken from files") == "6 answers are taken from files"
    assert len(read_requests(batches.folder)) == 18


def test_requests_of_another_run_are_not_replaced(started, request_for, tmp_path):
    batches, server = started
    changed = request_for(server, "other", **MATCHED, seed=1)
    other_batches = Batches(changed, batches.folder)
    (batches.folder / "notes.jsonl").write_text("{}")
    files_before = {path.name: path.read_bytes() for path in batches.folder.iterdir()}
    with pytest.raises(SettingsError, match="in it is not of this run"):
        other_batches.write()
    assert files_before == {
        path.name: path.read_bytes() for path in batches.folder.iterdir()
    }


def test_files_are_limited_and_those_of_before_go(started, tmp_path, monkeypatch):
    batches, _ = started
    whole = read_requests(batches.folder)
    monkeypatch.setattr(batch_files, "_MOST_REQUESTS", 4)
    batches.write()
    counts = [len(read_lines(path)) for path in sorted(batches.folder.iterdir())]
    assert counts == [4, 2]
    assert read_requests(batches.folder) == whole
    monkeypatch.undo()
    size = max(len(json.dumps(line)) for line in whole)
    monkeypatch.setattr(batch_files, "_MOST_BYTES", 3 * size)
    batches.write()
    sizes = [path.stat().st_size for path in batches.folder.iterdir()]
    assert len(sizes) >= 2
    assert max(sizes) <= 3 * size
    answers = write_answers(
        tmp_path / "out.jsonl", serve(batches.folder, TinyModel())[:5]
    )
    monkeypatch.undo()
    batches.take(answers)
    (path,) = batches.folder.iterdir()
    assert batches.said("requests are left").startswith(
        f"16 requests are left and stand in {path} ("
    )


def test_no_more_is_written_than_could_be_paid_for(request_for, folder, tmp_path):
    limit = {"price_in": 0.0, "price_out": 1e6, "batch_price": 0.5}
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, preset="matched", samples=50, **limit)
        batches = Batches(settings, folder)
        batches.write()
        token_limits = [
            50 * line["body"]["max_tokens"] for line in read_requests(folder)
        ]
        batches.write(max_cost=0.5 * sum(token_limits[:2]) + 0.1)
        assert len(read_requests(folder)) == 2
        assert batches.said("not written") == (
            "4 requests are not written, because all together could cost more than"
            " max_cost= allows: give a higher one, or have those before answered first"
        )
        assert batches.said("are left").endswith(
            f" {sum(token_limits[:2]):,} output tokens, USD {0.5 * sum(token_limits[:2]):,.2f}"
        )
        batches.write(max_cost=0.5 * min(token_limits) - 1)
        assert read_requests(folder) == []
        assert batches.said("not written").startswith("6 requests are not written")
        batches.write()
        path = write_answers(tmp_path / "out.jsonl", serve(folder, TinyModel()))
        batches.take(path)
        # What came from files counts at the batch's price
        message = "max_cost= is 901, of which 900 is spent, and the next request"
        with pytest.raises(EngineError, match=message):
            batches.call(max_cost=901)


def test_both_prices_are_foreseen(request_for, folder):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, **MATCHED, **PRICES)
        foreseen = planned(settings)
        cost = float(
            foreseen["the whole run, at most"].split("cost: USD ")[1].split()[0]
        )
        by_files = foreseen["the whole run, at most, by batch files"]
        amount = float(by_files.split()[1])
        assert amount == pytest.approx(cost / 2, abs=0.01)
        assert by_files.endswith("(--requests-to; 0.5 of the prices)")
        assert "expected, by batch files" in foreseen
        limit = {"max_cost": cost * 0.75}
        assert "limit" in planned(settings | limit)
        assert "limit" not in planned(settings | limit | {"requests_to": str(folder)})
        assert "by batch" not in str(planned(request_for(server, **MATCHED)))
    assert not folder.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"requests_to": "s3://bucket/folder"}, "it must be on a disk"),
        ({"answers_from": "s3://bucket/folder"}, "it must be on a disk"),
        ({"answers_from": "missing.jsonl"}, "where there are no answers"),
        ({"answers_from": ""}, "at least 1"),
        ({"requests_to": "folder", "base_url": None}, "belongs to engine 'openai'"),
    ],
)
def test_wrong_places_are_refused(request_for, changed, message):
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, **MATCHED) | changed
        with pytest.raises(SettingsError, match=message):
            audit(**settings)
        assert server.probes == []


def test_settings_of_files_are_not_kept_with_the_run(started):
    batches, _ = started
    manifest_fields = json.loads(
        (Path(batches.settings["out"]) / "run.json").read_text()
    )
    assert "requests_to" not in manifest_fields["settings"]
    assert "answers_from" not in manifest_fields["settings"]


def test_times_that_are_none_are_not_believed():
    for created in (None, True, "1790000000", -1, 1e300, float("nan"), 0):
        assert batch_files.read_time({"created": created}) is None
    assert (
        batch_files.read_time({"created": CREATED}) == "2026-09-21T14:13:20.000+00:00"
    )


def test_the_command_says_what_to_do_next_and_ends_with_a_code(started, tmp_path):
    batches, _ = started
    settings = batches.settings
    answers = write_answers(tmp_path / "out.jsonl", serve(batches.folder, TinyModel()))
    line = ["audit", settings["input"], "--no-report", "--preset", "matched"]
    for name in ("model", "base_url", "out"):
        line += [f"--{name.replace('_', '-')}", settings[name]]
    line += ["--samples", "3"]
    to_folder = ["--requests-to", str(batches.folder)]
    from_file = ["--answers-from", answers]

    def run(*options: str) -> tuple[int | None, str, str]:
        stdout, err = tmp_path / "out", tmp_path / "err"
        with forked_command([*line, *options], stdout, err) as process:
            process.wait(HANGS)
        return process.poll(), stdout.read_text(), " ".join(err.read_text().split())

    code, stdout, err = run(*to_folder)
    assert (code, stdout) == (0, "")
    assert "then the same command with --answers-from and the files" in err
    code, stdout, err = run(*from_file, *from_file)
    assert (code, stdout) == (1, "")
    assert err.endswith(
        "mia-batch: 18 requests are not answered: give --requests-to as well to write"
        " them to files, or leave --answers-from out to have them asked now; no answer"
        " is lost"
    )
    code, stdout, err = run(
        "--answers-from", str(batches.folder / "requests-0001.jsonl")
    )
    assert (code, stdout) == (2, "")
    assert err.endswith(
        "line 1 is a request and no answer; give the file that the service gave back"
    )
    code, stdout, err = run()
    assert code == 0
    assert stdout.startswith("No sign of memory")
