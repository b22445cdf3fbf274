"""Tables for people: attacks, a plan, a finished run."""

from __future__ import annotations

from os.path import commonprefix
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.table import Table

from mia_batch.cli.options import figure, limits, plain
from mia_batch.diagnostics.unscored import count_reasons
from mia_batch.pipeline.finished import REPORT
from mia_batch.pipeline.stages.verdicts import conclusions
from mia_batch.places import is_url
from mia_batch.settings import stored_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console

    from mia_batch.attacks import Attack
    from mia_batch.pipeline import Run
    from mia_batch.settings import Settings


_TOP = 10
_SHOWN = ("roc_auc", "tpr_at_fpr", "tpr_nearest_fpr", "accuracy_5_fold")
_NAME_SHOWN = 24
_LEAST_WIDTH = 80  # tables are made for; a narrower terminal breaks their lines
_WIDTH_OF_LONG_HEADINGS = 100
_WIDTH_OF_NAMES = 56


def show_attacks(attacks: Iterable[Attack], console: Console) -> None:
    """List attacks, those of one paper that need the same on one line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for attack in attacks:
        key = attack.source.partition(",")[0].partition(" (")[0], needs(attack)
        alike.setdefault(key, []).append(attack.name.removesuffix("_v1"))
    rows = [(line, *key) for key, names in alike.items() for line in _patterns(names)]
    width = max(len(line) for line, _, _ in rows)
    for line, source, needed in rows:
        console.print(plain(f"{line:{width}}  {needed:17}  {source}"), soft_wrap=True)
    console.print(
        "\n{,_max} stands for nothing or _max; names end with _v1 where no version is shown.",
        highlight=False,
    )
    console.print("mia-batch attacks NAME shows its formula, its source and what it needs.")


def show_attack(attack: Attack, console: Console) -> None:
    """Show one attack whole."""
    table = Table(box=None, pad_edge=False, show_header=False)
    reads = ", ".join(f"{view} by the {model} model" for model, view in attack.reads)
    for name, value in (
        ("attack", attack.name),
        ("source", attack.source),
        ("needs", needs(attack)),
        ("reads", reads and f"{reads}; columns {', '.join(attack.columns)}"),
        ("settings", ", ".join(attack.settings).replace("|", " or ")),
        ("null", f"where less than {attack.least:.0%} came back, or {attack.undefined}"),
        ("higher", "more likely a member"),
        ("formula", attack.formula or str(attack.expr)),
    ):
        if value:
            table.add_row(name, plain(value))
    _print_whole(table, console)


def _patterns(names: list[str]) -> Iterator[str]:
    """Write names as lines of few patterns, such as ``samia{,_precision}{,_n2}``."""
    line = ""
    while names:
        sizes = range(len(names), 1, -1)
        finders = (_product, _endings, _words)
        found = ((size, find(names[:size])) for find in finders for size in sizes)
        several = ((size, pattern) for size, pattern in found if pattern)
        size, pattern = next(several, (1, names[0]))
        names = names[size:]
        if line and len(line) + len(pattern) > _WIDTH_OF_NAMES:
            yield line
            line = ""
        line += f", {pattern}" if line else pattern
    yield line


def _product(names: list[str]) -> str:
    """Write names that are each of some stems with each of some endings; "" if they are not."""
    for n in range(2, len(names)):
        stems = names[::n]
        endings = [name.removeprefix(stems[0]) for name in names[:n]]
        if names == [stem + ending for stem in stems for ending in endings]:
            stem = _endings(stems) or _words(stems)
            return stem and stem + _braces(endings)
    return ""


def _endings(names: list[str]) -> str:
    """Write names that begin with the first; "" if they do not."""
    endings = [name.removeprefix(names[0]) for name in names]
    return names[0] + _braces(endings) if commonprefix(names) == names[0] else ""  # noqa: RUF071 - of letters: no paths


def _words(names: list[str]) -> str:
    """Write names that begin with the same words; "" if they do not."""
    common = commonprefix(names).rpartition("_")[0]  # noqa: RUF071 - of letters: no paths
    return common and f"{common}_" + _braces([name[len(common) + 1 :] for name in names])


def _braces(endings: list[str]) -> str:
    return f"{{{','.join(endings)}}}"


def _print_whole(table: Table | str, console: Console) -> None:
    """Print a table of which no column may be lost, however narrow the terminal is."""
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(table)


def needs(attack: Attack) -> str:
    """Name the evidence of an attack, or the access to the model that it takes."""
    if attack.evidence == "scores":
        return "scores"
    if attack.evidence == "samples":
        named = "whole samples" if attack.whole_candidates else "samples"
        return "both kinds" if attack.logprobs else named
    full = {"vocabulary_mean", "vocabulary_variance", "rank", "support_mass"}
    return "full distribution" if full.intersection(attack.columns) else "log-probabilities"


def show_plan(plan: Iterable[tuple[str, str]], settings: Settings, console: Console) -> None:
    """Show resolved settings, less those that are not set, then what is left to do."""
    table = Table(box=None, pad_edge=False, show_header=False)
    resolved = {"config": settings.config} | settings.model_dump(mode="json")
    resolved["out"] = str(settings.place)
    for name, value in resolved.items():
        if value is not None and value != {}:
            table.add_row(
                name, plain(", ".join(map(str, value)) if isinstance(value, list) else value)
            )
    table.add_row()
    for name, value in plan:
        table.add_row(name, plain(value))
    console.print(table, highlight=False)


def show_run(run: Run, console: Console) -> None:
    """Show what may be concluded, then metrics or the highest scores, and where the files are."""
    manifest = run.manifest
    settings = stored_settings(manifest.settings)
    for sentence in conclusions(run, settings, manifest.made["scores"]["attacks"]):
        console.print(plain(sentence), highlight=False)
    metrics = run["metrics"].filter(
        pl.col("metric").is_in(_SHOWN) & (pl.col("slice") == "all") & pl.col("versus").is_null()
    )
    if metrics["value"].count() == 0:
        _print_whole(_top_table(run, max(console.width, _LEAST_WIDTH)), console)
    else:
        short = console.width < _WIDTH_OF_LONG_HEADINGS
        _print_whole(_metrics_table(metrics, "@\n" if short else "@"), console)
        row = metrics.row(0, named=True)
        counts = f"{row['n_members']:,} members, {row['n_nonmembers']:,} non-members"
        if metrics["value"].null_count():
            counts += "; -: the data cannot support the figure, reasons in metrics.parquet"
        console.print(counts, highlight=False)
    lines = [
        f"failed samples: {n:,} targets: {why}" for why, n in manifest.failed["reasons"].items()
    ]
    reasons = count_reasons(run.scan("unscored"))
    lines += [f"unscored: {n:,} targets: {why}" for why, n in reasons.items()]
    if n_short := run["scores"]["n_short"].sum():
        lines.append(f"short: {n_short:,} candidates ended before their reference's length")
    for line in lines:
        console.print(line, highlight=False, markup=False)
    if root := manifest.custody.get("root"):
        console.print(f"root of inputs and tables: {root}", highlight=False)
    where = f"{settings.out}, copied to {run.folder}" if is_url(settings.out) else run.folder
    console.print(f"scores, metrics and evidence: {where}", highlight=False, markup=False)
    if settings.report:
        page = run.folder / REPORT
        console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)


def _metrics_table(metrics: pl.DataFrame, at: str) -> Table:
    """One row per attack, one column per figure; the AUC's interval follows it."""
    table = Table(box=None, pad_edge=False, collapse_padding="\n" in at)
    table.add_column("attack", no_wrap=True)
    figures = metrics.select("metric", "fpr").unique(maintain_order=True).rows()
    names = {"roc_auc": "AUC", "tpr_at_fpr": f"TPR{at}", "tpr_nearest_fpr": "TPR near "}
    for metric, fpr in figures:
        heading = names.get(metric, metric.replace("_", " "))
        heading += "" if fpr is None else f"{100 * fpr:g}%"
        table.add_column(heading, justify="right", no_wrap=True)
        if metric == "roc_auc":
            table.add_column("95 % interval", no_wrap=True)
    for (attack,), rows in metrics.group_by("attack", maintain_order=True):
        cells = [str(attack)]
        for row in rows.iter_rows(named=True):
            cells += [figure(row["value"])] + [limits(row)] * (row["metric"] == "roc_auc")
        table.add_row(*cells)
    return table


def _top_table(run: Run, width: int) -> Table | str:
    """Lay out the highest scores; the text takes what is left of the width."""
    attack = run.manifest.made["scores"]["attacks"][0]
    highest = (
        run.scan("scores")
        .filter(pl.col(attack).is_not_null(), role="target")
        .top_k(_TOP, by=[attack, "target_id"])
        .collect(engine="streaming")
    )
    texts = (
        run.scan("targets")
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
        cells = [plain(value) for value in values]
        for cell in cells:
            cell.truncate(left if heading == "text" else _NAME_SHOWN, overflow="ellipsis")
        left -= max(len(heading), *(cell.cell_len for cell in cells)) + 2
        table.add_column(heading, no_wrap=True)
        columns[heading] = cells
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table
