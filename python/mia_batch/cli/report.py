"""The command that renders a report again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mia_batch.storage import place_of

if TYPE_CHECKING:
    from mia_batch.pipeline.reporting import Format

__all__ = ["report"]


@click.command("report")
@click.argument("place", type=place_of, metavar="RUN")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["html", "md", "csv"]),
    default="html",
    show_default=True,
    help="A page; or conclusions and table of documents, to paste.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where it goes.  [default: report.html in RUN; md and csv are printed]",
)
def report(place: Path | str, kind: Format, out: Path | None) -> None:
    """Render the report of a finished run from its tables."""
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.reporting import report_of, write_report
    from mia_batch.storage.copies import mirrored
    from mia_batch.tables import write_text

    run = Run(place)
    if out is not None:
        write_text(out, report_of(run, kind))
        click.echo(f"report: {out}")
    elif kind == "html":
        run.check()  # only a run's folder is held
        with mirrored(place), run.held():
            click.echo(f"report: {write_report(run)}")
    else:
        click.echo(report_of(run, kind), nl=False)
