"""Conclusions and the table of documents as Markdown and CSV."""

from __future__ import annotations

import io
from dataclasses import replace

import polars as pl

from mia_batch.report.html import as_csv, as_markdown
from tests.reports import HOSTILE, contents


def test_markdown_has_conclusions_and_a_row_for_each_document():
    lines = as_markdown(contents()).splitlines()
    assert lines[0] == "* 1 of 3 groups are reported at q = 0.05."
    assert lines[2] == "## Documents"
    assert lines[6].startswith("| A title dune | Parts of it come out word for word. | 31 |")
    assert len(lines) == 9


def test_markdown_obeys_no_text():
    written = as_markdown(contents(keys=("![](http://a)", "a|b", "c\nd"), text=HOSTILE))
    assert "<script" not in written.replace(r"\<", "")
    assert r"\!\[\]\(http://a\)" in written
    assert r"a\|b" in written
    assert "c d" in written


def test_csv_is_the_rollup_as_it_is():
    found = pl.read_csv(io.StringIO(as_csv(contents())))
    assert found["key"].to_list() == ["dune", "emma", "ulysses"]
    assert found["longest_words"].to_list() == [31, 4, None]
    assert found["mean_low"].to_list() == [0.4] * 3


def test_a_spreadsheet_calculates_nothing():
    found = pl.read_csv(io.StringIO(as_csv(contents(keys=("=1+1", "-x", "plain")))))
    assert found["key"].to_list() == ["'=1+1", "'-x", "plain"]


def test_csv_without_documents_is_the_scores():
    of = contents()
    tables = {name: table for name, table in of.tables.items() if name != "rollup"}
    found = pl.read_csv(io.StringIO(as_csv(replace(of, tables=tables))))
    assert found["loss_v1"].to_list() == [-1.0] * 6
