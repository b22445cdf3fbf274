"""The command ``mia-batch benchmark``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import click
import polars as pl

from mia_batch.cli import options as cli
from mia_batch.cli.help import TopicCommand
from mia_batch.errors import RunFolderError
from mia_batch.extras.benchmark.asking import ask, forecast
from mia_batch.extras.benchmark.orders import TESTS, Design, Test, Units, build_units
from mia_batch.extras.benchmark.results import (
    LEVEL,
    build_row,
    build_table,
    conclusions,
)
from mia_batch.extras.benchmark.sets import (
    Benchmark,
    describe_order,
    find_record,
    read_benchmark,
)
from mia_batch.extras.study import frame
from mia_batch.report.names import as_csv
from mia_batch.settings import EndpointSettings
from mia_batch.tables import write_table, write_text

_SETTINGS = ("revision", "engine", "engine_arg", "dtype", "tensor_parallel_size")
_DESIGN = ("shard_rows", "shuffles", "most_rows", "context_rows", "seed")


@click.command("benchmark", cls=TopicCommand)
@click.argument("name", metavar="NAME|FILE")
@cli.models_option
@cli.option("from", str, "PATH", "Copy of the set of this name.", dest="place")
@cli.default_folder_option(
    "benchmark", "Folder of the table, and of a run for each model and test."
)
@cli.option(
    *("test", click.Choice(TESTS), None),
    (
        "What is tested; repeatable.  [default: rows, and options where the set says"
        " why they could stand in any order; of chat models next-row]"
    ),
    multiple=True,
    dest="tests",
)
@cli.option("row", str, "TEXT", "How a row is written, columns in braces.")
@cli.option("question", str, "TEXT", "How its question alone is written.")
@cli.option("options-column", str, "COLUMN", "Column with a list of the options.")
@cli.option("answer-column", str, "COLUMN", "Column of the right one.")
@cli.option("within", str, "COLUMN", "Exchange only rows with the same value in it.")
@cli.option(
    *("options-order", str, "TEXT"),
    "Why options could stand in any order: without it their test is exploratory.",
)
@cli.option("expect-hash", str, "HASH", "Hash of the published order, of a first run.")
@cli.option("shard-rows", click.IntRange(2, 1000), "N", "Rows of a shard.", default=10)
@cli.option("shuffles", click.IntRange(1, 999), "N", "Other orders of each.", default=9)
@cli.option(
    *("most-rows", click.IntRange(2, 100_000), "N", "Rows that are asked about."),
    default=500,
)
@cli.option(
    *("context-rows", click.IntRange(1, 20), "N"),
    "Rows before the candidates of next-row.",
    default=1,
)
@cli.seed_option
@click.option("--dry-run", is_flag=True, help="Show tokens and cost; ask nothing.")
@cli.settings_options(
    *_SETTINGS,
    EndpointSettings,
    "retry_failed",
    without=("chat_instruction",),
)
def benchmark(
    *, name: str, models: Sequence[str], tests: Sequence[Test], **options: Any
) -> None:
    """Test whether a model has seen a benchmark, by the order that it was published in.

    NAME is gsm8k, mmlu, arc, hellaswag, truthfulqa, humaneval, boolq or winogrande with
    a copy in --from, or the path of a file of your own. The same command again goes on
    where it stopped, and asks nothing twice.
    """
    out = cli.choose_folder(options.pop("out"), name, "benchmark")
    dry_run = options.pop("dry_run")
    rows_set = _read_set(name, options)
    design = Design(**{key: options.pop(key) for key in _DESIGN})
    settings = cli.select_given(options) | {"seed": design.seed}
    is_chat = bool(settings.get("chat"))
    expected = settings.pop("expect_hash", None)
    all_units = _build_all(rows_set, tests, design, is_chat=is_chat)
    for sentence in _describe(rows_set, all_units, expected):
        cli.say(sentence)
    switches = {"dry_run": dry_run, "tokens_per_second": None}
    with frame.open_study(out, "benchmark", switches) as study:
        if not dry_run:
            _agree(out, rows_set, design)
        rows: list[dict[str, Any]] = []
        scores: list[pl.DataFrame] = []
        for model, units in product(dict.fromkeys(models), all_units):
            label = frame.folder_name({"model": model})
            folder = study.folder / f"{label}-{units.test}"
            run_settings = settings | {"model": model}
            if dry_run:
                lines = forecast(units, run_settings, folder, study.observer)
                frame.show(rows=[("run", folder.name), *lines])
                continue
            study.observer.stage(f"{model}: {units.test}")
            table = ask(units, run_settings, folder, study.observer)
            rows.append(build_row(model, rows_set, units, table, design.seed))
            names = [pl.lit(model).alias("model"), pl.lit(units.test).alias("test")]
            scores.append(table.select(*names, pl.all()))
    if not dry_run:
        _publish(out, rows, pl.concat(scores))


def _read_set(name: str, options: dict[str, Any]) -> Benchmark:
    """Read the set that options describe, and take them out."""
    place = options.pop("place")
    options_column = options.pop("options_column")
    record = find_record(
        name,
        place,
        row=options.pop("row"),
        question=options.pop("question"),
        options=(options_column,) if options_column else None,
        answer=options.pop("answer_column"),
        within=options.pop("within"),
        options_order=options.pop("options_order"),
    )
    return read_benchmark(record, place or name, options["expect_hash"])


def _build_all(
    rows_set: Benchmark, tests: Sequence[Test], design: Design, *, is_chat: bool
) -> list[Units]:
    if is_chat and {*tests} - {"next-row"}:
        raise click.UsageError(
            "a chat endpoint gives no log-probabilities of texts; --chat takes --test"
            " next-row alone"
        )
    names: list[Test] = [*dict.fromkeys(tests)]
    if not names:
        names = ["next-row"] if is_chat else ["rows"]
        if not is_chat and rows_set.record.options_order and rows_set.options:
            names.append("options")
    return [build_units(rows_set, test, design) for test in names]


def _describe(
    rows_set: Benchmark, all_units: Sequence[Units], expected: str | None
) -> list[str]:
    record = rows_set.record
    title = record.title or record.name
    sentences = [
        f"{title}: {len(rows_set.texts):,} rows; what is known of their order:"
        f" {record.order}",
        describe_order(rows_set, expected),
    ]
    if record.within is not None:
        sentences.append(
            f"rows are exchanged only where column {record.within!r} is the same"
        )
    for units in all_units:
        n_each = units.table.height / units.n_units
        variants = "questions" if units.test == "next-row" else "texts"
        noun = units.noun if units.n_units == 1 else f"{units.noun}s"
        sentences.append(
            f"{units.test}: {units.n_units:,} {noun}, {n_each:.3g} {variants} about each"
        )
        if n_each**-units.n_units > LEVEL:
            sentences.append(
                f"{units.test}: no p-value up to {LEVEL} is possible with so few, and none"
                " will be given; take more rows, shorter shards or more --shuffles"
            )
        sentences += units.notes
        if units.why_exploratory:
            sentences.append(f"{units.test} is exploratory: {units.why_exploratory}")
        elif units.test == "options":
            sentences.append(
                "that options could stand in any order is your word:"
                f" {record.options_order}"
            )
    return sentences


def _agree(out: Path, rows_set: Benchmark, design: Design) -> None:
    """Record which set is asked about and how; refuse a folder about another one."""
    record = {
        "set": rows_set.record.name,
        "row": rows_set.record.row,
        "question": rows_set.record.question,
        "options": [*rows_set.record.options],
        "within": rows_set.record.within,
        "order_sha256": rows_set.order_sha256,
        "rows_sha256": rows_set.rows_sha256,
        **asdict(design),
    }
    path = out / "set.json"
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    if path.exists():
        try:
            present = json.loads(path.read_text("utf-8"))
        except ValueError:
            present = {}
        if not isinstance(present, dict):
            present = {}
        differing = [key for key in record if present.get(key) != record[key]]
        if differing:
            raise RunFolderError(
                f"{out} holds tests with another {differing[0]}; give another --out"
            )
    write_text(path, text)


def _publish(out: Path, rows: list[dict[str, Any]], scores: pl.DataFrame) -> None:
    """Write the tables, those of earlier commands included, and print a line for each test."""
    path, units_path = out / "benchmark.parquet", out / "units.parquet"
    if path.exists() and units_path.exists():
        earlier = pl.read_parquet(path).with_columns(pl.col("test").cast(pl.String))
        is_new = {(row["model"], row["test"]) for row in rows}
        earlier_rows = [
            row
            for row in earlier.iter_rows(named=True)
            if (row["model"], row["test"]) not in is_new
        ]
        rows = earlier_rows + rows
        keys = scores.select("model", "test").unique()
        earlier_scores = pl.read_parquet(units_path).join(
            keys, on=["model", "test"], how="anti"
        )
        scores = pl.concat([earlier_scores, scores])
    table = build_table(rows)
    write_table(table, path)
    write_text(out / "benchmark.csv", as_csv(table))
    write_table(scores, units_path)
    numbers = ("units", "first in", "difference", "p", "p of all")
    lines = [_format_row(row) for row in table.iter_rows(named=True)]
    frame.show("model", "test", "verdict", *numbers, right=numbers, rows=lines)
    cli.say(*conclusions(table))
    cli.say(f"the table is in {out / 'benchmark.csv'}, scores in units.parquet")


def _format_row(row: dict[str, Any]) -> list[str]:
    return [
        row["model"],
        row["test"],
        row["verdict"],
        f"{row['n_units']:,}",
        "-" if row["n_first"] is None else f"{row['n_first']:,}",
        cli.figure(row["difference"]),
        _format_p(row["p_value"]),
        _format_p(row["p_adjusted"]),
    ]


def _format_p(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
