"""A page about one document of a run, such as for its author, and a table of several runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.report import names
from mia_batch.report.answer import MEANINGS, audited_books
from mia_batch.report.html import columns
from mia_batch.report.html.columns import number
from mia_batch.report.html.evidence import (
    build_books,
    build_chance,
    find_windows,
    write_yardstick,
)
from mia_batch.report.html.page import environment
from mia_batch.report.sentences import write_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia_batch.report.html.contents import Contents

Row = dict[str, Any]
_N_NAMED = 5
_MEANINGS = MEANINGS | {
    "q_value": "q: share of wrong names expected in a list down to this document"
}


def render_document(contents: Contents, name: str) -> str:
    """Write one page about a document, by its name or title, and nothing about others."""
    book = find_document(contents, name)
    windows = find_windows(contents, book["key"])
    chance = build_chance(contents, windows)
    of_document = build_books(contents, windows).get(book["key"])
    page = environment().get_template("document.html.jinja")
    return page.render(
        contents=contents,
        book=book,
        strip=columns.strips(contents).get(book["key"]),
        verdict=_write_verdict(contents, book),
        figures=[*_list_figures(contents, book)],
        evidence_of=of_document,
        chance=chance,
        yardstick=write_yardstick(contents),
        verbatim_words=VERBATIM_WORDS,
    )


def find_document(contents: Contents, name: str) -> Row:
    """Find a document by its key, its title, or its file without folder or ending."""
    books = audited_books(contents.tables).filter(level="document")
    rollup = contents.read_rows("rollup", level="document")
    figures = rollup.select("key", "mean", "n_scored", "extracted_share")
    books = books.join(figures, on="key", how="left", maintain_order="left")
    lower = name.lower()
    forms = [*_list_forms(pl.col("key"), pl.col("title"))]
    originals = contents.masking.originals
    if originals:
        key, title = (pl.col(name).replace(originals) for name in ("key", "title"))
        forms += _list_forms(key, title)
    for form in forms:
        rows = books.filter(form.str.to_lowercase() == lower)
        if rows.height == 1:
            return rows.row(0, named=True)
    listing = ", ".join(map(repr, books["key"].head(_N_NAMED)))
    has = f"it has {listing}" if listing else "it has none of several windows"
    more = books.height - _N_NAMED
    if more > 0:
        has += f" and {more:,} more"
    raise SettingsError(f"the run has no one document {name!r}; {has}")


def _list_forms(key: pl.Expr, title: pl.Expr) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    """List what people may call a document: its key, its title, or its file alone."""
    stem = key.str.replace(r"^.*/", "").str.replace(r"\.[^.]+$", "")
    return key, title, stem


def _write_verdict(contents: Contents, book: Row) -> str:
    """Write what the run says of a document, as strongly as its row of the roll-up does."""
    n_outside = contents.read_rows("rollup", pl.col("level") == "outside").height
    compared = "the comparison texts"
    if n_outside:
        compared = write_count(n_outside, "comparison text")
    q = contents.look_up("plan.q", 0.05)
    longest = book["longest_words"]
    in_a_row = f", {longest:,} words in a row" if longest else ""
    verdicts = {
        "comes_out": f"The model gives it back word for word{in_a_row}.",
        "known_better": (
            f"The model knows it better than {compared}: it is on a list of which at most"
            f" {100 * q:g} % are false on average."
        ),
        "above_all": (
            f"It scores above all of {compared}, which are too few to say that the model"
            " knows it."
        ),
        "nothing_found": (
            "Nothing was found, which does not show that the model did not learn it."
        ),
    }
    reason = f": {book['reason']}" if book["reason"] else ""
    unknown = f"Whether the model knows it cannot be said{reason}."
    return verdicts.get(book["verdict"], unknown)


def _list_figures(contents: Contents, book: Row) -> Sequence[tuple[str, str]]:
    """List the numbers of a document, each with what it is."""
    figures = [(f"{book['n_asked']:,} of {book['n_windows']:,}", "windows asked about")]
    if book["longest_words"] is not None:
        figures.append(
            (number(book["longest_words"]), "words in a row, the longest stretch")
        )
    for name, label in _MEANINGS.items():
        if book[name] is not None:
            figures.append((f"{book[name]:.2g}", label))
    outside = contents.read_rows("rollup", pl.col("level") == "outside")
    if outside.height and book["mean"] is not None:
        n = outside.filter(pl.col("mean") >= book["mean"]).height
        figures.append(
            (f"{n:,} of {outside.height:,}", "comparison texts score as high")
        )
    return figures


# Several runs: documents by models.


def render_models(runs: Sequence[Contents], kind: str) -> str:
    """Write a table of documents by models, as a page, Markdown or CSV."""
    table = tabulate_models(runs)
    if kind == "csv":
        return names.as_csv(table)
    templates = {"html": "models.html.jinja", "md": "models.md.jinja"}
    page = environment().get_template(templates[kind])
    answers = [
        (model, contents.answer, contents.doubt)
        for model, contents in zip(table.columns[1:], runs, strict=True)
    ]
    return page.render(head=table.columns, rows=table.rows(), answers=answers)


def tabulate_models(runs: Sequence[Contents]) -> pl.DataFrame:
    """Return a row for each document of any run, and a column for each run."""
    cells: dict[str, dict[int, str]] = {}
    for index, contents in enumerate(runs):
        books = audited_books(contents.tables).filter(pl.col("level") != "outside")
        for row in books.iter_rows(named=True):
            cells.setdefault(row["title"], {})[index] = _write_cell(row)
    if not cells:
        raise SettingsError(
            "the runs have no documents of several windows, which a table of documents"
            " by models is about; `mia-batch table` has attacks by models"
        )
    columns_by_name = {"document": [*cells]}
    for index, contents in enumerate(runs):
        heading = contents.model
        if heading in columns_by_name:
            heading = f"{heading} ({index + 1})"
        columns_by_name[heading] = [
            of_document.get(index, "not asked") for of_document in cells.values()
        ]
    return pl.DataFrame(columns_by_name)


def _write_cell(row: Row) -> str:
    """Write an answer with its strongest number."""
    answer = str(row["answer"])
    if row["verdict"] == "comes_out" and row["longest_words"]:
        return f"{answer} ({row['longest_words']:,} words)"
    if row["q_value"] is not None:
        return f"{answer} (q = {row['q_value']:.2g})"
    return answer
