"""The page: sections in their order, from templates."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.report.html.checklist import FIELDS, NOT_RECORDED, READERS, Field
from mia_batch.report.html.controls import control_table, perplexity_table
from mia_batch.report.html.documents import Column, Table, document_tables
from mia_batch.report.html.evidence import MOST_WINDOWS, evidence
from mia_batch.report.html.plots import plots
from mia_batch.report.html.strips import LEVELS
from mia_batch.report.html.text import NO_VALUE, interval, number, plain, share, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jinja2 import Environment

    from mia_batch.report.html.contents import Contents

__all__ = ["environment", "render"]

_ASKED = (
    Field(0, "Model", "run.json: models.target.source.name"),
    Field(0, "Revision", "run.json: models.target.source.revision"),
    Field(0, "Digest of its weights", "run.json: models.target.source.digest"),
    Field(0, "Engine", "run.json: evidence.engine"),
    Field(0, "Texts", "run.json: input.files"),
    Field(0, "Documents", "run.json: input.n_documents"),
    Field(0, "Windows and whole texts asked about", "run.json: targets.total"),
    Field(0, "Words of a window", "run.json: settings.window_words"),
    Field(0, "Characters of a window", "run.json: settings.window_characters"),
    Field(0, "Prompts of each text, by kind", "run.json: made.scores.samples"),
    Field(0, "Temperature", "run.json: evidence.temperature"),
    Field(0, "Seed", "run.json: evidence.seed"),
    Field(0, "Compared with", "run.json: plan.null_set"),
)
_SECTIONS = (
    ("asked", "What was asked"),
    ("conclusions", "What may be concluded"),
    ("documents", "Documents"),
    ("plots", "Plots"),
    ("evidence", "Evidence"),
    ("repeat", "To repeat the run"),
    ("record", "For the record"),
    ("not-run", "Attacks not run"),
    ("sources", "Tables and columns"),
    ("glossary", "Words"),
)
_SHOWN_METRICS = ("roc_auc", "tpr_at_fpr")
_MOST_METRICS = 300
_MOST_OPEN = 5  # windows of evidence; the rest are behind a click


def render(contents: Contents) -> str:
    """Write the page: one file that asks nothing of any network.

    Every number in it stands in a table or in ``run.json``, and the page says where. Texts of
    corpus and model are shown, never obeyed, and cut where they are long.
    """
    windows = evidence(contents)
    return (
        environment()
        .get_template("report.html.jinja")
        .render(
            contents=contents,
            asked=_ASKED,
            tables=[*document_tables(contents, {window["target_id"] for window in windows})],
            findings=contents.frame("findings").to_dicts(),
            plots=[*plots(contents)],
            metrics=_metrics(contents),
            windows=windows,
            controls=control_table(contents),
            perplexities=perplexity_table(contents, [window["target_id"] for window in windows]),
            most_windows=MOST_WINDOWS,
            most_open=_MOST_OPEN,
            unscored=_unscored(contents),
            readers=[(name, [f for f in FIELDS if f.entry in of]) for name, of in READERS.items()],
            not_run=[*_not_run(contents)],
            sources=[*_sources(contents)],
            levels=LEVELS,
            not_recorded=NOT_RECORDED,
            sections=_SECTIONS,
        )
    )


@cache
def environment() -> Environment:
    """Return the templates of pages, with what writes text and numbers into them."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mia_batch.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "interval": interval,
        "number": number,
        "plain": plain,
        "share": share,
        "visible": visible,
    }
    return environment


def _metrics(contents: Contents) -> Table | None:
    known = pl.col("value").is_not_null() & pl.col("versus").is_null()
    figures = contents.frame("metrics", known, pl.col("metric").is_in(_SHOWN_METRICS), slice="all")
    if figures.is_empty():
        return None
    return Table(
        name="metrics",
        title="Figures of each attack",
        source="metrics.parquet",
        columns=_OF_METRICS,
        rows=figures.head(_MOST_METRICS).to_dicts(),
        note="Slices, comparisons and further figures are in metrics.parquet.",
    )


def _of(heading: str, name: str, *, is_number: bool = True) -> Column:
    write = number if is_number else visible
    return Column(
        heading,
        (name,),
        lambda row: NO_VALUE if row[name] is None else write(row[name]),
        name if is_number else None,
    )


_OF_METRICS = [
    _of("Attack", "attack", is_number=False),
    _of("Figure", "metric", is_number=False),
    _of("At FPR", "fpr"),
    Column(
        "Value (95 % interval)",
        ("value", "low", "high"),
        lambda row: interval(row["value"], row["low"], row["high"]),
        "value",
    ),
    _of("Members", "n_members"),
    _of("Non-members", "n_nonmembers"),
    _of("Without score", "n_unscored"),
    _of("Note", "reason", is_number=False),
]


def _unscored(contents: Contents) -> list[dict[str, Any]]:
    """Count the rows of each reason."""
    if "unscored" not in contents.tables:
        return []
    counts = contents.tables["unscored"].group_by("reason").len()
    return counts.sort("len", "reason", descending=[True, False]).collect().to_dicts()


def _not_run(contents: Contents) -> Iterator[dict[str, str]]:
    """Yield the attacks that there are and that the run did not compute, with their needs."""
    from mia_batch.attacks import get, names

    run = set(contents.attacks)
    for attack in (get(name) for name in names() if name not in run):
        needs = [attack.kind, *(f"setting {name}" for name in attack.settings)]
        yield {
            "name": attack.name,
            "source": attack.source,
            "needs": ", ".join(needs).replace("|", " or "),
        }


def _sources(contents: Contents) -> Iterator[dict[str, Any]]:
    """Yield name, rows, columns and meaning of each table."""
    for name, table in contents.tables.items():
        yield {
            "name": name,
            "rows": table.select(pl.len()).collect(engine="streaming").item(),
            "columns": table.collect_schema().names(),
            "meaning": contents.meanings.get(name, ""),
        }
