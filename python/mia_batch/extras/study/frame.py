"""What the studies of ``mia-batch study`` share: their folder, their runs, their table and picture.

A study opens its folder (`opened`) and makes ordinary runs there (`Study.audited`);
`figures_of` has their figures, and `publish` writes ``study.parquet``, ``study.csv``
and ``study.svg``.
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
    round_axis,
    saved,
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
    _said: set[tuple[str, str]] = field(default_factory=set)

    def audited(
        self, name: str, settings: Mapping[str, Any], shares: str = ""
    ) -> Run | None:
        """Audit in a folder of the study, or go on there; ``settings`` are flat, by name.

        A dry run returns None: it says what the audit would ask, as far as that was not
        said of a run before, or what it ``shares``, and raises what the audit would
        refuse.
        """
        own = load_settings(
            {**cli.select_given(dict(settings)), "out": self.folder / name}
        )
        if not self.dry_run:
            return run_audit(own, self.observer)
        rows = [("run", name)]
        try:
            rows.extend(plan(own, speed=self.speed, observer=self.observer))
        finally:  # of a refusal, what is known by then comes before it
            rows[1:] = [("shares", shares)] if shares else [*dict.fromkeys(rows[1:])]
            new = [row for row in rows if row not in self._said]
            new += [("asks", "as much as a run above")] if new == rows[:1] else []
            show(rows=new)
            self._said.update(rows)
        return None


@contextmanager
def opened(out: Path, kind: str, options: dict[str, Any]) -> Iterator[Study]:
    """Hold the folder of a study of a kind alone; a dry run works on links to what is there.

    What `study_options` added is taken out of the options.
    """
    dry_run, speed = options.pop("dry_run"), options.pop("tokens_per_second")
    if speed is not None and not dry_run:
        raise click.UsageError("--tokens-per-second is about --dry-run; give that, too")
    if is_url(str(out).replace(":/", "://", 1)):
        raise SettingsError(
            f"--out {out}: a study is made on a disk only; copy it from there"
        )
    place = next(each for each in (out, *out.absolute().parents) if each.exists())
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise RunFolderError(
            f"{out} cannot be made or written; give the study another --out"
        )
    own = (_KIND, _LOCK)
    there = (
        [each for each in out.iterdir() if each.name not in own] if out.is_dir() else []
    )
    known = (out / _KIND).read_text("utf-8") if (out / _KIND).is_file() else None
    if there and known != kind:
        what = "other files" if known is None else f"another study, {known}"
        raise RunFolderError(f"{out} holds {what}; give this study another --out")
    with cli.observing() as observer, TemporaryDirectory(prefix="mia-batch-") as links:
        if dry_run:
            for each in filter(Path.is_dir, there):
                (Path(links) / each.name).symlink_to(each.absolute())
        else:
            with system_errors(out):
                out.mkdir(parents=True, exist_ok=True)
        busy = f"{out} is held by another study; wait for it, or give another --out"
        with nullcontext() if dry_run else locked(out / _LOCK, 0, busy):
            if not dry_run:
                write_text(out / _KIND, kind)
            try:
                folder = Path(links) if dry_run else out
                yield Study(
                    folder=folder, observer=observer, dry_run=dry_run, speed=speed
                )
            except MiaBatchError as error:
                if links not in str(error):
                    raise
                raise type(error)(str(error).replace(links, str(out))) from error


def folder_name(values: Mapping[str, object]) -> str:
    """Name the folder of a run by what differs; what no folder may be called gets a digest."""
    said = {key: "none" if value is None else value for key, value in values.items()}
    name = "-".join(f"{key}={value}" for key, value in said.items()) or "run"
    safe = re.sub(r"[^\w.=+-]+", "_", name)[:100]
    return safe if safe == name else f"{safe}-{sha256(name.encode()).hexdigest()[:8]}"


def figures_of(run: Run, metrics: pl.DataFrame | None = None) -> pl.DataFrame:
    """Take AUC and TPR from the metrics of a labelled run, or of some of its texts, a fact a row.

    ``run`` is its folder, ``is_primary`` marks the planned attack. ``blind`` says
    whether a classifier that never sees the model tells members from non-members: where
    it is ``separable``, figures are no evidence of memory.
    """
    rows = (run["metrics"] if metrics is None else metrics).filter(
        pl.col("attack").is_in(run.manifest.made["scores"]["attacks"]),
        pl.col("versus").is_null(),
        pl.col("metric").is_in(["roc_auc", "tpr_at_fpr"]),
        slice="all",
    )
    if rows.is_empty():
        raise SettingsError(
            f"{run.folder} knows no members and non-members, so that it has no AUC;"
            " give a column that says which texts are members (--member-column)"
        )
    which = {"check": "blind_baseline", "subject": "members", "statistic": "roc_auc"}
    blind = run["findings"].filter(**which)["verdict"]
    # A training has a method, too, which a study may vary.
    rows = rows.drop("versus", "slice").rename({"method": "method_of_interval"})
    return rows.with_columns(
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

    ``values`` are the columns that say what differs, ``x`` and ``by`` those of the
    picture. Shown is the planned attack of each run, or with ``every`` each attack;
    drawn is the same, but with ``by`` always the planned one. A row without an AUC has
    its reason.
    """
    named = table.with_columns(_without_folder(table[name]) for name in values)
    planned = named.filter(pl.col("is_primary").fill_null(value=True))
    shown = named if every else planned
    _print_figures(shown, values)
    if n := table.filter(blind="separable")["run"].n_unique():
        cli.say(
            f"In {n:,} of {table['run'].drop_nulls().n_unique():,} runs a classifier"
            " that never sees the model tells members from non-members: their figures"
            " are no evidence of memory."
        )
    write_study(out, table, _curves(planned if by else shown, x, by))


def _without_folder(names: pl.Series) -> pl.Series:
    """Leave out the folder that all names of models or files are in."""
    if names.dtype != pl.String:
        return names
    parts = [name.split("/")[:-1] for name in names.drop_nulls()]
    shared = os.path.commonprefix(parts)  # noqa: RUF071 - of lists, part by part
    return names.str.strip_prefix("".join(f"{each}/" for each in shared))


def show(*headings: str, **options: Any) -> None:
    cli.open_console(stderr=False).print(cli.build_table(*headings, **options))


def write_study(out: Path, table: pl.DataFrame, picture: Markup | None) -> None:
    """Write ``study.parquet``, ``study.csv`` and, where there is a picture, ``study.svg``."""
    write_table(table, out / "study.parquet")
    flat = table.select(~cs.nested())
    write_text(out / "study.csv", as_csv(flat))
    (out / "study.svg").unlink(missing_ok=True)  # of values that there were before
    if picture is not None:
        write_text(out / "study.svg", saved(picture))
    cli.say(f"the study is in {', '.join(map(str, sorted(out.glob('study.*'))))}")


def _print_figures(table: pl.DataFrame, values: Sequence[str]) -> None:
    lines, reasons, empty = list[list[str]](), list[str](), "-"
    for key, rows in table.group_by([*values, "attack"], maintain_order=True):
        area = rows.row(by_predicate=pl.col("metric") == "roc_auc", named=True)
        rate = rows.filter((pl.col("fpr") - 0.01).abs() < 1e-6, metric="tpr_at_fpr")[
            "value"
        ]
        named = [*map(written, key[:-1])]
        found = (
            cli.figure(area["value"]),
            cli.limits(area),
            cli.figure(next(iter(rate), None)),
        )
        counts = f"{area['n_members'] or 0:,} + {area['n_nonmembers'] or 0:,}"
        lines.append([*named, str(key[-1] or empty), *found, counts])
        if area["value"] is None:
            reasons.append(cli.as_typed(f"{', '.join(named)}: {area['reason']}"))
    numbers = ("AUC", "95 % interval", "TPR@1%", "members + others")
    headings = [*(name.replace("_", "-") for name in values), "attack", *numbers]
    show(*headings, right=numbers, rows=lines[:_MOST_SHOWN])
    if (more := len(lines) - _MOST_SHOWN) > 0:
        cli.say(f"and {more:,} more in study.parquet")
    cli.say(*reasons[:_MOST_SHOWN])
    if any(empty in line for line in lines):
        cli.say("-: the texts cannot support the figure; study.parquet has the reasons")


def written(value: object) -> str:
    if value is None:
        return "all"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _curves(table: pl.DataFrame, x: str, by: Sequence[str] = ()) -> Markup | None:
    """Draw the AUC with its interval over a column, a curve for each attack and value of ``by``.

    None where fewer than two values of ``x`` have an AUC. Values that are no numbers
    stand side by side in their order.
    """
    known = table.filter(pl.col("value", x).is_not_null(), metric="roc_auc")
    names = [*by, *(["attack"] if known["attack"].n_unique() > 1 or not by else [])]
    values, title = known[x].unique(maintain_order=True), x.replace("_", " ")
    if len(values) < 2:
        return None
    at, last = dict(zip(values, range(len(values)), strict=True)), len(values) - 1
    axis = Axis(
        title, -0.5, last + 0.5, range(last + 1), lambda place: str(values[int(place)])
    )
    if values.dtype.is_numeric():
        axis, at = round_axis(title, values), {each: each for each in values}
    shown = []
    for key, rows in known.group_by(names, maintain_order=True):
        places = rows[x].replace_strict(at, return_dtype=pl.Float64).alias("at")
        points = rows.select(places, "value", "low", "high").sort("at")
        said = (
            (
                written(value)
                if name == "attack"
                else f"{name.replace('_', ' ')} {written(value)}"
            )
            for name, value in zip(names, key, strict=True)
        )
        band = [*points.drop("value").drop_nulls().iter_rows()]
        shown.append(Curve(", ".join(said), [*points["at", "value"].iter_rows()], band))
    if len(shown) > MOST_CURVES:
        cli.say(f"drawn: {MOST_CURVES} of {len(shown):,} curves")
    ends = known.select(
        pl.concat_list("value", "low").explode().drop_nulls()
    ).to_series()
    y = round_axis("AUC", [floor(10 * min(0.4, *ends)) / 10, 1])
    return draw(axis, y, shown[:MOST_CURVES], [(axis.low, 0.5), (axis.high, 0.5)])
