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

SOURCES = {source for clause in clauses() for source in clause.rows}
RARE = {  # of audits that no fast test makes: by log-probabilities of books, of very many texts
    "rollup: extraction_probability",
    "findings: check=dataset_inference",
    "findings: check=null_audits",
}


def list_clause_rows(run):
    clause_rows = json.loads(render_report(run, "json"))["clauses"]
    assert [(clause["text"], clause["at"]) for clause in clause_rows] == [
        (c.text, c.at) for c in clauses()
    ]
    return [clause["rows"] for clause in clause_rows]


def test_every_row_that_a_clause_names_is_in_some_finished_run(
    texts, walks, controls, books, tmp_path_factory
):
    fresh_runs = [
        make(tmp_path_factory.mktemp("run")) for make in (of_labels, of_non_members)
    ]
    runs = [
        *fresh_runs,
        *(finished_run.run for finished_run in (texts, walks, controls, books)),
    ]
    row_lists = [rows for run in runs for rows in list_clause_rows(run)]
    named_rows = {
        source for rows in row_lists if rows != "not tested" for source in rows
    }
    assert SOURCES - named_rows <= RARE
    assert named_rows <= SOURCES


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_a_row_is_of_a_column_or_a_check_that_there_is(source):
    place, _, name = source.partition(": ")
    if place == "run.json":
        return
    table = {name.lower(): schema for name, schema in vars(schemas).items()}[place]
    if place == "metrics" or name.startswith("check="):
        doc_text = table.__doc__ if place == "metrics" else inspect.getsource(table)
        assert f"``{name.removeprefix('check=')}``" in doc_text
    else:
        assert name in table.column_names()


def test_a_run_without_such_a_row_says_not_tested_and_the_command_that_it_is_no_advice(
    texts, books
):
    labelled, unlabelled = list_clause_rows(texts.run), list_clause_rows(books.run)
    membership = [
        clause.at.endswith("membership inference") for clause in clauses()
    ].index(True)
    assert labelled[membership]["metrics: roc_auc"].startswith("samia_matched_v1: ")
    assert "metrics: roc_auc" not in unlabelled[membership]
    for number, clause in enumerate(clauses()):
        if not clause.rows:
            assert labelled[number] == unlabelled[number] == "not tested"
    no_walks = [clause.at.endswith("exfiltration") for clause in clauses()].index(True)
    assert labelled[no_walks] == "not tested"
    arguments = ["report", str(texts.run.folder), "--format", "json"]
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    report = json.loads(result.output)
    assert report.keys() == {"answer", "conclusions", "clauses", "note"}
    assert "no legal advice" in report["note"]
