"""Audits of log-probabilities that another program computed, and the recipes of its page."""

import json
import os
import re
import runpy
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.errors import SettingsError
from tests.conftest import REPOSITORY
from tests.forked import Forked, redirect
from tests.gguf_files import needs_llama_cpp, save_gguf
from tests.processes import HANGS
from tests.runs import audit, documents, planned, written

PAGE = (REPOSITORY / "docs" / "other-programs.md").read_text(encoding="utf-8")
READ = ["loss_v1", "min_k_20_v1", "min_k_plus_plus_20_v1", "log_rank_v1", "gap_k_20_v1"]
VLLM_ON_A_CPU = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


def recipe(name: str) -> str:
    """Return a file of the page."""
    match = re.search(rf'^```python title="{name}"\n(.*?)^```$', PAGE, re.M | re.S)
    assert match is not None
    return match[1]


def write_recipes(folder: Path, *names: str) -> None:
    for name in ("numbers_of_tokens.py", *names):
        (folder / name).write_text(recipe(name))


@pytest.fixture(scope="module")
def audited(checkpoint, tmp_path_factory):
    """Settings of an audit that asks the model itself, and its finished run."""
    folder = tmp_path_factory.mktemp("asked")
    settings: dict[str, Any] = {
        "input": written(folder, documents(12)),
        "attacks": READ,
        "report": False,
    }
    run = audit(
        model=str(checkpoint),
        engine="transformers",
        out=str(folder / "run"),
        **settings,
    )
    return settings, run


@pytest.fixture
def texts(audited, tmp_path, monkeypatch, checkpoint):
    """A working directory with the texts that the attacks read, and the model."""
    settings, _ = audited
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my-model").symlink_to(checkpoint)
    arguments = ["audit", settings["input"], "--texts-to", "texts.jsonl"]
    result = CliRunner().invoke(command, [*arguments, "--attacks", ",".join(READ)])
    assert result.exit_code == 0, result.output
    return tmp_path


def score_difference(run, other_run, name: str) -> float:
    """Return by how much a score of two runs differs at most; none may be missing in one."""
    joined = run["scores"].join(other_run["scores"], on="target_id", suffix="_other")
    columns = joined.select(name, f"{name}_other")
    assert columns.null_count().row(0) == (1, 1)
    return float((columns[name] - columns[f"{name}_other"]).abs().max())


def test_a_runs_own_table_gives_its_scores_to_the_bit(audited, checkpoint, tmp_path):
    settings, run = audited
    again = audit(
        logprobs_from=str(run.path("logprobs")),
        tokenizer=str(checkpoint),
        out=str(tmp_path / "run"),
        **settings,
    )
    for name in ("scores", "metrics"):
        assert again[name].equals(run[name])
    counts = {"rows": 11, "matched": 11, "missing": 0, "repeated": 0, "unused": 0}
    assert again.manifest.engines["logprobs of target"]["counts"] == counts
    assert "logprobs_from" in again.manifest.inputs
    verified = CliRunner().invoke(command, ["verify", str(again.folder)])
    assert verified.exit_code == 0, verified.output


def test_the_recipe_of_transformers_gives_the_scores_of_the_engine(audited, texts):
    settings, run = audited
    write_recipes(texts, "with_transformers.py")
    runpy.run_path("with_transformers.py", run_name="__main__")
    again = audit(
        logprobs_from="logprobs.jsonl", tokenizer="my-model", out="run", **settings
    )
    for name in READ:
        assert score_difference(run, again, name) < 1e-4, name


@needs_llama_cpp
def test_the_recipe_of_llama_cpp_gives_the_scores_of_the_engine(
    audited, texts, checkpoint
):
    settings, run = audited
    save_gguf(checkpoint, texts / "model.gguf")
    write_recipes(texts, "with_llama_cpp.py")
    runpy.run_path("with_llama_cpp.py", run_name="__main__")
    again = audit(
        logprobs_from="logprobs.jsonl", tokenizer="model.gguf", out="run", **settings
    )
    for name in READ:
        # By itself llama.cpp keeps keys and values in half precision
        assert score_difference(run, again, name) < 1e-2, name


def run_vllm(log: str) -> None:
    """Run the recipe with settings of a small model on a CPU."""
    redirect(log, log)
    os.environ |= VLLM_ON_A_CPU
    import vllm

    small = {
        "dtype": "float32",
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_seqs": 16,
    }
    start = vllm.LLM
    vllm.LLM = lambda model: start(model, **small)
    runpy.run_path("with_vllm.py", run_name="__main__")


def test_the_recipe_of_vllm_gives_the_scores_of_the_engine(audited, texts):
    pytest.importorskip("vllm")
    settings, run = audited
    write_recipes(texts, "with_vllm.py")
    process = Forked(run_vllm, str(texts / "vllm.log"))
    assert process.wait(HANGS) == 0, (texts / "vllm.log").read_text()[-3000:]
    attacks = ["loss_v1", "min_k_20_v1", "log_rank_v1"]
    again = audit(
        logprobs_from="logprobs.jsonl",
        tokenizer="my-model",
        out="run",
        **settings | {"attacks": attacks},
    )
    for name in attacks:
        assert score_difference(run, again, name) < 1e-4, name


# Files that hold less, or something else.


def write_rows(folder: Path, rows: pl.DataFrame) -> str:
    path = folder / "rows.parquet"
    rows.write_parquet(path)
    return str(path)


@pytest.fixture(scope="module")
def rows(audited):
    """Rows of words in place of tokens: any cut of a text will do."""
    _, run = audited
    texts = run["targets"].filter(pl.col("target").is_not_null())
    words = pl.col("target").str.extract_all(r"\S+\s*|^\s+")
    logprobs = words.list.eval(
        pl.when(pl.int_range(pl.len()) > 0).then(-1.0 - pl.int_range(pl.len()) % 3)
    )
    return texts.select("target_id", tokens=words, logprobs=logprobs)


def test_attacks_are_those_that_the_columns_allow(audited, rows, tmp_path):
    settings, _ = audited
    run = audit(
        logprobs_from=write_rows(tmp_path, rows),
        out=str(tmp_path / "run"),
        **settings | {"attacks": None},
    )
    computed = [name for name in run["scores"].columns if name.endswith("_v1")]
    assert computed == [
        "min_k_20_v1",
        "loss_v1",
        "loss_zlib_v1",
        "extraction_best_50_v1",
    ]
    losses = run["scores"].drop_nulls("loss_v1").sort("target_id")["loss_v1"]
    is_scored = pl.col("logprobs").list.len() > 1
    means = rows.filter(is_scored).sort("target_id")["logprobs"].list.mean()
    assert losses.to_list() == pytest.approx(means.to_list())


def test_texts_without_a_row_are_unscored_with_the_reason(audited, rows, tmp_path):
    settings, _ = audited
    run = audit(
        logprobs_from=write_rows(tmp_path, rows.tail(9)),
        out=str(tmp_path / "run"),
        **settings | {"attacks": ["loss_v1"]},
    )
    reason = "the file of log-probabilities has no row of this text"
    assert run.manifest.failed["reasons"][reason] == 2
    scored = run["scores"].drop_nulls("loss_v1")
    assert not {*scored["target_id"]} & {*rows["target_id"].head(2)}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"attacks": ["min_k_plus_plus_20_v1"]},
            "min_k_plus_plus_20_v1 reads 'vocabulary_mean' .*rows.parquet has no such",
        ),
        ({"attacks": ["samia_v1"]}, "needs evidence 'samples', but evidence= is"),
        (
            {"attacks": ["samia_v1"], "evidence": "both"},
            "evidence= is 'both', and logprobs_from= has log-probabilities alone",
        ),
        ({"attacks": ["repeated_difference_v1"]}, "of texts after others"),
        ({"attacks": ["self_prompt_difference_v1"]}, "needs prompts_from="),
        ({"samples_from": "made.parquet"}, "samples_from= and logprobs_from= are two"),
        ({"texts_to": "texts.jsonl"}, "logprobs_from= and texts_to= are two"),
        ({"base_url": "http://localhost/v1"}, "belongs to engine"),
        ({"extract": True}, "a recording answers nothing further"),
        ({"shard": "1/2"}, "a recording is read by one process"),
    ],
)
def test_what_a_file_cannot_give_is_refused_before_a_run_begins(
    audited, rows, tmp_path, changes, sentence
):
    settings, _ = audited
    with pytest.raises(SettingsError, match=sentence):
        audit(
            **settings
            | {
                "logprobs_from": write_rows(tmp_path, rows),
                "out": str(tmp_path / "run"),
                "attacks": ["loss_v1"],
            }
            | changes
        )
    assert [*(tmp_path / "run").glob("logprobs/*")] == []


def test_another_file_of_the_same_run_is_refused(audited, rows, tmp_path):
    settings, _ = audited
    settings = settings | {"attacks": ["loss_v1"], "out": str(tmp_path / "run")}
    audit(logprobs_from=write_rows(tmp_path, rows), **settings)
    changed = rows.with_columns(pl.col("logprobs") * 2)
    with pytest.raises(SettingsError, match="'recording' was "):
        audit(
            logprobs_from=write_rows(tmp_path, changed),
            retry_failed=True,
            **settings | {"attacks": ["loss_v1", "lowercase_ratio_v1"]},
        )


def test_a_dry_run_reads_the_file_and_writes_nothing(audited, rows, tmp_path):
    settings, _ = audited
    settings = settings | {"attacks": ["loss_v1"], "out": str(tmp_path / "run")}
    lines = planned(settings | {"logprobs_from": write_rows(tmp_path, rows)})
    assert lines["logprobs_from"].endswith("rows.parquet, with logprobs")
    assert not (tmp_path / "run").exists()
    other_texts = rows.with_columns(pl.lit(["else"] * 2).alias("tokens")).drop(
        "target_id"
    )
    other_texts = other_texts.with_columns(logprobs=pl.lit([None, -1.0]))
    with pytest.raises(SettingsError, match="is of other texts"):
        planned(settings | {"logprobs_from": write_rows(tmp_path, other_texts.head(1))})


def test_a_reference_model_is_a_second_file(audited, rows, tmp_path):
    settings, _ = audited
    reference = rows.with_columns(pl.col("logprobs") - 0.5)
    reference.write_parquet(tmp_path / "reference.parquet")
    run = audit(
        logprobs_from=write_rows(tmp_path, rows),
        reference_logprobs_from=str(tmp_path / "reference.parquet"),
        out=str(tmp_path / "run"),
        **settings | {"attacks": ["reference_ratio_v1", "reference_difference_v1"]},
    )
    scores = run["scores"].drop_nulls("reference_ratio_v1")
    assert scores.height == rows.height - 1  # a text of one word has no number
    assert sorted(run.manifest.engines) == [
        "logprobs of reference",
        "logprobs of target",
    ]
    verified = CliRunner().invoke(command, ["verify", str(run.folder)])
    assert verified.exit_code == 0, verified.output


def test_texts_of_every_view_are_written_once_and_never_over_a_file(audited, tmp_path):
    settings, _ = audited
    path = tmp_path / "texts.jsonl"
    arguments = ["audit", settings["input"], "--texts-to", str(path)]
    arguments += ["--attacks", "lowercase_ratio_v1"]
    assert CliRunner().invoke(command, arguments).exit_code == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["view"] for line in lines] == ["text"] * 11 + ["lowercase"] * 11
    assert lines[11]["text"] == lines[0]["text"].lower()
    again = CliRunner().invoke(command, arguments)
    assert again.exit_code != 0
    assert "is there; name another" in str(again.exception)
    assert len(path.read_text().splitlines()) == 22
