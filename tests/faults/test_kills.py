"""Runs killed at random moments and started again end like a run that nothing disturbed."""

import os
import random
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from polars.testing import assert_frame_equal

from mia_batch.cli.main import command as mia_batch_command
from mia_batch.evidence.parts import (
    BLOCK_TARGETS,
    LOGPROB_BLOCK_TARGETS,
    RECORDED_BLOCK_TARGETS,
)
from tests.checkpoints import TEXTS
from tests.forked import forked_command
from tests.hostile_server import MODEL, HostileServer, TinyModel
from tests.processes import wait_until
from tests.runs import tables_of

N_LABELLED = 2 * BLOCK_TARGETS
DEVNULL = Path(os.devnull)
WORDS = " ".join(TEXTS).split()
TABLES = [
    "targets",
    "scores",
    "unscored",
    "metrics",
    "verdicts",
    "findings",
    "rollup",
    "curves",
]


def write_corpus(path: Path, n_blocks: int, n_words: int = 16) -> Path:
    """Short texts for a number of blocks, the first of them labelled."""
    rows = range(n_blocks * BLOCK_TARGETS)
    starts = [7 * row % (len(WORDS) - n_words) for row in rows]
    texts = [
        " ".join([f"n{row}", *WORDS[start : start + n_words]])
        for row, start in zip(rows, starts, strict=True)
    ]
    members = [row % 2 == 0 if row < N_LABELLED else None for row in rows]
    pl.DataFrame({"text": texts, "member": members}).write_parquet(path)
    return path


def arguments(corpus: Path, out: Path, *options: str) -> list[str]:
    return ["--input", str(corpus), "--out", str(out), "--no-report", *options]


def run_undisturbed(corpus: Path, out: Path, *options: str) -> None:
    """The same command in this process, which has loaded the libraries already."""
    done = CliRunner().invoke(mia_batch_command, arguments(corpus, out, *options))
    assert done.exit_code == 0, done.output


def parts(out: Path) -> int:
    folders = (out / "samples", out / "logprobs")
    return sum(len(list(folder.glob("*.parquet"))) for folder in folders)


def kill_after_a_new_part(asked: list[str], out: Path, pause: float) -> bool:
    """Start the command and kill it a while after its next part; false where it ended before."""
    before = parts(out)
    with forked_command(asked, DEVNULL, DEVNULL) as process:
        wait_until(
            lambda: parts(out) > before or process.poll() is not None, "a new part"
        )
        time.sleep(pause)  # any moment will do
        process.kill()
    return process.poll() == -signal.SIGKILL


def run_to_its_end(asked: list[str], out: Path) -> None:
    log = out.with_suffix(".log")
    with forked_command(asked, log, log) as process:
        process.wait()
    assert process.poll() == 0, log.read_text()


def contents(out: Path) -> dict[str, bytes]:
    found = tables_of(out)
    assert found.keys() >= {f"{name}.parquet" for name in TABLES}
    return found


def kill_and_compare(
    corpus: Path, folder: Path, kills: int, *options: str, longest_pause: float = 0.4
) -> None:
    """Kill up to so often, finish, and hold all tables against those of an undisturbed run.

    The pauses between a new part and the kill are random, up to what a block or two
    take.
    """
    dice = random.Random(kills)
    asked = arguments(corpus, folder / "killed", *options)
    for kill in range(kills):
        pause = dice.uniform(0, longest_pause)
        if not kill_after_a_new_part(asked, folder / "killed", pause):
            assert kill > 0, "a machine so fast that the run ended before it was killed"
            break
    run_to_its_end(asked, folder / "killed")
    run_undisturbed(corpus, folder / "undisturbed", *options)
    assert contents(folder / "killed") == contents(folder / "undisturbed")
    assert not list((folder / "killed").rglob(".*.tmp"))


@pytest.mark.parametrize(
    ("engine", "kills", "n_blocks", "asked"),  # more blocks than the kills let through
    [
        ("transformers", 1, 3, ("--probes", "2")),
        pytest.param("transformers", 3, 8, ("--probes", "2"), marks=pytest.mark.long),
        pytest.param(
            "vllm",
            3,
            16,
            ("--preset", "matched", "--samples", "2"),
            marks=[
                pytest.mark.long,
                pytest.mark.skipif(
                    find_spec("vllm") is None, reason="vLLM is not installed"
                ),
            ],
        ),
    ],
)
def test_a_model_on_this_machine(engine, kills, n_blocks, asked, checkpoint, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.parquet", n_blocks)
    options = ("--model", str(checkpoint), "--engine", engine, *asked)
    kill_and_compare(
        corpus, tmp_path, kills, *options, "--dtype", "float32", longest_pause=0.15
    )


def test_log_probabilities(checkpoint, tmp_path):
    """The same texts end up in the same parts; their numbers, in other batches, differ by noise."""
    corpus = write_corpus(
        tmp_path / "corpus.parquet", 2 * LOGPROB_BLOCK_TARGETS // BLOCK_TARGETS
    )
    attacks = ("--attacks", "lowercase_ratio_v1,min_k_20_v1")
    options = (
        "--model",
        str(checkpoint),
        "--engine",
        "transformers",
        *attacks,
        "--anyway",
    )
    asked = arguments(corpus, tmp_path / "killed", *options)
    assert kill_after_a_new_part(asked, tmp_path / "killed", 0.0)
    run_to_its_end(asked, tmp_path / "killed")
    run_undisturbed(corpus, tmp_path / "undisturbed", *options)
    killed, undisturbed = (
        {
            str(path.relative_to(tmp_path / run)): pl.read_parquet(path)
            for path in (tmp_path / run).rglob("*.parquet")
            # Of equal scores, noise decides the order.
            if path.stem not in ("metrics", "verdicts", "findings", "rollup", "curves")
        }
        for run in ("killed", "undisturbed")
    )
    assert killed.keys() == undisturbed.keys()
    assert sum(name.startswith("logprobs") for name in killed) == 2 * 2  # of two views
    for name, table in killed.items():
        assert_frame_equal(table, undisturbed[name], rel_tol=1e-3, abs_tol=1e-4)
    assert not list((tmp_path / "killed").rglob(".*.tmp"))


@pytest.mark.parametrize(
    ("kills", "n_blocks"), [(1, 3), pytest.param(3, 6, marks=pytest.mark.long)]
)
def test_an_endpoint_which_is_asked_for_no_journalled_answer_again(
    kills, n_blocks, tmp_path
):
    corpus = write_corpus(tmp_path / "corpus.parquet", n_blocks)
    in_flight = 8
    with HostileServer(TinyModel()) as server:
        options = ("--model", MODEL, "--base-url", server.url, "--probes", "3")
        kill_and_compare(
            corpus, tmp_path, kills, *options, "--max-concurrency", str(in_flight)
        )
        asked = [
            (a.prompt, a.fields["seed"], a.fields["max_tokens"]) for a in server.asked
        ]
    distinct = len(set(asked))
    assert 2 * distinct <= len(asked) <= 2 * distinct + kills * in_flight  # of two runs


@pytest.mark.parametrize(
    ("kills", "n_parts"), [(1, 2), pytest.param(10, 60, marks=pytest.mark.long)]
)
def test_a_recording(kills, n_parts, tmp_path):
    n_blocks = n_parts * RECORDED_BLOCK_TARGETS // BLOCK_TARGETS
    corpus = write_corpus(tmp_path / "corpus.parquet", n_blocks)
    texts = pl.read_parquet(corpus)["text"]
    prefixes = texts.str.split(" ").list.head(8).list.join(" ")
    rows = [
        (text, f" candidate {number} of it") for text in prefixes for number in range(2)
    ]
    recorded = pl.DataFrame(rows, schema=["prefix", "candidate"], orient="row")
    recorded.sample(fraction=1.0, shuffle=True, seed=0).write_parquet(
        tmp_path / "made.parquet"
    )
    options = ("--samples-from", str(tmp_path / "made.parquet"))
    kill_and_compare(corpus, tmp_path, kills, *options, longest_pause=0.02)
