"""The page about one document says nothing about others, and a table has documents by models."""

from dataclasses import replace

import polars as pl
import pytest
from lxml import html

from mia_batch.errors import SettingsError
from mia_batch.report.html import render_document, render_models
from mia_batch.report.html.document import tabulate_models
from mia_batch.schemas import Rollup
from tests.reports import HOSTILE, contents

TYPES = Rollup.create_empty().schema


def name_books():
    """Contents whose documents have titles of their own."""
    page_contents = contents()
    titles = pl.Series(["Dune, a novel", "Emma", "Ulysses"])
    rollup = page_contents.tables["rollup"].with_columns(title=titles)
    return replace(page_contents, tables={**page_contents.tables, "rollup": rollup})


@pytest.mark.parametrize("name", ["dune", "DUNE, A NOVEL"])
def test_a_document_has_its_verdict_numbers_and_evidence(name):
    page = render_document(name_books(), name)
    page_tree = html.fromstring(page)
    assert page_tree.xpath("//p[@class='answer']/text()") == [
        "The model gives it back word for word, 31 words in a row."
    ]
    assert page_tree.xpath("//dl[@class='numbers']/div/dd/text()") == ["2 of 2", "31"]
    assert page_tree.xpath("//article/@id")
    for other_book in ("emma", "ulysses"):
        assert other_book not in page.lower()


def test_a_verdict_is_as_strong_as_its_row():
    page_contents = name_books()
    levels = pl.Series(["document", "document", "outside"], dtype=TYPES["level"])
    verdicts = ["above_all", "known_better", "cannot_tell"]
    rows = page_contents.tables["rollup"].with_columns(
        level=levels, verdict=pl.Series(verdicts, dtype=TYPES["verdict"])
    )
    page_contents = replace(
        page_contents, tables={**page_contents.tables, "rollup": rows}
    )
    assert "too few to say that the model knows it" in render_document(
        page_contents, "dune"
    )
    page = html.fromstring(render_document(page_contents, "emma"))
    (verdict,) = page.xpath("//p[@class='answer']/text()")
    assert verdict == (
        "The model knows it better than 1 comparison text: it is on a list of which at"
        " most 5 % are false on average."
    )
    with pytest.raises(
        SettingsError, match="no one document 'ulysses'; it has 'emma', 'dune'"
    ):
        render_document(page_contents, "ulysses")


def test_documents_stand_by_models_and_runs_without_any_are_refused():
    page_contents = name_books()
    first = page_contents.tables["rollup"].head(1)
    other_contents = replace(
        page_contents, tables={**page_contents.tables, "rollup": first}
    )
    table = tabulate_models([page_contents, other_contents])
    assert table.columns == ["document", "small-model", "small-model (2)"]
    assert table.rows() == [
        ("Dune, a novel", *["comes out word for word (31 words)"] * 2),
        ("Emma", "stands out (q = 0.7)", "not asked"),
        ("Ulysses", "cannot be judged", "not asked"),
    ]
    assert render_models([page_contents, other_contents], "csv").startswith(
        "document,small-model,"
    )
    table_written = render_models([page_contents, other_contents], "md")
    assert "| Emma | stands out (q = 0.7) | not asked |" in table_written
    empty = replace(page_contents, tables={})
    with pytest.raises(SettingsError, match="mia-batch table"):
        render_models([empty, empty], "html")
    hostile = replace(name_books(), answer=HOSTILE)
    assert "<script>" not in render_models([hostile, other_contents], "html")
