"""`mia-batch bench`: its rows, its refusals, and each way on a few texts and a tiny model."""

import json
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.errors import CorpusError
from mia_batch.evidence.engines import registry
from mia_batch.extras import bench
from mia_batch.kernels import pair_features
from tests.checkpoints import TEXTS

FOUND: dict[str, dict[str, Any]] = {
    "sample": {"tokens": 4000, "prompts": 20, "seconds": 2.0},
    "sample_by_vllm": {"reason": "vLLM is not there"},
    "sample_by_transformers": {"tokens": 500, "seconds": 1.0},
    "score_texts": {"tokens": 900, "seconds": 3.0},
    "compare": {"pairs": 100, "seconds": 0.5, "ours": {"pairs": 2000, "seconds": 0.1}},
    # 32 texts at half a second each, and two seconds for 8 that are continued
    "small_audit": {
        "seconds": 22.0,
        "asking": 16.0,
        "continuing": 2.0,
        "most_continued": 8,
        "peak_mb": 512.0,
    },
}
ATTACK = {
    "attack": "loss_v1",
    "is_blind": False,
    "auc": 0.75,
    "low": 0.5,
    "high": 1.0,
    "tpr_1": None,
}
ATTACK |= {"tokens": None, "seconds": 0.25}


@pytest.fixture
def texts(tmp_path):
    rows = [
        {"document_id": str(n), "text": " ".join(text.split()[:40]), "member": n < 16}
        for n, text in enumerate(TEXTS[:32])
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "texts-in.parquet")
    return tmp_path / "texts-in.parquet"


@pytest.fixture
def asked(monkeypatch):
    """Ways that measure nothing: what each is asked, and what it would have found."""
    calls = []

    def answer(way, timeout, **arguments):
        calls.append((way, arguments))
        more = {"attacks": [ATTACK]} if arguments.get("labelled") else {}
        return {**FOUND[way]} | (more if way == "small_audit" else {})

    monkeypatch.setattr(bench, "run_in_process", answer)
    return calls


def run(*arguments):
    done = CliRunner().invoke(
        command, ["bench", *map(str, arguments)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done


def unwrapped(done):
    """What was printed, whatever the width at which lines were broken."""
    return " ".join(done.stdout.split())


def by_name(rows):
    return {(row["part"], row["way"], row["figure"]): row for row in rows}


def test_a_line_has_one_figure_or_the_reason_why_there_is_none(
    asked, texts, checkpoint
):
    given = (
        "--model",
        checkpoint,
        "--input",
        texts,
        "--texts",
        800,
        "--gpu-hour-price",
        3,
    )
    done = run(*given, "--json", "-")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    rows = by_name(lines)
    values = {name: row["value"] for name, row in rows.items()}
    ours = next(way for part, way, _ in values if part == "sampling")
    assert values["sampling", ours, "tokens_per_second"] == 2000
    assert values["sampling", ours, "prompts_per_second"] == 10
    assert values["sampling", "transformers alone", "mia_batch_times_as_fast"] == 4
    assert (
        values["pairs", "plain Python, SaMIA with zlib", "mia_batch_times_as_fast"]
        == 100
    )
    bare = "a bare loop of transformers"
    assert values["log-probabilities", bare, "mia_batch_times_as_fast"] == 1
    # 300 texts would fit at 10 prompts a second, so all 32 are audited: half a second
    # each.
    assert values["audit", "32 texts, end to end", "texts_per_hour"] == 7200
    assert values["forecast", "800 texts", "hours"] == (4 + 800 * 0.5 + 2) / 3600
    assert values["forecast", "800 texts", "price"] == pytest.approx(
        3 * (4 + 800 * 0.5 + 2) / 3600
    )
    auc = rows["attacks", "loss_v1", "auc"]
    assert (auc["value"], auc["low"], auc["high"]) == (0.75, 0.5, 1.0)
    assert values["attacks", "loss_v1", "seconds_a_text_with_start"] == 0.25
    assert rows["attacks", "loss_v1", "tokens_a_text"]["reason"] == "none are decoded"
    assert rows["sampling", "vLLM alone", None]["reason"] == "vLLM is not there"
    assert all((row["value"] is None) == (row["reason"] is not None) for row in lines)
    same = {
        "model": checkpoint.name,
        "texts": 32,
        "cores": rows["forecast", "800 texts", "hours"]["cores"],
    }
    assert all(
        same.items() <= row.items() and {"cpu", "gpus", "versions"} <= row.keys()
        for row in lines
    )
    assert "vLLM alone: not measured: vLLM is not there" in done.stderr
    assert "0.75 (0.500 to 1.000)" in done.stderr


def test_a_forecast_comes_from_enough_texts_or_not_at_all(asked, checkpoint, tmp_path):
    rows = [{"document_id": str(n), "text": TEXTS[n]} for n in range(31)]
    pl.DataFrame(rows).write_parquet(tmp_path / "few.parquet")
    done = run(
        "--model", checkpoint, "--input", tmp_path / "few.parquet", "--json", "-"
    )
    lines = by_name(map(json.loads, done.stdout.splitlines()))
    assert lines["forecast", "1,000,000 texts", None]["reason"] == (
        "31 texts are too few to forecast from, 32 are needed; give more --minutes, or"
        " an --input of more texts"
    )


def test_a_toy_gets_no_forecast_and_unlabelled_texts_no_attacks(asked, tmp_path):
    file = tmp_path / "rows.jsonl"
    done = run("--json", file)
    rows = by_name(map(json.loads, file.read_text().splitlines()))
    why = "a toy's speed says nothing about your model; give --model"
    assert rows["forecast", "1,000,000 texts", None]["reason"] == why
    why = "give --model, and --input with labelled texts"
    assert [row["reason"] for row in rows.values() if row["part"] == "attacks"] == [why]
    assert {row["texts"] for row in rows.values()} == {256}
    assert (
        "a toy with random weights, whose speed says nothing about your model"
        in unwrapped(done)
    )


def test_where_no_model_can_be_made_pairs_are_compared(asked, monkeypatch):
    monkeypatch.setattr(
        registry,
        "find_missing_package",
        lambda *_: "the package torch is not installed",
    )
    done = run()
    assert {way for way, _ in asked} == {"compare"}
    why = (
        "not measured: no model can be made here, because the package torch is not"
        " installed"
    )
    assert unwrapped(done).count(why) == 6


def test_what_has_no_time_left_says_so(asked, texts, checkpoint, monkeypatch):
    monkeypatch.setattr(bench, "_LEFT", dict.fromkeys(bench._LEFT, 1.0))
    done = run("--model", checkpoint, "--input", texts)
    assert not asked
    assert unwrapped(done).count(
        "no time was left for it; give more --minutes"
    ) == 9 + (bench.cores() > 1)
    reason = "forecast: 1,000,000 texts: not measured: the small audit was not measured"
    assert reason in unwrapped(done)


@pytest.mark.parametrize(
    "wrong", [("--minutes", "0"), ("--texts", "0"), ("--gpu-hour-price", "-1")]
)
def test_numbers_without_a_meaning_are_refused(asked, wrong):
    done = CliRunner().invoke(command, ["bench", *wrong])
    assert done.exit_code == 2
    assert f"Invalid value for '{wrong[0]}'" in done.stderr


def test_texts_that_cannot_be_cut_are_refused(asked, tmp_path):
    (tmp_path / "short.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(
        CorpusError, match=r"no text of .*short.jsonl can be cut in two"
    ):
        run("--input", tmp_path / "short.jsonl")


def test_a_way_that_takes_too_long_or_fails_is_a_reason(tmp_path):
    why = bench.run_in_process("compare", 0.01, folder=str(tmp_path), model="m")
    assert why == {"reason": "not finished within 0 s; give more --minutes"}
    why = bench.run_in_process(
        "sample_by_transformers", folder=str(tmp_path), model="m", seconds=1.0
    )
    assert why["reason"].startswith("mia-batch itself has not sampled")


def test_every_way_measures_the_same_texts(texts, checkpoint, tmp_path, one_thread):
    assert bench._write_texts(tmp_path, str(texts)) == (32, True)
    place = {"folder": str(tmp_path), "model": str(checkpoint)}
    ours = bench.sample(**place, engine="transformers", seconds=60.0)
    requests = json.loads((tmp_path / "requests.json").read_text())
    # Where answers are too short there is another
    assert ours["prompts"] == 32 <= len(requests)
    assert [each["n"] for each in requests].count(bench.SAMPLES) >= 32
    assert all(each["n"] <= bench.SAMPLES and each["most"] <= 128 for each in requests)
    other = bench.sample_by_transformers(**place, seconds=0.0)
    assert 0 < other["tokens"] <= requests[0]["n"] * requests[0]["most"]
    tokens = {
        bench.score_texts(**place, bare=bare, seconds=60.0)["tokens"]
        for bare in (True, False)
    }
    assert len(tokens) == 1
    assert tokens.pop() > 32 * 40
    audited = bench.small_audit(**place, n=8, labelled=True)
    assert 0 < audited["asking"] < audited["seconds"]
    assert {"loss_v1", "probe_leading_v1"} <= {
        each["attack"] for each in audited["attacks"]
    }


def test_plain_python_and_rouge_score_give_the_numbers_of_the_kernels(texts, tmp_path):
    pairs = pl.DataFrame({"candidate": TEXTS[:8], "reference": TEXTS[1:9]})
    columns = [pairs[name].to_list() for name in pairs.columns]
    numbers = pairs.select(pair_features(*pairs.columns)).unnest("features").to_dicts()
    expected = [
        each["overlap_1"] / each["words_reference"] * each["zlib_candidate"]
        for each in numbers
    ]
    assert bench.samia(*columns) == pytest.approx(expected)
    features = pair_features(*pairs.columns, groups=["lcs"], words="rouge")
    ours = pairs.select(features).unnest("features")
    recall = (ours["lcs_words"] / ours["words_reference"]).to_list()
    assert [
        each["rougeL"].recall for each in bench.rouge_score(*columns)
    ] == pytest.approx(recall)
