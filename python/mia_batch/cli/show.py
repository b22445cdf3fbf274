"""Tables for people: attacks, a plan, a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from rich.table import Table
from rich.text import Text

from mia_batch import tables
from mia_batch.pipeline.verdicts import conclusions
from mia_batch.schemas import Scores, Targets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from mia_batch.attacks import Attack
    from mia_batch.pipeline import Plan, Run
    from mia_batch.settings import Settings

__all__ = ["show_attacks", "show_plan", "show_run"]

_TOP = 10
_SHOWN = ("roc_auc", "tpr_at_fpr", "tpr_nearest_fpr", "accuracy_5_fold")
_NAME_SHOWN = 24
_LEAST_WIDTH = 80  # tables are made for; a narrower terminal breaks their lines
_WIDTH_OF_LONG_HEADINGS = 100


def show_attacks(attacks: Sequence[Attack], console: Console) -> None:
    """List attacks: name, what each needs, source."""
    table = Table(box=None, pad_edge=False)
    for heading in ("attack", "needs", "source"):
        table.add_column(heading, no_wrap=heading != "source")
    for attack in attacks:
        table.add_row(attack.name, _needs(attack), attack.source)
    _print_whole(table, console)


def _print_whole(table: Table | str, console: Console) -> None:
    """Print a table of which no column may be lost, however narrow the terminal is."""
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(table)


def _needs(attack: Attack) -> str:
    return "whole samples" if attack.whole_candidates else attack.evidence


def show_plan(plan: Plan, settings: Settings, console: Console) -> None:
    """Show resolved settings, less those that are not set, then targets and decode budget."""
    table = Table(box=None, pad_edge=False, show_header=False)
    resolved = settings.model_dump(mode="json") | {"out": str(settings.folder)}
    for name, value in resolved.items():
        if value is not None and value != {}:
            table.add_row(
                name, _plain(", ".join(map(str, value)) if isinstance(value, list) else value)
            )
    table.add_row()
    for name, value in plan.lines():
        table.add_row(name, _plain(value))
    console.print(table, highlight=False)


def show_run(run: Run, settings: Settings, console: Console) -> None:
    """Show what may be concluded, then metrics or the highest scores, and where the files are."""
    for sentence in conclusions(run, settings, run.manifest["scored"]["attacks"]):
        console.print(_plain(sentence), highlight=False)
    metrics = run.metrics.filter(
        pl.col("metric").is_in(_SHOWN) & (pl.col("slice") == "all") & pl.col("versus").is_null()
    )
    if metrics["value"].count() == 0:
        _print_whole(_top_table(run, max(console.width, _LEAST_WIDTH)), console)
    else:
        short = console.width < _WIDTH_OF_LONG_HEADINGS
        _print_whole(_metrics_table(metrics, "@\n" if short else "@"), console)
        console.print(_counts_sentence(metrics), highlight=False)
    for line in (*_failed_lines(run), *_unscored_lines(run)):
        console.print(line, highlight=False, markup=False)
    console.print(f"scores, metrics and evidence: {settings.folder}", highlight=False, markup=False)


def _metrics_table(metrics: pl.DataFrame, at: str) -> Table:
    """One row per attack, one column per figure; the AUC's interval stands beside it."""
    table = Table(box=None, pad_edge=False, collapse_padding="\n" in at)
    table.add_column("attack", no_wrap=True)
    figures = metrics.select("metric", "fpr").unique(maintain_order=True).rows()
    for metric, fpr in figures:
        table.add_column(_heading(metric, fpr).replace("@", at), justify="right", no_wrap=True)
        if metric == "roc_auc":
            table.add_column("95 % interval", no_wrap=True)
    for (attack,), rows in metrics.group_by("attack", maintain_order=True):
        table.add_row(str(attack), *_cells(rows))
    return table


def _cells(rows: pl.DataFrame) -> Iterator[str]:
    for row in rows.iter_rows(named=True):
        yield "-" if row["value"] is None else f"{row['value']:.3f}"
        if row["metric"] == "roc_auc":
            yield "-" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"


def _heading(metric: str, fpr: float | None) -> str:
    names = {"roc_auc": "AUC", "tpr_at_fpr": "TPR@", "tpr_nearest_fpr": "TPR near "}
    name = names.get(metric, metric.replace("_", " "))
    return name if fpr is None else f"{name}{100 * fpr:g}%"


def _counts_sentence(metrics: pl.DataFrame) -> str:
    row = metrics.row(0, named=True)
    sentence = f"{row['n_members']:,} members, {row['n_nonmembers']:,} non-members"
    if metrics["value"].null_count():
        sentence += "; -: the data cannot support the figure, reasons in metrics.parquet"
    return sentence


def _top_table(run: Run, width: int) -> Table | str:
    """Lay out the highest scores; the text takes what is left of the width."""
    attack = run.manifest["scored"]["attacks"][0]
    highest = (
        tables.scan(run.scores_path, Scores)
        .filter(pl.col(attack).is_not_null(), role="target")
        .top_k(_TOP, by=[attack, "target_id"])
        .collect(engine="streaming")
    )
    texts = (
        tables.scan(run.targets_path, Targets)
        .filter(pl.col("target_id").is_in(highest["target_id"].implode()))
        .select("target_id", "target")
        .collect(engine="streaming")
    )
    top = highest.join(texts, on="target_id", how="left").sort(attack, "target_id", descending=True)
    if top.is_empty():
        return "no target has a score"
    columns: dict[str, list[Any]] = {
        "score": [f"{score:.3f}" for score in top[attack]],
        "document": top["document_id"].fill_null(top["target_id"]).to_list(),
        "group": top["group"].fill_null("").to_list(),
        "window": top["window_index"].to_list(),
        "text": [" ".join(text.split()) for text in top["target"]],
    }
    if top["group"].count() == 0:
        del columns["group"]
    if not top["window_index"].cast(pl.Boolean).any():
        del columns["window"]
    table = Table(box=None, pad_edge=False, title=f"highest {attack}", title_justify="left")
    left = width
    for heading, values in columns.items():
        cells = [_plain(value) for value in values]
        for cell in cells:
            cell.truncate(left if heading == "text" else _NAME_SHOWN, overflow="ellipsis")
        left -= max(len(heading), *(cell.cell_len for cell in cells)) + 2
        table.add_column(heading, no_wrap=True)
        columns[heading] = cells
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _plain(value: object) -> Text:
    """Show a value as it is: no markup, and nothing that a terminal would obey."""
    return Text("".join(letter if letter.isprintable() else "\ufffd" for letter in str(value)))


def _failed_lines(run: Run) -> list[str]:
    reasons = run.manifest["failed"]["reasons"]
    return [f"failed samples: {count:,} targets: {reason}" for reason, count in reasons.items()]


def _unscored_lines(run: Run) -> list[str]:
    counts = (
        run.unscored.lazy()
        .group_by("reason")
        .agg(pl.col("target_id").n_unique())
        .sort("target_id", "reason", descending=[True, False])
        .collect()
    )
    lines = [f"unscored: {count:,} targets: {reason}" for reason, count in counts.iter_rows()]
    if short := run.scores["n_short"].sum():
        lines.append(f"short: {short:,} candidates ended before their reference's length")
    return lines
