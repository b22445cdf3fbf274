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


def named():
    """Contents whose documents have titles of their own."""
    of = contents()
    titles = pl.Series(["Dune, a novel", "Emma", "Ulysses"])
    rollup = of.tables["rollup"].with_columns(title=titles)
    return replace(of, tables={**of.tables, "rollup": rollup})


@pytest.mark.parametrize("name", ["dune", "DUNE, A NOVEL"])
def test_a_document_has_its_verdict_numbers_and_evidence(name):
    page = render_document(named(), name)
    shown = html.fromstring(page)
    assert shown.xpath("//p[@class='answer']/text()") == [
        "The model gives it back word for word, 31 words in a row."
    ]
    assert shown.xpath("//dl[@class='numbers']/div/dd/text()") == ["2 of 2", "31"]
    assert shown.xpath("//article/@id")
    for other in ("emma", "ulysses"):
        assert other not in page.lower()


def test_a_verdict_is_as_strong_as_its_row():
    of = named()
    levels = pl.Series(["document", "document", "outside"], dtype=TYPES["level"])
    verdicts = ["above_all", "known_better", "cannot_tell"]
    rows = of.tables["rollup"].with_columns(
        level=levels, verdict=pl.Series(verdicts, dtype=TYPES["verdict"])
    )
    of = replace(of, tables={**of.tables, "rollup": rows})
    assert "too few to say that the model knows it" in render_document(of, "dune")
    page = html.fromstring(render_document(of, "emma"))
    (verdict,) = page.xpath("//p[@class='answer']/text()")
    assert verdict == (
        "The model knows it better than 1 comparison text: it is on a list of which at"
        " most 5 % are false on average."
    )
    with pytest.raises(
        SettingsError, match="no one document 'ulysses'; it has 'emma', 'dune'"
    ):
        render_document(of, "ulysses")


def test_documents_stand_by_models_and_runs_without_any_are_refused():
    of = named()
    first = of.tables["rollup"].head(1)
    other = replace(of, tables={**of.tables, "rollup": first})
    table = tabulate_models([of, other])
    assert table.columns == ["document", "small-model", "small-model (2)"]
    assert table.rows() == [
        ("Dune, a novel", *["comes out word for word (31 words)"] * 2),
        ("Emma", "stands out (q = 0.7)", "not asked"),
        ("Ulysses", "cannot be judged", "not asked"),
    ]
    assert render_models([of, other], "csv").startswith("document,small-model,")
    written = render_models([of, other], "md")
    assert "| Emma | stands out (q = 0.7) | not asked |" in written
    empty = replace(of, tables={})
    with pytest.raises(SettingsError, match="mia-batch table"):
        render_models([empty, empty], "html")
    hostile = replace(named(), answer=HOSTILE)
    assert "<script>" not in render_models([hostile, other], "html")
