"""The frame of ``mia-batch study``: its commands, and what every study ends with.

A study is a click command, and a line of `STUDIES` says where it is; its module is loaded when the
command is given, and loads what is heavy inside its functions. It makes ordinary runs, each in a
folder of its own below ``--out`` (`audited`), so that a study that was killed goes on where its
runs do. It lays their figures out as one long table: columns of its own that say what differs,
then those of `figures_of`. It ends with `publish`, which writes ``study.parquet``, ``study.csv``
and ``study.svg`` to ``--out`` and prints a line for each value and attack.

    @click.command("mine")
    @study_out
    def mine(*, out: Path, ...) -> None:
        with observing() as observer:
            runs = {name: audited(out / name, settings, observer) for name, settings in ...}
        rows = [figures_of(run).select(pl.lit(name).alias("name"), pl.all()) for name, run in ...]
        table = pl.concat(rows)
        publish(out, table, ["name"], x="name")
"""

from __future__ import annotations

import re
from hashlib import sha256
from importlib import import_module
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from mia_batch.cli.options import (
    as_typed,
    console_of,
    figure,
    given,
    limits,
    path_option,
    plain,
    table_of,
)
from mia_batch.errors import RunFolderError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl
    from click import Command, Context
    from markupsafe import Markup

    from mia_batch.observer import Observer
    from mia_batch.pipeline import Run
    from mia_batch.report.html.plots import Axis

STUDIES = {
    "sweep": "mia_batch.extras.study.sweeps:sweep",
    "unlearning": "mia_batch.extras.study.unlearning:unlearning",
}
"""Where the command of each study is."""

FIGURES = ("roc_auc", "tpr_at_fpr")
"""Metrics that the table of a study has."""
_MOST_SHOWN = 60  # lines of the table in the terminal

study_out = path_option("out", "Folder of the study: its runs, its table, its picture.")


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

    return run_audit(load_settings({**given(dict(settings)), "out": folder}), observer)


def folder_name(values: Mapping[str, object]) -> str:
    """Name the folder of a run by what differs; what no folder may be called gets a digest."""
    name = "-".join(f"{key}={value}" for key, value in values.items()) or "run"
    safe = re.sub(r"[^\w.=+-]+", "_", name)[:100]
    return safe if safe == name else f"{safe}-{sha256(name.encode()).hexdigest()[:8]}"


def figures_of(run: Run) -> pl.DataFrame:
    """Take AUC and TPR of all texts from the metrics of a labelled run, a fact a row.

    ``run`` is its folder, ``is_primary`` marks the planned attack. ``blind`` says whether a
    classifier that never sees the model tells members from non-members: where it is ``separable``,
    figures are no evidence of memory.
    """
    import polars as pl

    own = pl.col("attack").is_in(run.manifest.made["scores"]["attacks"])
    rows = run["metrics"].filter(
        own, pl.col("versus").is_null(), pl.col("metric").is_in(FIGURES), slice="all"
    )
    if rows.is_empty():
        raise SettingsError(
            f"{run.folder} knows no members and non-members, so there is nothing to set side by "
            "side; give a column that says which texts are members (--member-column)"
        )
    blind = run["findings"].filter(check="blind_baseline", subject="members", statistic="roc_auc")[
        "verdict"
    ]
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

    ``values`` are the columns that say what differs, ``x`` and ``by`` those of the picture. Only
    the planned attack of each run is shown, or with ``every`` all that were scored. A row without
    an AUC has its reason.
    """
    import polars as pl

    shown = table if every else table.filter(pl.col("is_primary").fill_null(value=True))
    console = console_of(stderr=False)
    _print_figures(shown, values)
    if n := table.filter(blind="separable")["run"].n_unique():
        console.print(
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
    from mia_batch.tables import replacing, write_text

    with replacing(out / "study.parquet") as stream:
        table.write_parquet(stream)
    flat = table.select(~cs.nested()).with_columns(FOR_SPREADSHEETS)
    write_text(out / "study.csv", flat.write_csv())
    made = ["study.parquet", "study.csv"]
    if picture is None:
        (out / "study.svg").unlink(missing_ok=True)  # of values that there were before
    else:
        write_text(out / "study.svg", saved(picture))
        made.append("study.svg")
    where = ", ".join(str(out / name) for name in made)
    console_of(stderr=False).print(plain(f"the study is in {where}"), soft_wrap=True)


def _print_figures(table: pl.DataFrame, values: Sequence[str]) -> None:
    import polars as pl

    lines = list[list[str]]()
    for key, rows in table.group_by([*values, "attack"], maintain_order=True):
        area = rows.row(by_predicate=pl.col("metric") == "roc_auc", named=True)
        budget = (pl.col("fpr") - 0.01).abs() < 1e-6
        rate = rows.filter(budget, metric="tpr_at_fpr")["value"].to_list() or [None]
        counts = f"{area['n_members'] or 0:,} + {area['n_nonmembers'] or 0:,}"
        named = ("-" if each is None else _written(each) for each in key)
        found = (figure(area["value"]), limits(area), figure(rate[0]), counts)
        lines.append([*named, *found, as_typed(area["reason"] or "")])
    numbers = ("AUC", "95 % interval", "TPR@1%", "members + others")
    headings = [*(name.replace("_", "-") for name in values), "attack", *numbers, "reason"]
    if not any(line[-1] for line in lines):
        headings, lines = headings[:-1], [line[:-1] for line in lines]
    more = len(lines) - _MOST_SHOWN
    how = {"caption": f"and {more:,} more in study.parquet"} if more > 0 else {}
    made = table_of(*headings, right=numbers, rows=lines[:_MOST_SHOWN], **how)
    console_of(stderr=False).print(made)


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _curves(table: pl.DataFrame, x: str, by: Sequence[str] = ()) -> Markup | None:
    """Draw the AUC with its interval over a column, a curve for each attack and value of ``by``.

    None where fewer than two values of ``x`` have an AUC. Values that are no numbers stand side by
    side in their order.
    """
    import polars as pl

    from mia_batch.report.html.plots import MOST_CURVES, Axis, Curve, draw

    known = table.filter(pl.col("value").is_not_null(), metric="roc_auc")
    names = [*by, *(["attack"] if known["attack"].n_unique() > 1 or not by else [])]
    axis, at = _axis_of(known[x], x)
    if len(at) < 2:
        return None
    shown = []
    for key, rows in known.group_by(names, maintain_order=True):
        places = rows[x].replace_strict(at, return_dtype=pl.Float64).alias("at")
        points = rows.select(places, "value", "low", "high").sort("at")
        band = [*points.drop("value").drop_nulls().iter_rows()]
        shown.append(
            Curve(", ".join(map(_written, key)), [*points["at", "value"].iter_rows()], band)
        )
    ends = known.select(pl.concat_list("value", "low").explode().drop_nulls()).to_series()
    low = floor(10 * min(0.4, *ends)) / 10
    y = Axis("AUC", low, 1, [round(low + (1 - low) * k / 5, 3) for k in range(6)])
    return draw(axis, y, shown[:MOST_CURVES], [(axis.low, 0.5), (axis.high, 0.5)])


def _axis_of(values: pl.Series, name: str) -> tuple[Axis, dict[Any, float]]:
    """Return an axis, and where each value stands along it."""
    import polars as pl

    from mia_batch.report.html.plots import Axis, round_axis

    distinct, title = values.drop_nulls().unique(maintain_order=True), name.replace("_", " ")
    numbers = distinct.cast(pl.Float64, strict=False)
    if len(distinct) and not numbers.null_count():
        return round_axis(title, numbers), dict(zip(distinct, numbers, strict=True))
    written = [str(each) for each in distinct]
    axis = Axis(title, 0, max(1, len(written) - 1), range(len(written)), lambda k: written[int(k)])
    return axis, {each: float(k) for k, each in enumerate(distinct)}


def check_folder(out: Path) -> None:
    """Make the folder of a study; refuse one that holds an audit's run itself."""
    if (out / "run.json").exists():
        raise RunFolderError(f"{out} is the folder of a run; give the study another --out")
    out.mkdir(parents=True, exist_ok=True)
