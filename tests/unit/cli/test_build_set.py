"""The command that builds evaluation sets."""

from __future__ import annotations

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch.cli.main import command


def test_builds_and_says_what_it_can_carry(tmp_path):
    rows = [
        {
            "input": " ".join(f"w{(number * 7 + place * place) % 97}" for place in range(20)),
            "label": number % 2,
        }
        for number in range(100)
    ]
    pl.DataFrame(rows).write_ndjson(tmp_path / "texts.jsonl")
    asked = ["build-set", "--documents", str(tmp_path / "texts.jsonl"), "--text-column", "input"]
    asked += ["--lengths", "16", "--no-repair", "--out", str(tmp_path / "sets")]
    done = CliRunner().invoke(command, asked, catch_exceptions=False)
    assert done.exit_code == 0
    assert "16 words, original: " in done.stdout
    assert pl.read_parquet(tmp_path / "sets" / "original-16.parquet")["member"].sum() > 45


@pytest.mark.parametrize("lengths", ["32,", "long", ""])
def test_lengths_are_numbers(lengths, tmp_path):
    asked = ["build-set", "--documents", "x.parquet", "--out", str(tmp_path / "s")]
    done = CliRunner().invoke(command, [*asked, "--lengths", lengths])
    assert done.exit_code == 2
    assert "no list of whole numbers" in done.stderr
