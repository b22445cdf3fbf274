"""One document of a run, as `mia-batch show RUN DOCUMENT` prints it."""

import shlex
from collections.abc import Mapping
from typing import Any

import polars as pl
from rich.console import Console

from mia_batch.cli.options import build_table, figure, plain
from mia_batch.cli.show import (
    SHOWN,
    find_primary_attack,
    find_stretches,
    mark_run,
    rank_windows,
)
from mia_batch.pipeline import Run, results
from mia_batch.pipeline.run_names import fill_names
from mia_batch.report.answer import shade_strip
from mia_batch.report.masking import Masking


def show_book(
    run: Run, windows: pl.DataFrame, console: Console, masking: Masking
) -> None:
    """Print the answer about a document, the longest stretch that came out, its windows."""
    masking = fill_names(run, masking)
    key = windows["document_id"][0]
    name = masking.write_names(windows)["document_id"][0]
    console.print(plain(name), style="bold")
    for row in results.list_books(run).filter(key=key).iter_rows(named=True):
        _print_figures(row, console)
    for stretch in find_stretches(run).filter(document_id=key).to_dicts():
        _print_stretch(stretch, console, masking)
    ranked = rank_windows(run, windows)
    table = build_table("window", "words", "score", right=("window", "words", "score"))
    for row in ranked.head(SHOWN).iter_rows(named=True):
        words = row["longest_words"]
        cells = (row["window_index"] + 1, "-" if words is None else f"{words:,}")
        table.add_row(*map(plain, (*cells, figure(row["score"]))))
    console.print(
        f"\nits strongest windows by {find_primary_attack(run)}", style="bold"
    )
    console.print(table)
    n_hidden = ranked.height - SHOWN
    if n_hidden > 0:
        console.print(f"{n_hidden:,} more in scores.parquet")
    if ranked.height:
        example = f"{name} window {ranked['window_index'][0] + 1}"
        command = shlex.join(["mia-batch", "show", str(run.folder), example])
        hint = f"{command} shows one next to the true text."
        console.print(plain(hint), soft_wrap=True)


def _print_figures(row: Mapping[str, Any], console: Console) -> None:
    facts = {
        "answer": row["answer"] or "comparison text",
        "first to last page": shade_strip(row["strip"]),
        "windows asked": f"{row['n_asked']:,} of {row['n_windows']:,}",
        "longest stretch": _write_words(row["longest_words"]),
        "p": _write_figure(row["p_value"]),
        "q": _write_figure(row["q_value"]),
        "why no p-value": row["reason"],
    }
    rows = [(name, fact) for name, fact in facts.items() if fact]
    console.print(build_table(rows=rows))


def _write_words(n: int | None) -> str:
    return "" if n is None else f"{n:,} words"


def _write_figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _print_stretch(
    stretch: Mapping[str, Any], console: Console, masking: Masking
) -> None:
    place = f"{stretch['start']:,} characters into the document"
    if stretch["words_before"] is not None:
        place = f"after word {stretch['words_before']:,}, {place}"
    console.print()
    console.print(
        plain(
            f"{stretch['n_left']:,} words in a row came out; the stretch starts {place}."
        ),
        soft_wrap=True,
    )
    if stretch["passage"] is None:
        console.print("This run did not store its words.")
        return
    columns = ("what stands in the text", "what the model wrote")
    table = build_table(*columns, expand=True)
    for column in table.columns:
        column.ratio = 1
    passage = " ".join(stretch["passage"].split())
    sides = (" ".join(stretch[side].split()) for side in ("text", "said"))
    table.add_row(*(mark_run(side, passage, masking) for side in sides))
    console.print(table)
