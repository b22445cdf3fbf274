"""Reports of real runs: written by an audit, rendered again, pasted."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

import mia_batch
from mia_batch.cli.main import command
from mia_batch.pipeline import Run, rescore
from mia_batch.pipeline.finished import report_of


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A recording of two texts, one of them given back."""
    folder = tmp_path_factory.mktemp("recorded")
    texts = ["one two three four five six", "alpha beta gamma delta epsilon zeta"]
    corpus = pl.DataFrame({"document_id": ["a", "<b>"], "text": texts})
    corpus.write_parquet(folder / "corpus.parquet")
    said = {"document_id": ["a", "<b>"], "candidate": [" four five six", " nothing <i>alike</i>"]}
    pl.DataFrame(said).write_parquet(folder / "recorded.parquet")
    return {
        "input": str(folder / "corpus.parquet"),
        "samples_from": str(folder / "recorded.parquet"),
        "out": str(folder / "run"),
        "attacks": "samia_matched_v1,longest_block_v1",
    }


@pytest.fixture(scope="module")
def run(settings):
    return mia_batch.audit(**settings)


def invoke(*arguments):
    done = CliRunner().invoke(command, ["report", *map(str, arguments)])
    assert done.exception is None, done.output
    return done.output


def test_an_audit_ends_with_a_report_of_its_tables(run):
    page = (run.folder / "report.html").read_text("utf-8")
    assert page == report_of(run)
    assert "a high score alone shows nothing" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "<i>" not in page


def test_the_command_on_the_page_asks_for_the_same_run(run, settings):
    page = (run.folder / "report.html").read_text("utf-8")
    written = page.partition('<pre tabindex="0"><code>')[2].partition("</code>")[0].split()
    assert written[0] == "mia-batch"
    given = dict(zip(written[1::2], written[2::2], strict=True))
    assert given["--attacks"] == settings["attacks"]
    assert given["--samples-from"] == settings["samples_from"]
    assert given["--engine"] == "replay"


def test_no_report_is_written_where_none_is_wanted(settings, tmp_path):
    run = mia_batch.audit(**settings | {"out": str(tmp_path / "run"), "report": False})
    assert not (run.folder / "report.html").exists()


def test_the_report_is_rendered_again_to_where_it_is_wanted(run, tmp_path):
    (run.folder / "report.html").unlink()
    assert invoke(run.folder) == f"report: {run.folder / 'report.html'}\n"
    assert (run.folder / "report.html").exists()
    assert invoke(run.folder, "--out", tmp_path / "page.html") == f"report: {tmp_path}/page.html\n"
    assert (tmp_path / "page.html").read_text("utf-8") == report_of(run)


def test_tables_to_paste_are_printed(run):
    assert invoke(run.folder, "--format", "md").startswith("* No text is known to be outside")
    found = pl.read_csv(io.StringIO(invoke(run.folder, "--format", "csv")))
    assert found["samia_matched_v1"].to_list() == run["scores"]["samia_matched_v1"].to_list()


def test_another_primary_attack_is_what_the_page_is_about(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    again = rescore(tmp_path / "run", primary="longest_block_v1")
    assert "with the highest longest_block_v1" in (again.folder / "report.html").read_text("utf-8")


def test_a_folder_without_a_finished_run_is_refused(run, tmp_path):
    with pytest.raises(mia_batch.RunFolderError, match="holds no run"):
        report_of(Run(tmp_path))
    manifest = (run.folder / "run.json").read_text("utf-8")
    (tmp_path / "run.json").write_text(manifest.replace('"verdicts"', '"unfinished"'), "utf-8")
    with pytest.raises(mia_batch.RunFolderError, match="is not finished"):
        report_of(Run(Path(tmp_path)))
