"""What the studies of ``mia-batch study`` share: their folder, their runs, their table and picture.

A study opens its folder (`open_study`) and makes ordinary runs there (`Study.audit`);
`build_figures` has their figures, and `publish` writes ``study.parquet``,
``study.csv`` and ``study.svg``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from math import floor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import polars as pl
import polars.selectors as cs
from markupsafe import Markup

from mia_batch.cli import options as cli
from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError
from mia_batch.extras.tune.jobs import locked
from mia_batch.observer import Observer
from mia_batch.pipeline import Run, plan, run_audit
from mia_batch.pipeline.dry_run import Speed
from mia_batch.places import is_url
from mia_batch.report.html.plots import (
    MOST_CURVES,
    Axis,
    Curve,
    draw,
    embed_colours,
    round_axis,
)
from mia_batch.report.names import as_csv
from mia_batch.settings import load_settings
from mia_batch.tables import system_errors, write_table, write_text

_MOST_SHOWN = 60  # lines of the table in the terminal
_KIND, _LOCK = ".study", ".lock"


_DRY_RUN = "Say which runs would be made and what each would ask; ask nothing."
study_options = cli.combine_options(
    (
        cli.path_option(
            "out", "Folder of the study: its runs, its table, its picture."
        ),
        click.option("--dry-run", is_flag=True, help=_DRY_RUN),
        cli.speed_option,
    )
)


@dataclass(frozen=True, kw_only=True)
class Study:
    """An open study: where its runs are made, or what a dry run would make there."""

    folder: Path
    observer: Observer
    dry_run: bool
    speed: Speed
    _shown_rows: set[tuple[str, str]] = field(default_factory=set)

    def audit(
        self,
        name: str,
        settings: Mapping[str, Any],
        shares: str = "",
    ) -> Run | None:
        """Audit in a folder of the study, or go on there; ``settings`` are flat, by name.

        A dry run returns None: it prints what the audit would ask, as far as no run
        before asks it, or what it ``shares``, and raises what the audit would refuse.
        """
        flat = cli.select_given(dict(settings))
        flat["out"] = self.folder / name
        run_settings = load_settings(flat)
        if not self.dry_run:
            return run_audit(run_settings, self.observer)
        forecast: list[tuple[str, str]] = []
        try:
            forecast.extend(
                plan(run_settings, speed=self.speed, observer=self.observer)
            )
        finally:  # what is forecast before a refusal is printed before it
            if shares:
                forecast = [("shares", shares)]
            self._show_forecast(name, forecast)
        return None

    def _show_forecast(self, name: str, forecast: list[tuple[str, str]]) -> None:
        """Print the rows that were not printed for a run before."""
        rows = [("run", name), *dict.fromkeys(forecast)]
        new_rows = [row for row in rows if row not in self._shown_rows]
        if new_rows == rows[:1]:
            new_rows.append(("asks", "as much as a run above"))
        show(rows=new_rows)
        self._shown_rows.update(rows)


@contextmanager
def open_study(folder: Path, kind: str, options: dict[str, Any]) -> Iterator[Study]:
    """Hold the folder of a study alone; a dry run works on links to what is there.

    What `study_options` added is taken out of the options.
    """
    dry_run = options.pop("dry_run")
    speed = options.pop("tokens_per_second")
    if speed is not None and not dry_run:
        raise click.UsageError("--tokens-per-second is about --dry-run; give that, too")
    contents = _check_folder(folder, kind)
    with cli.observing() as observer, TemporaryDirectory(prefix="mia-batch-") as links:
        if dry_run:
            for path in filter(Path.is_dir, contents):
                (Path(links) / path.name).symlink_to(path.absolute())
        else:
            with system_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        busy = f"{folder} is held by another study; wait for it, or give another --out"
        with nullcontext() if dry_run else locked(folder / _LOCK, 0, busy):
            if not dry_run:
                write_text(folder / _KIND, kind)
            try:
                yield Study(
                    folder=Path(links) if dry_run else folder,
                    observer=observer,
                    dry_run=dry_run,
                    speed=speed,
                )
            except MiaBatchError as error:
                if links not in str(error):
                    raise
                message = str(error).replace(links, str(folder))
                raise type(error)(message) from error


def _check_folder(folder: Path, kind: str) -> list[Path]:
    """Check that a study of this kind can be made in a folder; return what is in it."""
    if is_url(str(folder).replace(":/", "://", 1)):
        raise SettingsError(
            f"--out {folder}: a study is made on a disk only; copy it from there"
        )
    ancestors = (folder, *folder.absolute().parents)
    nearest = next(path for path in ancestors if path.exists())
    can_be_written = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    if not can_be_written:
        raise RunFolderError(
            f"{folder} cannot be made or written; give the study another --out"
        )
    contents = [*folder.iterdir()] if folder.is_dir() else []
    contents = [path for path in contents if path.name not in (_KIND, _LOCK)]
    kind_file = folder / _KIND
    present_kind = kind_file.read_text("utf-8") if kind_file.is_file() else None
    if contents and present_kind != kind:
        present = "other files"
        if present_kind is not None:
            present = f"another study, {present_kind}"
        raise RunFolderError(f"{folder} holds {present}; give this study another --out")
    return contents


def folder_name(values: Mapping[str, object]) -> str:
    """Return the name of a run's folder: what differs, with a digest where that is no file name."""
    labels = []
    for key, value in values.items():
        label = "none" if value is None else value
        labels.append(f"{key}={label}")
    name = "-".join(labels) or "run"
    safe_name = re.sub(r"[^\w.=+-]+", "_", name)[:100]
    if safe_name == name:
        return name
    return f"{safe_name}-{sha256(name.encode()).hexdigest()[:8]}"


def build_figures(run: Run, metrics: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return AUC and TPR from the metrics of a labelled run, or of some of its texts.

    ``run`` is its folder, ``is_primary`` marks the planned attack. ``blind`` is the
    verdict on whether a classifier that never sees the model tells members from
    non-members: where it is ``separable``, figures are no evidence of memory.
    """
    figures = (run["metrics"] if metrics is None else metrics).filter(
        pl.col("attack").is_in(run.manifest.made["scores"]["attacks"]),
        pl.col("versus").is_null(),
        pl.col("metric").is_in(["roc_auc", "tpr_at_fpr"]),
        slice="all",
    )
    if figures.is_empty():
        raise SettingsError(
            f"{run.folder} knows no members and non-members, so that it has no AUC;"
            " give a column that says which texts are members (--member-column)"
        )
    verdicts = run["findings"].filter(
        check="blind_baseline", subject="members", statistic="roc_auc"
    )["verdict"]
    blind_verdict = verdicts[0] if len(verdicts) else None
    # A training has a method, too, which a study may vary.
    figures = figures.drop("versus", "slice").rename({"method": "method_of_interval"})
    return figures.with_columns(
        run=pl.lit(str(run.folder)),
        is_primary=pl.col("attack") == run.manifest.plan["primary"],
        blind=pl.lit(blind_verdict, pl.String),
    )


def publish(
    folder: Path,
    table: pl.DataFrame,
    values: Sequence[str],
    *,
    x: str,
    curve_columns: Sequence[str] = (),
    all_attacks: bool = False,
) -> None:
    """Write the table of a study, print a line for each value and attack, and draw the AUC.

    ``values`` are the columns that say what differs, ``x`` and ``curve_columns`` those
    of the picture. Shown is the planned attack of each run, or with ``all_attacks``
    each; drawn is the same, but with ``curve_columns`` always the planned one. A row
    without an AUC has its reason.
    """
    all_rows = table.with_columns(_without_folder(table[name]) for name in values)
    primary_rows = all_rows.filter(pl.col("is_primary").fill_null(value=True))
    shown_rows = all_rows if all_attacks else primary_rows
    _print_figures(shown_rows, values)
    n_separable = table.filter(blind="separable")["run"].n_unique()
    if n_separable:
        n_runs = table["run"].drop_nulls().n_unique()
        cli.say(
            f"In {n_separable:,} of {n_runs:,} runs a classifier"
            " that never sees the model tells members from non-members: their figures"
            " are no evidence of memory."
        )
    drawn_rows = primary_rows if curve_columns else shown_rows
    write_study(folder, table, _draw_curves(drawn_rows, x, curve_columns))


def _without_folder(names: pl.Series) -> pl.Series:
    """Leave out the folder that all names of models or files are in."""
    if names.dtype != pl.String:
        return names
    folders = [name.split("/")[:-1] for name in names.drop_nulls()]
    common_folders = os.path.commonprefix(folders)  # noqa: RUF071 - of lists, part by part
    prefix = "".join(f"{folder}/" for folder in common_folders)
    return names.str.strip_prefix(prefix)


def show(*headings: str, **options: Any) -> None:
    cli.open_console(stderr=False).print(cli.build_table(*headings, **options))


def write_study(folder: Path, table: pl.DataFrame, picture: Markup | None) -> None:
    """Write ``study.parquet``, ``study.csv`` and, where there is a picture, ``study.svg``."""
    write_table(table, folder / "study.parquet")
    flat = table.select(~cs.nested())
    write_text(folder / "study.csv", as_csv(flat))
    picture_path = folder / "study.svg"
    picture_path.unlink(missing_ok=True)  # it may be of values that are gone
    if picture is not None:
        write_text(picture_path, embed_colours(picture))
    paths = sorted(folder.glob("study.*"))
    cli.say(f"the study is in {', '.join(map(str, paths))}")


def _print_figures(table: pl.DataFrame, values: Sequence[str]) -> None:
    """Print a line for each value and attack; ``table`` has a row a figure."""
    lines: list[list[str]] = []
    reasons: list[str] = []
    for key, rows in table.group_by([*values, "attack"], maintain_order=True):
        area = rows.row(by_predicate=pl.col("metric") == "roc_auc", named=True)
        is_one_percent = (pl.col("fpr") - 0.01).abs() < 1e-6
        rates = rows.filter(is_one_percent, metric="tpr_at_fpr")["value"]
        labels = [*map(format_value, key[:-1])]
        counts = f"{area['n_members'] or 0:,} + {area['n_nonmembers'] or 0:,}"
        lines.append(
            [
                *labels,
                str(key[-1] or "-"),
                cli.figure(area["value"]),
                cli.limits(area),
                cli.figure(next(iter(rates), None)),
                counts,
            ]
        )
        if area["value"] is None:
            reasons.append(cli.as_typed(f"{', '.join(labels)}: {area['reason']}"))
    numbers = ("AUC", "95 % interval", "TPR@1%", "members + others")
    headings = [name.replace("_", "-") for name in values]
    show(
        *headings,
        "attack",
        *numbers,
        right=numbers,
        rows=lines[:_MOST_SHOWN],
    )
    n_hidden = len(lines) - _MOST_SHOWN
    if n_hidden > 0:
        cli.say(f"and {n_hidden:,} more in study.parquet")
    cli.say(*reasons[:_MOST_SHOWN])
    if any("-" in line for line in lines):
        cli.say("-: the texts cannot support the figure; study.parquet has the reasons")


def format_value(value: object) -> str:
    if value is None:
        return "all"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _draw_curves(
    table: pl.DataFrame, x: str, curve_columns: Sequence[str] = ()
) -> Markup | None:
    """Draw the AUC with its interval over a column, a curve for each attack and values of others.

    None where fewer than two values of ``x`` have an AUC. Values that are no numbers
    stand side by side in their order.
    """
    areas = table.filter(pl.col("value", x).is_not_null(), metric="roc_auc")
    values = areas[x].unique(maintain_order=True)
    if len(values) < 2:
        return None
    title = x.replace("_", " ")
    if values.dtype.is_numeric():
        axis = round_axis(title, values)
        positions = {value: value for value in values}
    else:
        places = range(len(values))
        axis = Axis(
            title,
            -0.5,
            len(values) - 0.5,
            places,
            lambda place: str(values[int(place)]),
        )
        positions = dict(zip(values, places, strict=True))
    columns = [*curve_columns]
    if not columns or areas["attack"].n_unique() > 1:
        columns.append("attack")
    curves = []
    for key, rows in areas.group_by(columns, maintain_order=True):
        position = rows[x].replace_strict(positions, return_dtype=pl.Float64)
        points = rows.select(position.alias("position"), "value", "low", "high")
        points = points.sort("position")
        labels = []
        for name, value in zip(columns, key, strict=True):
            prefix = "" if name == "attack" else f"{name.replace('_', ' ')} "
            labels.append(prefix + format_value(value))
        line = [*points["position", "value"].iter_rows()]
        band = [*points.drop("value").drop_nulls().iter_rows()]
        curves.append(Curve(", ".join(labels), line, band))
    if len(curves) > MOST_CURVES:
        cli.say(f"drawn: {MOST_CURVES} of {len(curves):,} curves")
    ends = [*areas["value"], *areas["low"].drop_nulls()]
    lowest = floor(10 * min(0.4, *ends)) / 10
    y_axis = round_axis("AUC", [lowest, 1])
    chance = [(axis.low, 0.5), (axis.high, 0.5)]
    return draw(axis, y_axis, curves[:MOST_CURVES], chance)
