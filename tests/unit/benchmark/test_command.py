"""The command: asking models here and at endpoints, tables, going on, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import pairwise
from math import isnan

import polars as pl
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from mia_batch.errors import MiaBatchError, RunFolderError
from mia_batch.extras.benchmark.answers import compute_p_value, count_right
from mia_batch.extras.benchmark.command import benchmark
from mia_batch.extras.benchmark.exact import compare_published
from mia_batch.extras.benchmark.orders import Design, build_units
from mia_batch.extras.benchmark.results import pivot
from mia_batch.extras.benchmark.sets import find_record, read_benchmark
from mia_batch.extras.gate import judge_run
from mia_batch.pipeline.custody import verify
from tests.hostile_server import MODEL, Asked, HostileServer, Reply, TinyModel, failure
from tests.processes import HANGS, wait_until
from tests.unit.benchmark.conftest import write_set
from tests.unit.evidence.endpoint.test_logprobs import echo

SMALL = ("--shard-rows", 4, "--shuffles", 3)


def invoke(*arguments):
    """Standard output of what exits with 0."""
    done = CliRunner().invoke(benchmark, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("set") / "mine.jsonl", "gsm8k", 32)


@pytest.fixture(scope="module")
def tested(rows, checkpoint, tmp_path_factory):
    """The tests of order of rows and of numbers on a tiny model, and what was printed."""
    out = tmp_path_factory.mktemp("tested") / "out"
    arguments = [rows, "--model", checkpoint, "--engine", "transformers", *SMALL]
    arguments += ["--test", "rows", "--test", "rewritten", "--question", "{question}"]
    return out, arguments, invoke(*arguments, "--out", out)


def test_without_a_folder_the_set_names_one(rows, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--engine", "transformers", *SMALL, "--shuffles", 1, "--test", "rows"]
    invoke(rows, "--model", checkpoint, *arguments)
    assert (tmp_path / "runs" / "mine.jsonl-benchmark" / "benchmark.csv").exists()


def test_the_gate_judges_the_smallest_p_value_of_a_real_folder(tested):
    out, _, _ = tested
    table = pl.read_parquet(out / "benchmark.parquet")
    smallest = table.select(pl.coalesce("p_adjusted", "p_value").min()).item()
    assert table["p_adjusted"].null_count() == 1  # of the exploratory test
    judged = judge_run(out, {"p-above": smallest})
    assert (judged["kind"], judged["verdict"]) == ("benchmark", "fail")
    assert judged["conditions"][0]["value"] == smallest
    assert judge_run(out, {"p-above": smallest - 1e-9})["verdict"] == "pass"


def score_by_transformers(folder, text):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)
    return float(logprobs[0, :-1].gather(1, ids[0, 1:, None]).double().sum())


def test_scores_are_log_probabilities_of_whole_shards(tested, rows, checkpoint):
    out, _, _ = tested
    scores = pl.read_parquet(out / "units.parquet").filter(test="rows")
    assert scores.height == 8 * 4
    assert scores["reason"].null_count() == scores.height
    record = find_record(str(rows), None)
    texts = read_benchmark(record, str(rows)).texts
    published = scores.filter(unit=2, alternative=0)["score"][0]
    expected = score_by_transformers(checkpoint, "\n\n".join(texts[8:12]))
    assert published == pytest.approx(expected, abs=1e-3)


def test_the_table_has_the_exact_p_values(tested):
    out, _, printed = tested
    table = pl.read_parquet(out / "benchmark.parquet")
    scores = pl.read_parquet(out / "units.parquet")
    by_test = {row["test"]: row for row in table.iter_rows(named=True)}
    comparison = compare_published(pivot(scores.filter(test="rows"))[0], 0)
    assert comparison is not None
    row = by_test["rows"]
    assert row["p_value"] == row["p_adjusted"] == comparison.p_value
    assert (row["n_units"], row["n_unscored"]) == (8, 0)
    assert row["difference"] == comparison.statistic
    assert row["verdict"] == ("seen" if comparison.p_value <= 0.01 else "not shown")
    rewritten = by_test["rewritten"]
    assert rewritten["verdict"] == "exploratory"
    assert rewritten["p_adjusted"] is None
    assert "rewritten is exploratory: numbers that people chose" in printed
    assert "is your word" in printed
    assert "does not show that it has not" in printed
    assert (out / "benchmark.csv").read_text().startswith("set,model,test,verdict,")


def test_runs_can_be_verified_and_the_same_command_asks_nothing(tested):
    out, arguments, printed = tested
    runs = [path for path in out.iterdir() if path.is_dir()]
    assert len(runs) == 2
    for run in runs:
        assert verify(run).faults == []
    times = {path: path.stat().st_mtime_ns for run in runs for path in run.iterdir()}
    assert invoke(*arguments, "--out", out) == printed
    changed = [
        path.name for path, time in times.items() if path.stat().st_mtime_ns != time
    ]
    assert "logprobs" not in changed


def test_a_folder_about_another_set_or_design_is_refused(tested, tmp_path):
    out, arguments, _ = tested
    with pytest.raises(RunFolderError, match="another shuffles; give another --out"):
        invoke(*arguments, "--shuffles", 4, "--out", out)
    other = write_set(tmp_path / "mine.jsonl", "gsm8k", 28)
    with pytest.raises(RunFolderError, match="another order_sha256"):
        invoke(other, *arguments[1:], "--out", out)


def test_too_few_shards_give_no_p_value(rows, checkpoint, tmp_path):
    printed = invoke(
        *(rows, "--model", checkpoint, "--engine", "transformers"),
        *(
            "--shard-rows",
            4,
            "--shuffles",
            3,
            "--most-rows",
            12,
            "--out",
            tmp_path / "o",
        ),
    )
    row = pl.read_parquet(tmp_path / "o" / "benchmark.parquet").row(0, named=True)
    assert (row["p_value"], row["verdict"]) == (None, "none")
    assert row["reason"] == "3 shards allow no p-value below 0.016"
    assert "no p-value, for 3 shards allow no p-value below 0.016." in printed
    # It is said before anything is asked, too
    assert "rows: no p-value up to 0.01 is possible with so few" in printed


def test_texts_longer_than_the_context_are_unscored(rows, checkpoint, tmp_path):
    invoke(
        *(rows, "--model", checkpoint, "--engine", "transformers"),
        *("--shard-rows", 16, "--shuffles", 3, "--out", tmp_path / "o"),
    )
    row = pl.read_parquet(tmp_path / "o" / "benchmark.parquet").row(0, named=True)
    assert (row["p_value"], row["n_units"], row["n_unscored"]) == (None, 0, 2)
    assert row["reason"].startswith("no shard could be compared: the text has ")
    assert row["reason"].endswith("; give fewer rows a shard (--shard-rows)")


@pytest.fixture(scope="module")
def shards(rows):
    """What is asked of the shards: the texts, and the p-value of who knows the order."""
    rows_set = read_benchmark(find_record(str(rows), None), str(rows))
    table = build_units(rows_set, "rows", Design(shard_rows=4, shuffles=3)).table
    p_value = 1.0
    for (_,), shard in table.group_by("unit"):
        # A drawn order that is the published one counts against it
        p_value *= (shard["text"] == shard.filter(alternative=0)["text"][0]).mean()
    return table["text"].n_unique(), p_value


class Remembering:
    """An endpoint that finds the published order of some rows likelier than any other."""

    def __init__(self, texts):
        self._next = dict(pairwise(texts))

    def __call__(self, asked: Asked) -> Reply:
        if asked.method == "GET" or asked.is_probe:
            return echo(asked)
        reply = echo(asked)
        rows = asked.prompt.split("\n\n")
        n_known = sum(
            self._next.get(first) == second for first, second in pairwise(rows)
        )
        values = reply.content["choices"][0]["logprobs"]["token_logprobs"]
        values[1:] = [-5.0] * (len(values) - 1)
        values[2] += n_known
        return reply


def endpoint(server, rows, out, *more):
    return [
        *(rows, "--model", MODEL, "--base-url", server.url, *SMALL),
        *("--max-concurrency", 1, "--out", out, *more),
    ]


@pytest.fixture
def texts(rows):
    return read_benchmark(find_record(str(rows), None), str(rows)).texts


def test_an_endpoint_that_knows_the_order_is_found(rows, texts, shards, tmp_path):
    with HostileServer(Remembering(texts)) as server:
        printed = invoke(*endpoint(server, rows, tmp_path / "out"))
    row = pl.read_parquet(tmp_path / "out" / "benchmark.parquet").row(0, named=True)
    assert row["verdict"] == "seen"
    assert row["p_value"] == pytest.approx(shards[1])
    assert 6 <= row["n_first"] <= 8
    assert "The model has seen it, unless something else" in printed


def test_another_model_joins_the_table(rows, texts, tmp_path):
    out = tmp_path / "out"
    with HostileServer(Remembering(texts)) as server:
        invoke(*endpoint(server, rows, out))
        arguments = endpoint(server, rows, out)
        arguments[2] = "other"
        invoke(*arguments)
    table = pl.read_parquet(out / "benchmark.parquet")
    assert table["model"].to_list() == [MODEL, "other"]
    assert table["p_adjusted"].to_list() == [2 * p for p in table["p_value"]]
    assert pl.read_parquet(out / "units.parquet")["model"].n_unique() == 2


def test_a_dry_run_says_tokens_and_money_and_asks_nothing(rows, shards, tmp_path):
    out = tmp_path / "out"
    prices = ("--price-in", 2, "--price-out", 8, "--max-cost", 0.001, "--dry-run")
    with HostileServer(echo) as server:
        printed = invoke(*endpoint(server, rows, out, *prices))
        n_asked = len(server.asked)
    assert (n_asked, out.exists()) == (0, False)
    assert re.search(
        rf"target text +{shards[0]} forward passes, [\d,]+ tokens", printed
    )
    assert re.search(
        r"the whole run, at most +[\d,]+ prompt tokens, .*USD 0\.\d+", printed
    )
    assert "--max-cost may stop the run" in printed
    assert "batch files" not in printed


def check_finished(out, server, shards, *, n_answered):
    """What was answered before is not asked again, and the p-value is that of one go."""
    assert len(server.asked) == shards[0] - n_answered
    row = pl.read_parquet(out / "benchmark.parquet").row(0, named=True)
    assert row["p_value"] == pytest.approx(shards[1])


def test_what_was_answered_before_an_error_is_not_asked_again(
    rows, texts, shards, tmp_path
):
    out = tmp_path / "out"
    n_answers = 0

    def fail_later(asked: Asked) -> Reply:
        nonlocal n_answers
        n_answers += asked.method == "POST" and not asked.is_probe
        if n_answers > 20:
            return failure(401, "no longer")
        return Remembering(texts)(asked)

    with HostileServer(fail_later) as server:
        port, arguments = server.port, endpoint(server, rows, out)
        with pytest.raises(MiaBatchError, match="no longer"):
            invoke(*arguments)
    assert not (out / "benchmark.parquet").exists()
    with HostileServer(Remembering(texts), port=port) as server:
        invoke(*arguments)
    check_finished(out, server, shards, n_answered=20)


def test_a_killed_command_goes_on_where_it_was(rows, texts, shards, tmp_path):
    out, hold = tmp_path / "out", threading.Event()
    n_answers = 0

    def hold_later(asked: Asked) -> Reply:
        nonlocal n_answers
        n_answers += asked.method == "POST" and not asked.is_probe
        reply = Remembering(texts)(asked)
        return replace(reply, hold=hold) if n_answers > 9 else reply

    script = "from mia_batch.extras.benchmark.command import benchmark; benchmark()"
    with HostileServer(hold_later) as server:
        port = server.port
        arguments = [*map(str, endpoint(server, rows, out))]
        with subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            wait_until(lambda: len(server.asked) > 9, "ten requests")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(HANGS)
        hold.set()
    with HostileServer(Remembering(texts), port=port) as server:
        invoke(*arguments)
    check_finished(out, server, shards, n_answered=9)


def test_the_order_of_options_is_a_level_only_with_an_argument(tmp_path):
    path = write_set(tmp_path / "mmlu.parquet", "mmlu", 24)
    units = build_units(
        read_benchmark(find_record("mmlu", str(path)), str(path)), "options", Design()
    )
    published = {*units.table.filter(alternative=0)["text"]}

    def prefer_published(asked: Asked) -> Reply:
        reply = echo(asked)
        if asked.method == "POST" and not asked.is_probe:
            values = reply.content["choices"][0]["logprobs"]["token_logprobs"]
            values[1:] = [-5.0] * (len(values) - 1)
            values[2] += asked.prompt in published
        return reply

    with HostileServer(prefer_published) as server:
        arguments = ["mmlu", "--from", path, "--model", MODEL, "--base-url", server.url]
        arguments += ["--shuffles", 3, "--test", "options"]
        invoke(*arguments, "--out", tmp_path / "a")
        printed = invoke(
            *(*arguments, "--out", tmp_path / "b"), "--options-order", "drawn by lot"
        )
    first = pl.read_parquet(tmp_path / "a" / "benchmark.parquet").row(0, named=True)
    second = pl.read_parquet(tmp_path / "b" / "benchmark.parquet").row(0, named=True)
    assert first["p_value"] == second["p_value"] == 1e-5
    assert (first["verdict"], second["verdict"]) == ("exploratory", "seen")
    assert (first["p_adjusted"], second["p_adjusted"]) == (None, 1e-5)
    assert first["difference"] == second["difference"] == pytest.approx(1.0)
    assert "any order is your word: drawn by lot" in printed


class Choosing(TinyModel):
    """A chat model that knows which row comes next, or always says the same."""

    def __init__(self, texts, says=None):
        super().__init__()
        self._next = dict(pairwise(texts))
        self._says = says

    def text(self, prompt, seed):
        if "Which row comes directly after" not in str(prompt):
            return super().text(prompt, seed)
        if self._says is not None:
            return self._says
        context = re.search(r"after the other:\n\n(.*)\n\nWhich row", prompt, re.DOTALL)
        assert context is not None
        (letter,) = re.findall(
            rf"^([A-D])\. {re.escape(self._next[context[1]])}$", prompt, re.MULTILINE
        )
        return f"The answer is {letter}."


def ask_chat(rows, out, answer, *more):
    with HostileServer(answer) as server:
        printed = invoke(
            *(rows, "--model", MODEL, "--base-url", server.url, "--chat"),
            *("--out", out, *more),
        )
    return pl.read_parquet(out / "benchmark.parquet").row(0, named=True), printed


def test_a_chat_model_is_asked_for_the_next_row(tmp_path):
    rows = write_set(tmp_path / "mine.jsonl", "boolq", 40)
    template = "{passage} {question}"
    record = find_record(str(rows), None, row=template)
    texts = read_benchmark(record, str(rows)).texts
    row, printed = ask_chat(
        rows, tmp_path / "knows", Choosing(texts), "--row", template
    )
    assert (row["test"], row["verdict"]) == ("next-row", "seen")
    assert (row["n_units"], row["n_first"]) == (8, 8)
    assert row["p_value"] == pytest.approx(4**-8)
    assert "next-row: 8 places, 4 questions about each" in printed
    same, _ = ask_chat(rows, tmp_path / "same", Choosing(texts, "B"), "--row", template)
    assert (same["p_value"], same["difference"]) == (1.0, 0.0)
    mute, _ = ask_chat(
        *(rows, tmp_path / "mute", Choosing(texts, "I cannot say")),
        *("--row", template),
    )
    assert mute["p_value"] is None
    assert mute["reason"] == (
        "no place could be compared: no answer names one of the four rows"
    )


def test_a_chat_model_gives_no_log_probabilities(rows, tmp_path):
    done = CliRunner().invoke(
        benchmark,
        [
            *(str(rows), "--model", "m", "--base-url", "http://localhost:1/v1"),
            *("--chat", "--test", "rows", "--out", str(tmp_path / "out")),
        ],
    )
    assert done.exit_code == 2
    assert "--chat takes --test next-row alone" in done.output


def test_the_folder_says_what_was_asked(tested, rows):
    out, _, _ = tested
    record = json.loads((out / "set.json").read_text())
    benchmark_rows = read_benchmark(
        find_record(str(rows), None, question="{question}"), str(rows)
    )
    assert record["order_sha256"] == benchmark_rows.order_sha256
    assert record["rows_sha256"] == benchmark_rows.rows_sha256
    assert (record["shard_rows"], record["shuffles"], record["seed"]) == (4, 3, 0)
    assert pl.read_parquet(out / "units.parquet")["score"].is_finite().all()


def test_answers_that_another_program_has_give_the_same_number(tmp_path):
    rows = write_set(tmp_path / "mine.jsonl", "boolq", 60)
    texts = read_benchmark(find_record(str(rows), None), str(rows)).texts
    units = build_units(
        read_benchmark(find_record(str(rows), None), str(rows)), "next-row", Design()
    )
    knows = Choosing(texts)
    answers = []
    for row in units.table.iter_rows(named=True):
        is_known = row["unit"] % 3 == 0
        answers.append(
            {**row, "candidate": knows.text(row["text"], 0) if is_known else "B"}
        )

    def reply(prompt):
        return next(item["candidate"] for item in answers if item["text"] == prompt)

    class Answering(TinyModel):
        def text(self, prompt, seed):
            if "Which row comes directly after" in str(prompt):
                return reply(prompt)
            return super().text(prompt, seed)

    row, _ = ask_chat(rows, tmp_path / "out", Answering())
    assert compute_p_value(answers, 0) == row["p_value"] < 0.05
    right = [item for item in answers if count_right(item)]
    assert len(right) == sum(
        "ABCD"[item["candidates"].index(0)] == re.sub(r".* |\W", "", item["candidate"])
        for item in answers
    )
    assert isnan(compute_p_value([item | {"candidate": "no"} for item in answers], 0))
    assert isnan(compute_p_value(answers[:4], 0))  # one place allows no small p-value


def test_inspect_asks_the_same_questions(tmp_path):
    inspect_ai = pytest.importorskip("inspect_ai")
    from inspect_ai.model import ModelOutput, get_model

    from mia_batch.extras.benchmark.inspect_task import next_row

    rows = write_set(tmp_path / "mine.jsonl", "boolq", 40)
    task = next_row(str(rows))
    outputs = [
        ModelOutput.from_content("mockllm/model", f"The answer is {sample.target}.")
        for sample in task.dataset
    ]
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = inspect_ai.eval(
        task, model=model, log_dir=str(tmp_path), display="none", max_connections=1
    )
    (scores,) = log.results.scores
    assert scores.metrics["p_value"].value == pytest.approx(4**-8)
    assert scores.metrics["share_right"].value == 1.0
