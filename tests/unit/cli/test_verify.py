"""mia-batch verify: what is printed, and the exit code."""

from __future__ import annotations

import shutil

import polars as pl
import pytest
from click.testing import CliRunner
from rich.console import Console

from mia_batch.cli.evidence import show_agreement
from mia_batch.cli.main import command, main
from mia_batch.pipeline.run import Run
from tests.runs import recorded_books


@pytest.fixture
def original(recorded_books):
    return recorded_books


@pytest.fixture
def copied(original, tmp_path):
    return shutil.copytree(original / "run", tmp_path / "run")


def invoke(*arguments):
    """Standard output, as lines."""
    result = CliRunner().invoke(command, ["verify", *map(str, arguments)], standalone_mode=False)
    return result.return_value, result.stdout.splitlines()


def fail(monkeypatch, capsys, *arguments):
    """Exit code and standard error of what cannot be done."""
    monkeypatch.setattr("sys.argv", ["mia-batch", "verify", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr().err


def test_a_run_that_is_well_shows_its_root(original):
    root = Run(original / "run").manifest.custody["root"]
    status, lines = invoke(original / "run")
    assert status == 0
    assert lines[-1] == f"root of inputs and tables: {root}"


def test_every_fault_has_a_line(copied):
    (copied / "scores.parquet").write_bytes(b"")
    (copied / "targets.parquet").unlink()
    (copied / "\x1b[2J.txt").touch()
    status, lines = invoke(copied)
    assert status == 1
    assert lines == [
        "changed: scores.parquet",
        "missing: targets.parquet",
        "added: \ufffd[2J.txt",
    ]


def test_inputs_that_are_not_found_are_named_and_no_fault(copied, tmp_path):
    recorded_books(tmp_path / "own")
    elsewhere = (tmp_path / "own" / "books").rename(tmp_path / "elsewhere")
    status, lines = invoke(tmp_path / "own" / "run")
    given = invoke(tmp_path / "own" / "run", "--input", elsewhere)
    assert status == 0
    assert lines[:3] == [
        "not found, not checked: input/0.txt",
        "not found, not checked: input/1.txt",
        "say where these inputs lie by now with --input PATH",
    ]
    assert given == invoke(copied)


@pytest.mark.parametrize(
    ("where", "code", "sentence"),
    [("empty", 2, "holds no run"), ("run", 1, "held by a live run")],
)
def test_what_cannot_be_checked(copied, tmp_path, monkeypatch, capsys, where, code, sentence):
    (tmp_path / "empty").mkdir()
    with Run(copied).held():
        status, error = fail(monkeypatch, capsys, tmp_path / where)
    assert status == code
    assert sentence in error


def test_a_recording_is_not_drawn_again(copied, monkeypatch, capsys):
    status, error = fail(monkeypatch, capsys, copied, "--again", 2)
    assert status == 2
    assert "no model can draw them again" in error


def drawn(*pairs):
    rows = [
        {"target_id": "a", "view": "probe", "view_index": 0, "sample_index": number}
        | dict(zip(("candidate", "again"), pair, strict=True))
        for number, pair in enumerate(pairs)
    ]
    return pl.DataFrame(rows)


def test_the_first_difference_is_shown(capsys):
    same = "x" * 100
    console = Console(width=200)
    assert show_agreement(drawn((same, same), (None, None)), console)
    assert not show_agreement(
        drawn((same, same), (f"{same}\n", f"{same}[b]"), ("a", None)), console
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "drawn again: 2 of 2 samples agree",
        "drawn again: 1 of 3 samples agree",
        "first difference: target a, probe 0, sample 1",
        f"  stored       from character 40: {'x' * 60!r}"[:-1] + "\\n'",
        f"  drawn again  from character 40: {'x' * 60!r}"[:-1] + "[b]'",
        "A CPU in float32 draws the same to the bit, a GPU only the same on average.",
    ]
