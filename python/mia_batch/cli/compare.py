"""``mia-batch compare``: several runs of one corpus in one table and one plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mia_batch.cli.output import console_of
from mia_batch.storage import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import polars as pl
    from rich.console import Console

__all__ = ["compare"]

_MOST_DOCUMENTS = 10  # shown, the smallest p-values first
_FIGURES = {
    "roc_auc": "AUC",
    "roc_auc_difference": "difference of AUC",
    "mean_difference": "mean difference of scores",
    "removed_share": "share removed",
}


def _with_suffix(*allowed: str) -> Any:  # noqa: ANN401 - click's callbacks are of any type
    def check(_: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        if path is None or path.suffix in allowed:
            return path
        msg = f"{path} must end in {' or '.join(allowed)}"
        raise click.BadParameter(msg, param=option)

    return check


@click.command("compare")
@click.argument(
    "folders",
    type=place_of,
    metavar="RUN RUN...",
    nargs=-1,
    required=True,
)
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
    from mia_batch.pipeline import compare as compare_runs
    from mia_batch.report.differences import draw_differences
    from mia_batch.tables import write_text

    table = compare_runs(folders, attack, retrained)
    if out is not None:
        _write(table, out)
    if plot is not None:
        write_text(plot, draw_differences(table))
    _show(table, console_of(stderr=False))


def _write(table: pl.DataFrame, path: Path) -> None:
    from mia_batch.schemas import Comparisons
    from mia_batch.tables import sink, write_text

    if path.suffix == ".csv":
        write_text(path, table.write_csv())
    else:
        sink(table, path, Comparisons)


def _show(table: pl.DataFrame, console: Console) -> None:
    """Print the figures of sets, then the documents and groups that differ most."""
    import polars as pl

    from mia_batch.cli.plain import plain

    first = table["versus"].drop_nulls()[0]
    console.print(plain(f"{table['attack'][0]}: differences are each run less {first}"))
    sets = table.filter(level="set")
    console.print(_table(sets.iter_rows(named=True), "set", "set"))
    for row in sets.filter(pl.col("reason").is_not_null()).iter_rows(named=True):
        run, figure, about, *_ = _cells(row, "set")
        console.print(plain(f"{figure}, {run}, {about}: {row['reason']}"), soft_wrap=True)
    for level in ("document", "group"):
        rows = table.filter(level=level)
        if rows.is_empty():
            continue
        shown = rows.sort("p_value", nulls_last=True, maintain_order=True).head(_MOST_DOCUMENTS)
        n_known = rows.filter(pl.col("adjusted_p") <= 0.05).height
        console.print(
            f"{level}s: {n_known:,} of {rows.height:,} differences have a q-value of at most 0.05",
            highlight=False,
        )
        console.print(_table(shown.iter_rows(named=True), level, "key"))


def _table(rows: Iterable[dict[str, Any]], about: str, column: str) -> Any:  # noqa: ANN401 - rich
    from rich.table import Table

    from mia_batch.cli.plain import plain

    made = Table(box=None, pad_edge=False)
    for heading in ("run", "figure", about, "value", "95 % interval", "p", "adjusted", "texts"):
        made.add_column(heading, justify="left" if heading in ("run", "figure", about) else "right")
    for row in rows:
        made.add_row(*map(plain, _cells(row, column)))
    return made


def _cells(row: dict[str, Any], column: str) -> Iterator[str]:
    yield row["run"]
    yield _FIGURES[row["statistic"]]
    yield row[column].replace("_", "-") if column == "set" else row[column]
    yield "-" if row["value"] is None else f"{row['value']:.3f}"
    yield "-" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
    for name in ("p_value", "adjusted_p"):
        yield "-" if row[name] is None else f"{row[name]:.2g}"
    yield f"{row['n_targets']:,}"
