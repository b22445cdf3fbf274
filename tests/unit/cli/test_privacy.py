"""The command that says how private a tuned model is, and tuning with privacy."""

from __future__ import annotations

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command
from tests.bases import save_bases


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("privacy")
    bases = save_bases(folder)
    texts = [f"the note of person {number} says {number * 37 % 101}" for number in range(60)]
    pl.DataFrame({"text": texts}).write_parquet(folder / "texts.parquet")
    given = {"base": bases["llama"], "data": folder / "texts.parquet", "task": "generation"}
    return ["privacy", *(f"--{name}={value}" for name, value in given.items())]


def test_one_way_to_tune_from_texts_to_the_page(asked, tmp_path):
    little = ["--epsilon=none", "--shadows=0", "--canaries=0", "--epochs=1", "--batch-size=8"]
    done = CliRunner().invoke(
        command, [*asked, *little, f"--out={tmp_path / 'out'}"], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert "to tune full: a target each; epochs: 1" in done.stderr
    said, report = done.stdout.splitlines()
    assert said.startswith("full: members are")
    assert report == f"report: {tmp_path / 'out' / 'privacy.html'}"
    assert (tmp_path / "out" / "privacy.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert pl.read_parquet(tmp_path / "out" / "summary.parquet").height == 1


def test_a_dry_run_trains_nothing(asked, tmp_path):
    done = CliRunner().invoke(
        command, [*asked, f"--out={tmp_path / 'out'}", "--dry-run"], catch_exceptions=False
    )
    assert done.exit_code == 0
    wanted = "to tune full, full-epsilon-8: a target, 16 shadow models, one with canaries each"
    assert wanted in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("--epsilon=many", "'many' is not a valid float range"),
        ("--epsilon=0", "0.0 is not in the range"),
        ("--delta=nan", "nan is no number"),
        ("--task=guessing", "'guessing' is not one of"),
        ("--tuning=all", "'all' is not one of"),
    ],
)
def test_what_is_no_setting(asked, given, reason, tmp_path):
    done = CliRunner().invoke(command, [*asked, f"--out={tmp_path / 'out'}", given])
    assert done.exit_code == 2
    assert reason in done.stderr
