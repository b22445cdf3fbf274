"""The frame of ``mia-batch study``: its commands, and what every study ends with.

A line of `STUDIES` says where the click command of a study is, whose module is loaded when it is
named. A study makes ordinary runs below ``--out`` (`audited`), so that one that was killed goes on
where its runs do. It lays their figures out as one long table: columns of its own that say what
differs, then those of `figures_of`. `publish` writes ``study.parquet``, ``study.csv`` and
``study.svg`` to ``--out``, and prints a line for each value and attack. `sweep` is the plainest.
"""

from __future__ import annotations

import re
from hashlib import sha256
from importlib import import_module
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import polars as pl

from mia_batch.cli import options as cli
from mia_batch.errors import RunFolderError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from click import Command, Context
    from markupsafe import Markup

    from mia_batch.observer import Observer
    from mia_batch.pipeline import Run
    from mia_batch.report.html.plots import Axis

STUDIES = {
    "books": "mia_batch.extras.study.books:books",
    "contamination": "mia_batch.extras.study.sweeps:contamination",
    "sweep": "mia_batch.extras.study.sweeps:sweep",
    "unlearning": "mia_batch.extras.study.unlearning:unlearning",
}
"""Where the command of each study is."""

_MOST_SHOWN = 60  # lines of the table in the terminal

study_out = cli.path_option("out", "Folder of the study: its runs, its table, its picture.")


class _Studies(click.Group):
    """The studies of the table, each loaded when it is named."""

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002 - of click
        return sorted(STUDIES)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:  # noqa: ARG002 - of click
        if cmd_name not in STUDIES:
            return None
        module, _, name = STUDIES[cmd_name].partition(":")
        return cast("Command", getattr(import_module(module), name))


@click.group("study", cls=_Studies)
def study() -> None:
    """Do the study of a paper: audits set side by side, with one table and one picture.

    The same command again goes on where it stopped, and asks nothing twice.
    """


def audited(folder: Path, settings: Mapping[str, Any], observer: Observer) -> Run:
    """Audit in a folder, or go on there; ``settings`` are those of an audit, flat, by name."""
    from mia_batch.pipeline import run_audit
    from mia_batch.settings import load_settings

    return run_audit(load_settings({**cli.given(dict(settings)), "out": folder}), observer)


def folder_name(values: Mapping[str, object]) -> str:
    """Name the folder of a run by what differs; what no folder may be called gets a digest."""
    name = "-".join(f"{key}={value}" for key, value in values.items()) or "run"
    safe = re.sub(r"[^\w.=+-]+", "_", name)[:100]
    return safe if safe == name else f"{safe}-{sha256(name.encode()).hexdigest()[:8]}"


def figures_of(run: Run, metrics: pl.DataFrame | None = None) -> pl.DataFrame:
    """Take AUC and TPR from the metrics of a labelled run, or of some of its texts, a fact a row.

    ``run`` is its folder, ``is_primary`` marks the planned attack. ``blind`` says whether a
    classifier that never sees the model tells members from non-members: where it is ``separable``,
    figures are no evidence of memory.
    """
    own = pl.col("attack").is_in(run.manifest.made["scores"]["attacks"])
    rows = (run["metrics"] if metrics is None else metrics).filter(
        own,
        pl.col("versus").is_null(),
        pl.col("metric").is_in(["roc_auc", "tpr_at_fpr"]),
        slice="all",
    )
    if rows.is_empty():
        raise SettingsError(
            f"{run.folder} knows no members and non-members, so that it has no AUC; give a column "
            "that says which texts are members (--member-column)"
        )
    which = {"check": "blind_baseline", "subject": "members", "statistic": "roc_auc"}
    blind = run["findings"].filter(**which)["verdict"]
    return rows.drop("versus", "slice").with_columns(
        run=pl.lit(str(run.folder)),
        is_primary=pl.col("attack") == run.manifest.plan["primary"],
        blind=pl.lit(blind[0] if len(blind) else None, pl.String),
    )


def publish(
    out: Path,
    table: pl.DataFrame,
    values: Sequence[str],
    *,
    x: str,
    by: Sequence[str] = (),
    every: bool = False,
) -> None:
    """Write the table of a study, print a line for each value and attack, and draw the AUC.

    ``values`` are the columns that say what differs, ``x`` and ``by`` those of the picture. The
    planned attack of each run is shown, or with ``every`` all; a row without an AUC has its reason.
    """
    shown = table if every else table.filter(pl.col("is_primary").fill_null(value=True))
    _print_figures(shown, values)
    if n := table.filter(blind="separable")["run"].n_unique():
        cli.console_of(stderr=False).print(
            f"In {n:,} of {table['run'].drop_nulls().n_unique():,} runs a classifier that never "
            "sees the model tells members from non-members: their figures are no evidence of "
            "memory."
        )
    write_study(out, table, _curves(shown, x, by))


def write_study(out: Path, table: pl.DataFrame, picture: Markup | None) -> None:
    """Write ``study.parquet``, ``study.csv`` and, where there is a picture, ``study.svg``."""
    import polars.selectors as cs

    from mia_batch.report.html.plots import saved
    from mia_batch.report.paper import FOR_SPREADSHEETS
    from mia_batch.tables import write_table, write_text

    write_table(table, out / "study.parquet")
    flat = table.select(~cs.nested()).with_columns(FOR_SPREADSHEETS)
    write_text(out / "study.csv", flat.write_csv())
    (out / "study.svg").unlink(missing_ok=True)  # of values that there were before
    if picture is not None:
        write_text(out / "study.svg", saved(picture))
    made = ", ".join(map(str, sorted(out.glob("study.*"))))
    cli.console_of(stderr=False).print(cli.plain(f"the study is in {made}"), soft_wrap=True)


def _print_figures(table: pl.DataFrame, values: Sequence[str]) -> None:
    console, lines, reasons = cli.console_of(stderr=False), list[list[str]](), list[str]()
    for key, rows in table.group_by([*values, "attack"], maintain_order=True):
        area = rows.row(by_predicate=pl.col("metric") == "roc_auc", named=True)
        budget = (pl.col("fpr") - 0.01).abs() < 1e-6
        rate = rows.filter(budget, metric="tpr_at_fpr")["value"].to_list() or [None]
        counts = f"{area['n_members'] or 0:,} + {area['n_nonmembers'] or 0:,}"
        found = (cli.figure(area["value"]), cli.limits(area), cli.figure(rate[0]), counts)
        lines.append([*map(written, key[:-1]), str(key[-1] or "-"), *found])
        if area["value"] is None:
            reasons.append(f"{', '.join(lines[-1][: len(values)])}: {area['reason']}")
    numbers = ("AUC", "95 % interval", "TPR@1%", "members + others")
    headings = [*(name.replace("_", "-") for name in values), "attack", *numbers]
    console.print(cli.table_of(*headings, right=numbers, rows=lines[:_MOST_SHOWN]))
    if (more := len(lines) - _MOST_SHOWN) > 0:
        console.print(f"and {more:,} more in study.parquet")
    for reason in reasons[:_MOST_SHOWN]:
        console.print(cli.plain(cli.as_typed(reason)))
    if any("-" in line for line in lines):
        console.print("-: the texts cannot support the figure; study.parquet has the reasons")


def written(value: object) -> str:
    if value is None:
        return "all"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _curves(table: pl.DataFrame, x: str, by: Sequence[str] = ()) -> Markup | None:
    """Draw the AUC with its interval over a column, a curve for each attack and value of ``by``.

    None where fewer than two values of ``x`` have an AUC. Values that are no numbers stand side by
    side in their order.
    """
    from mia_batch.report.html.plots import MOST_CURVES, Curve, draw, round_axis

    known = table.filter(pl.col("value", x).is_not_null(), metric="roc_auc")
    names = [*by, *(["attack"] if known["attack"].n_unique() > 1 or not by else [])]
    axis, at = _axis_of(known[x], x)
    if len(at) < 2:
        return None
    shown = []
    for key, rows in known.group_by(names, maintain_order=True):
        places = rows[x].replace_strict(at, return_dtype=pl.Float64).alias("at")
        points = rows.select(places, "value", "low", "high").sort("at")
        band = [*points.drop("value").drop_nulls().iter_rows()]
        said = (
            written(value) if name == "attack" else f"{name.replace('_', ' ')} {written(value)}"
            for name, value in zip(names, key, strict=True)
        )
        shown.append(Curve(", ".join(said), [*points["at", "value"].iter_rows()], band))
    if len(shown) > MOST_CURVES:
        cli.console_of(stderr=False).print(f"drawn: {MOST_CURVES} of {len(shown):,} curves")
    ends = known.select(pl.concat_list("value", "low").explode().drop_nulls()).to_series()
    y = round_axis("AUC", [floor(10 * min(0.4, *ends)) / 10, 1])
    return draw(axis, y, shown[:MOST_CURVES], [(axis.low, 0.5), (axis.high, 0.5)])


def _axis_of(values: pl.Series, name: str) -> tuple[Axis, dict[Any, float]]:
    """Return an axis, and where each value stands along it."""
    from mia_batch.report.html.plots import Axis, round_axis

    distinct, title = values.unique(maintain_order=True), name.replace("_", " ")
    if distinct.dtype.is_numeric() and distinct.len():
        return round_axis(title, distinct), {each: float(each) for each in distinct}
    ticks, last = range(distinct.len()), max(1, distinct.len() - 1)
    axis = Axis(title, 0, last, ticks, lambda place: str(distinct[int(place)]))
    return axis, dict(zip(distinct, map(float, ticks), strict=True))


def check_folder(out: Path) -> None:
    """Make the folder of a study; refuse one that holds an audit's run itself."""
    if (out / "run.json").exists():
        raise RunFolderError(f"{out} is the folder of a run; give the study another --out")
    out.mkdir(parents=True, exist_ok=True)
