"""mia-batch compare: what is printed and written."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import polars as pl
import pytest
from click.testing import CliRunner

import mia_batch
from mia_batch.cli.main import command, main
from mia_batch.schemas import Comparisons
from tests.comparing import audit_recorded, write_corpus


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    write_corpus(folder, n=12, windows=6)
    for name, repeated in {"before": 0.7, "after": 0.3, "retrained": 0.1}.items():
        audit_recorded(folder, name, repeated, windows=6)
    return folder


def invoke(*arguments):
    result = CliRunner().invoke(command, ["compare", *map(str, arguments)], standalone_mode=False)
    assert result.exception is None, result.exception
    return result.stdout


def fail(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["mia-batch", "compare", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr().err


def test_figures_of_sets_come_first_then_documents_and_reasons(runs):
    shown = invoke(runs / "before", runs / "after", "--retrained", runs / "retrained")
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0] == "samia_matched_v1: differences are each run less before"
    table = mia_batch.compare([runs / "before", runs / "after"], retrained=runs / "retrained")
    share = table.filter(statistic="removed_share", set="members").row(0, named=True)
    limits = f"{share['low']:.3f} to {share['high']:.3f}"
    assert f"after share removed members {share['value']:.3f} {limits} - - 36" in lines
    assert any(line.startswith("documents: ") for line in lines)
    assert (
        "share removed, after, non-members: the runs before and of the retrained model cannot "
        "be told apart"
    ) in lines


def test_the_table_is_written_whole(runs, tmp_path):
    pair = (runs / "before", runs / "after")
    table = mia_batch.compare(pair)
    invoke(*pair, "--out", tmp_path / "made.parquet")
    written = pl.read_parquet(tmp_path / "made.parquet")
    assert Comparisons.validate(written).equals(table)
    invoke(*pair, "--out", tmp_path / "made.csv")
    assert (tmp_path / "made.csv").read_text() == table.write_csv()


def test_the_plot_has_a_row_for_each_set_and_run(runs, tmp_path):
    invoke(
        *(runs / name for name in ("before", "after", "retrained")),
        "--plot",
        tmp_path / "made.svg",
    )
    drawn = [each.text for each in ET.parse(tmp_path / "made.svg").iter() if each.text]
    assert {"members", "non-members", "after", "retrained"} <= {*drawn}
    assert "mean difference of samia_matched_v1 to before" in drawn


def test_what_cannot_be_done_is_one_sentence(runs, monkeypatch, capsys):
    before = runs / "before"
    status, printed = fail(monkeypatch, capsys, before)
    assert status == 2
    assert printed.startswith("mia-batch: a comparison needs at least two runs")
    status, printed = fail(monkeypatch, capsys, before, runs)
    assert status == 1
    assert "holds no run" in printed
    status, printed = fail(monkeypatch, capsys, before, runs / "retrained", "--plot", "made.png")
    assert status == 2
    assert "made.png must end in .svg" in printed
