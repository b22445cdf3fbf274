"""Clauses of law and standards: what of a finished run speaks to them."""

import inspect
import json

import pytest
from click.testing import CliRunner

from mia_batch import schemas
from mia_batch.cli.main import command
from mia_batch.pipeline.results import render_report
from mia_batch.report.html.page import clauses
from tests.unit.pipeline.test_second import of_labels, of_non_members

SOURCES = {source for each in clauses() for source in each.rows}
RARE = {  # of audits that no fast test makes: by log-probabilities of books, of very many texts
    "rollup: extraction_probability",
    "findings: check=dataset_inference",
    "findings: check=null_audits",
}


def answered(run):
    found = json.loads(render_report(run, "json"))["clauses"]
    assert [(each["text"], each["at"]) for each in found] == [
        (c.text, c.at) for c in clauses()
    ]
    return [each["rows"] for each in found]


def test_every_row_that_a_clause_names_is_in_some_finished_run(
    texts, walks, controls, books, tmp_path_factory
):
    own = [make(tmp_path_factory.mktemp("run")) for make in (of_labels, of_non_members)]
    runs = [*own, *(each.run for each in (texts, walks, controls, books))]
    found = [rows for run in runs for rows in answered(run)]
    there = {source for rows in found if rows != "not tested" for source in rows}
    assert SOURCES - there <= RARE
    assert there <= SOURCES


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_a_row_is_of_a_column_or_a_check_that_there_is(source):
    place, _, name = source.partition(": ")
    if place == "run.json":
        return
    table = {name.lower(): each for name, each in vars(schemas).items()}[place]
    if place == "metrics" or name.startswith("check="):
        said = table.__doc__ if place == "metrics" else inspect.getsource(table)
        assert f"``{name.removeprefix('check=')}``" in said
    else:
        assert name in table.column_names()


def test_a_run_without_such_a_row_says_not_tested_and_the_command_that_it_is_no_advice(
    texts, books
):
    labelled, unlabelled = answered(texts.run), answered(books.run)
    known = [each.at.endswith("membership inference") for each in clauses()].index(True)
    assert labelled[known]["metrics: roc_auc"].startswith("samia_matched_v1: ")
    assert "metrics: roc_auc" not in unlabelled[known]
    for at, each in enumerate(clauses()):
        if not each.rows:
            assert labelled[at] == unlabelled[at] == "not tested"
    no_walks = [each.at.endswith("exfiltration") for each in clauses()].index(True)
    assert labelled[no_walks] == "not tested"
    given = ["report", str(texts.run.folder), "--format", "json"]
    done = CliRunner().invoke(command, given, standalone_mode=False)
    found = json.loads(done.output)
    assert found.keys() == {"answer", "conclusions", "clauses", "note"}
    assert "no legal advice" in found["note"]
