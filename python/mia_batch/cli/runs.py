"""The commands about finished runs: ``show``, ``verify``, ``report``, ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mia_batch.cli.options import console_of, given, observing, settings_options
from mia_batch.places import place_of

if TYPE_CHECKING:
    from polars import DataFrame

    from mia_batch.pipeline import Run
    from mia_batch.pipeline.finished import Format


_HOW_TO_ASK = ("base_url", "api_key_env", "engine_arg")


@click.command("verify")
@click.argument("place", type=place_of, metavar="RUN")
@click.option(
    "--input",
    "inputs",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="Where inputs lie by now; repeatable.",
)
@click.option(
    "--again",
    type=click.IntRange(min=1),
    metavar="N",
    help="Draw N of the run's samples again with its model, and compare.",
)
@click.option("--seed", default=0, help="Seed of the choice of samples.")
@settings_options(*_HOW_TO_ASK)
def verify(
    place: Path | str, inputs: tuple[Path, ...], again: int | None, seed: int, **options: object
) -> int:
    """Compare every byte of a finished run and its inputs with what was recorded.

    Exit 0 if nothing has changed and all samples that are drawn again agree, else 1.
    """
    from mia_batch.cli.evidence import show_checked
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.custody import verify
    from mia_batch.pipeline.finished import choose_samples

    checked = verify(place, inputs)
    show_checked(checked, console_of(stderr=False))
    if checked.faults or again is None:
        return int(bool(checked.faults))
    run = Run(place)
    return _draw_again(run, choose_samples(run, again, seed), options)


@click.command("show")
@click.argument("place", type=place_of, metavar="RUN")
@click.argument("target_id")
@click.option("--again", is_flag=True, help="Draw its samples again with the model, and compare.")
@settings_options(*_HOW_TO_ASK)
def show(place: Path | str, target_id: str, *, again: bool, **options: object) -> int:
    """Show what the model answered about one target, next to the true text.

    The beginning of TARGET_ID suffices where no other target begins so.
    """
    from mia_batch.cli.evidence import find_target, show_answers, show_target
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.stages.views import answers_of

    run, console = Run(place), console_of(stderr=False)
    target = find_target(run, target_id)
    answers = answers_of(run, target)
    show_target(run, target, console)
    show_answers(answers, target, run, console)
    return _draw_again(run, answers, options) if again else 0


def _draw_again(run: Run, samples: DataFrame, options: dict[str, object]) -> int:
    """Return 0 if all samples are drawn again as they were, else 1."""
    from mia_batch.cli.evidence import show_agreement
    from mia_batch.pipeline.finished import draw_again

    with observing() as observer:
        drawn = draw_again(run, samples, observer, **given(options))
    return int(not show_agreement(drawn, console_of(stderr=False)))


@click.command("report")
@click.argument("place", type=place_of, metavar="RUN")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["html", "md", "csv"]),
    default="html",
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
    from mia_batch.pipeline.finished import report_of, write_report
    from mia_batch.places import mirrored
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


def _with_suffix(*allowed: str) -> Any:  # noqa: ANN401 - click's callbacks are of any type
    def check(_: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        if path is None or path.suffix in allowed:
            return path
        raise click.BadParameter(f"{path} must end in {' or '.join(allowed)}", param=option)

    return check


@click.command("compare")
@click.argument("folders", type=place_of, metavar="RUN RUN...", nargs=-1, required=True)
@click.option("--attack", metavar="NAME", help="Whose scores.  [default: the primary attack]")
@click.option(
    "--retrained",
    type=place_of,
    metavar="RUN",
    help="Run of a model that never saw the texts: how much has unlearning removed?",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    callback=_with_suffix(".parquet", ".csv"),
    metavar="FILE",
    help="Write the table as .parquet or .csv.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    callback=_with_suffix(".svg"),
    metavar="FILE",
    help="Draw the mean differences with their intervals, as .svg.",
)
def compare(
    folders: tuple[Path | str, ...],
    attack: str | None,
    retrained: Path | str | None,
    out: Path | None,
    plot: Path | None,
) -> None:
    """Compare runs of one corpus with the first: several models, or before and after unlearning.

    Differences are paired by target, each run less the first, with 95 % intervals and two-sided
    p-values, adjusted for all runs and sets that are compared.
    """
    from mia_batch.cli.evidence import show_comparisons
    from mia_batch.pipeline import compare as compare_runs
    from mia_batch.report.html.plots import draw_differences
    from mia_batch.schemas import Comparisons
    from mia_batch.tables import sink, write_text

    table = compare_runs(folders, attack, retrained)
    if out is not None and out.suffix == ".csv":
        write_text(out, table.write_csv())
    elif out is not None:
        sink(table, out, Comparisons)
    if plot is not None:
        write_text(plot, draw_differences(table))
    show_comparisons(table, console_of(stderr=False))
