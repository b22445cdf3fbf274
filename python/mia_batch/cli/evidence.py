"""What a run rests on and what a model answered, for people: files, targets, comparisons."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.table import Table

from mia_batch.cli.options import figure, limits, plain
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.kernels import pair_features

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console
    from rich.text import Text

    from mia_batch.pipeline import Run
    from mia_batch.pipeline.custody import Checked


_MOST_SHOWN = 4000  # characters of one text
_ROUND_A_DIFFERENCE = 60  # characters
_MARKS = ("⟦", "⟧")
_LINE_END = re.compile("\r?\n")


def show_checked(checked: Checked, console: Console) -> None:
    """Say what is wrong with a run's files, a line for each, or that all is well."""
    for name, fault in checked.faults:
        console.print(plain(f"{fault}: {name}"), soft_wrap=True)
    for name in checked.not_found:
        console.print(plain(f"not found, not checked: {name}"), soft_wrap=True)
    if checked.not_found:
        console.print("say where these inputs lie by now with --input PATH")
    if not checked.faults:
        console.print(f"{checked.n_files:,} files are as they were", highlight=False)
        console.print(f"root of inputs and tables: {checked.root}", highlight=False)


def show_agreement(drawn: pl.DataFrame, console: Console) -> bool:
    """Say how many samples came out the same again; show the first that did not."""
    differing = drawn.filter(pl.col("candidate").ne_missing(pl.col("again")))
    n_same = drawn.height - differing.height
    console.print(f"drawn again: {n_same:,} of {drawn.height:,} samples agree", highlight=False)
    if differing.is_empty():
        return True
    row = differing.row(0, named=True)
    console.print(plain(f"first difference: target {row['target_id']}, {_name(row)}"))
    for name, column in (("stored", "candidate"), ("drawn again", "again")):
        console.print(plain(f"  {name:11}  {_excerpt(row, column)}"), soft_wrap=True)
    console.print("A CPU in float32 draws the same to the bit, a GPU only the same on average.")
    return False


def _name(row: dict[str, Any]) -> str:
    return f"{row['view']} {row['view_index']}, sample {row['sample_index']}"


def _excerpt(row: dict[str, Any], column: str) -> str:
    """Quote a text around the first character in which both differ."""
    if row[column] is None:
        return "none"
    one, other = row["candidate"] or "", row["again"] or ""
    pairs = enumerate(zip(one, other, strict=False))
    first = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, first - _ROUND_A_DIFFERENCE)
    return f"from character {start:,}: {row[column][start : first + _ROUND_A_DIFFERENCE]!r}"


def find_target(run: Run, beginning: str) -> pl.DataFrame:
    """Find the one target whose identifier begins so."""
    if "scores" not in run.manifest.made:
        raise RunFolderError(
            f"{run.folder} has no scores yet; give the audit's command again, which goes on"
        )
    begins = pl.col("target_id").str.starts_with(beginning.lower())
    found = run.scan("targets").filter(begins).head(2).collect(engine="streaming")
    if found.height == 1:
        return found
    if found.is_empty():
        msg = f"{run.folder} has no target whose target_id begins with {beginning!r}"
    else:
        both = " and ".join(found["target_id"])
        msg = f"several targets begin with {beginning!r}, such as {both}; give more of it"
    raise SettingsError(msg)


def show_target(run: Run, target: pl.DataFrame, console: Console) -> None:
    """Show what a target is, and its scores."""
    row = target.row(0, named=True)
    end = None if row["start"] is None else row["start"] + len(row["target"])
    about = {
        "target": row["target_id"],
        "document": row["document_id"],
        "group": row["group"],
        "window": f"{row['window_index'] + 1:,} of {row['n_windows']:,}",
        "characters": None if end is None else f"{row['start']:,} to {end:,} of the document",
        "role": row["role"],
        "member": row["member"],
        "not sampled": row["reason"],
    }
    own = pl.col("target_id") == row["target_id"]
    attacks = run.manifest.made["scores"]["attacks"]
    scores = run.scan("scores").filter(own).select(attacks).collect(engine="streaming")
    about |= scores.row(0, named=True) if scores.height else {}
    unscored = run.scan("unscored").filter(own).collect(engine="streaming")
    reasons = unscored.select("attack", pl.lit("no score: ") + pl.col("reason")).iter_rows()
    _print_pairs(about | dict(reasons), console)


def _print_pairs(pairs: dict[str, object], console: Console) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in pairs.items():
        if value is not None:
            table.add_row(plain(name), plain(f"{value:.4g}" if type(value) is float else value))
    console.print(table)


def show_answers(answers: pl.DataFrame, target: pl.DataFrame, run: Run, console: Console) -> None:
    """Show what the models answered about a target, view by view."""
    words = run.manifest.evidence["word_rule"]
    pairs = pair_features("candidate", "text", words=words, groups=["blocks", "leading"])
    recorded = run.manifest.evidence["engine"] == "replay"
    seed = pl.format("seed {}", "seed").fill_null("recorded" if recorded else "most likely")
    compared = answers.with_columns(pairs, how=seed).unnest("features")
    for (model, view), rows in compared.group_by("model", "view", maintain_order=True):
        console.print(f"\n{view}, {model} model", style="bold", highlight=False)
        if view == "probe":
            _show_probes(rows, target.row(0, named=True), console)
        else:
            _show_continuations(rows, console)
    if answers.is_empty():
        console.print("\nno samples were drawn of it")


def _show_probes(rows: pl.DataFrame, target: dict[str, Any], console: Console) -> None:
    """One line a point, in the order of the text."""
    headings = ("character", "true word", "model's word", "hit", "sample", "how")
    table = Table(*headings, box=None, pad_edge=False)
    for row in rows.sort("cut", "sample_index").iter_rows(named=True):
        before = target["target"].encode()[: row["cut"] or 0].decode()
        answer = row["reason"] if row["candidate"] is None else _beginning(row["candidate"])
        cells = (
            f"{target['start'] + len(before):,}",
            _beginning(row["text"] or ""),
            answer,
            "yes" if row["leading_words"] else "no",
            row["sample_index"],
            row["how"],
        )
        table.add_row(*map(plain, cells))
    console.print(table)


def _show_continuations(rows: pl.DataFrame, console: Console) -> None:
    """Each answer next to the true continuation; what both share is marked."""
    prefix = ""
    for row in rows.iter_rows(named=True):
        if row["context"] != prefix:
            prefix = row["context"]
            _print_pairs({"prefix": _end(prefix or "")}, console)
        if row["candidate"] is None:
            console.print(plain(f"{_name(row)}, {row['how']}: {row['reason']}"))
            continue
        start, length = row["longest_block_chars_start"], row["longest_block_chars"]
        run = row["text"][start : start + length] if row["longest_block_words"] else ""
        shared = f"{row['longest_block_words']:,} words, {len(run):,} characters"
        found = f"longest shared run: {shared}" if run else "no word is shared"
        console.print(plain(f"{_name(row)}, {row['how']}; {found}"))
        table = Table(box=None, pad_edge=False, expand=True)
        for heading in ("true continuation", "model"):
            table.add_column(heading, ratio=1)
        table.add_row(_marked(row["text"], run), _marked(row["candidate"], run))
        console.print(table)


def _marked(text: str, run: str) -> Text:
    """Mark the shared run, with signs that stay where there are no colours."""
    if not run:
        return plain(_beginning(text))
    before, run, after = text.partition(run)
    marked = plain(_MARKS[0] + _beginning(run) + _MARKS[1])
    marked.stylize("bold")
    return plain(_end(before)) + marked + plain(_beginning(after))


def _beginning(text: str) -> str:
    more = len(text) - _MOST_SHOWN
    shown = _LINE_END.sub("↵", text[:_MOST_SHOWN])
    return f"{shown}… ({more:,} more characters)" if more > 0 else shown


def _end(text: str) -> str:
    more = len(text) - _MOST_SHOWN
    shown = _LINE_END.sub("↵", text[-_MOST_SHOWN:])
    return f"({more:,} characters before) …{shown}" if more > 0 else shown


_MOST_DOCUMENTS = 10  # shown, the smallest p-values first
_FIGURES = {
    "roc_auc": "AUC",
    "roc_auc_difference": "difference of AUC",
    "mean_difference": "mean difference of scores",
    "removed_share": "share removed",
}


def show_comparisons(table: pl.DataFrame, console: Console) -> None:
    """Print the figures of sets, then the documents and groups that differ most."""
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


def _table(rows: Iterable[dict[str, Any]], about: str, column: str) -> Table:
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
    yield from (figure(row["value"]), limits(row))
    for name in ("p_value", "adjusted_p"):
        yield "-" if row[name] is None else f"{row[name]:.2g}"
    yield f"{row['n_targets']:,}"
