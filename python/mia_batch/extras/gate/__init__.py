"""The command ``mia-batch gate``: whether a model may go out, by the numbers of a finished run.

A pass never says "safe": it says that nothing was found, and what could have been.
`audits`, `benchmark`, `privacy` and `secrets` judge one kind of folder each,
`conditions` has what they share.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import polars as pl

from mia_batch.cli import options as cli
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.gate.audits import open_audit
from mia_batch.extras.gate.benchmark import judge_benchmark
from mia_batch.extras.gate.conditions import (
    INTERVAL,
    Judges,
    Outcome,
    leave_finite,
)
from mia_batch.extras.gate.privacy import judge_privacy, scan_metrics
from mia_batch.extras.gate.secrets import judge_secrets
from mia_batch.schemas import BenchmarkTests, Secrets
from mia_batch.tables import digest, scan

__all__ = ["gate", "judge_run"]

EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 3, "withheld": 2}
_TABLES: dict[str, tuple[str, Callable[[Path], pl.LazyFrame]]] = {
    "secrets": ("secrets.parquet", partial(scan, schema=Secrets)),
    "benchmark": ("benchmark.parquet", partial(scan, schema=BenchmarkTests)),
    "privacy": ("metrics.parquet", scan_metrics),
}
"""Of each kind of folder that is no run: its table, and what reads it."""


def judge_run(
    folder: Path, limits: Mapping[str, float], variant: str | None = None
) -> dict[str, Any]:
    """Judge a finished run by all conditions.

    Parameters
    ----------
    folder
        The folder of an audit, of `mia-batch secrets`, `benchmark` or `privacy`, or of a
        training with canaries.
    limits
        Threshold of each condition, by its name.
    variant
        Which of several variants of a privacy run goes out.

    Returns
    -------
    dict[str, Any]
        What the command prints as JSON.
    """
    kind, judges, root = _open(folder, variant)
    for name in limits:
        if name not in judges:
            raise SettingsError(
                f"--{name} asks nothing of {folder}, a folder of {kind}; give"
                f" {' or '.join(f'--{known}' for known in judges)}"
            )
    conditions = [judges[name](limit) for name, limit in limits.items()]
    outcomes = [condition.outcome for condition in conditions]
    verdict: Outcome = "pass"
    if "fail" in outcomes:
        verdict = "fail"
    elif "withheld" in outcomes:
        verdict = "withheld"
    return {
        "version": 1,
        "verdict": verdict,
        "run": str(folder),
        "kind": kind,
        **root,
        "conditions": [asdict(condition) for condition in conditions],
        "sentences": [condition.describe() for condition in conditions],
    }


def _open(
    folder: Path, variant: str | None
) -> tuple[str, Judges, dict[str, str | None]]:
    """Open a folder: its kind, what can be asked of it, and the hash that it stands for."""
    if (folder / "run.json").exists():
        judges, root = open_audit(folder)
        return "audit", judges, {"root": root}
    for kind, (name, _) in _TABLES.items():
        path = folder / name
        if path.exists():
            judges = _open_table(kind, path, variant)
            return kind, judges, {"root": None, "table_sha256": digest(path)}
    raise CorpusError(
        f"{folder} is no finished run: it has neither run.json nor"
        f" {' nor '.join(name for name, _ in _TABLES.values())}; give the folder that a"
        " command had as --out"
    )


def _open_table(kind: str, path: Path, variant: str | None) -> Judges:
    """Open a table, check its columns, and leave out what is no number."""
    _, scan_table = _TABLES[kind]
    try:
        table = leave_finite(scan_table(path).collect())
    except (OSError, pl.exceptions.PolarsError) as error:
        raise CorpusError(f"{path} cannot be read: {error}") from error
    if table.is_empty():
        raise CorpusError(f"{path} has no rows; run its command again")
    judges: dict[str, Judges] = {
        "secrets": {"secrets-below": lambda limit: judge_secrets(table, limit)},
        "benchmark": {"p-above": lambda limit: judge_benchmark(table, limit)},
        "privacy": {"auc-below": lambda limit: judge_privacy(table, limit, variant)},
    }
    return judges[kind]


def _parse_count(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> int | None:
    if value is None or value == "none":
        return None if value is None else 0
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is no count; give none, or how many may")
    return int(value)


@click.command("gate")
@click.argument("run", type=cli.PATH)
@cli.option(
    *("auc-below", cli.NumberRange(0, 1), "X"),
    f"Every attack's AUC: {INTERVAL} is below X.",
)
@cli.option(
    *("words-below", click.IntRange(1, None), "N"),
    "The longest passage that came out word for word is shorter.",
)
@cli.option(
    *("stands-out", str, "none|N"),
    "At most so many texts or books are named as standing out.",
    callback=_parse_count,
)
@cli.option(
    *("secrets-below", click.IntRange(1, None), "N"),
    "Fewer secrets are memorised or given back.",
)
@cli.option(
    *("p-above", cli.NumberRange(0, 1), "X"),
    "The p-values of a benchmark's tests, of canaries or of all texts together.",
)
@click.option("--variant", metavar="NAME", help="Which variant of a privacy run it is.")
def gate(*, run: Path, variant: str | None, **limits: float | None) -> int:
    """Say by the numbers of a finished run whether a model may go out.

    Exit 0 if all conditions hold, 3 if one does not, 2 if a number is withheld or absent:
    that is no pass. One line of JSON on standard output has the numbers, their intervals
    and the run's root; sentences stand on standard error. A pass says that nothing was
    found, and what could have been.
    """
    names = {name: name.replace("_", "-") for name in limits}
    conditions = {
        names[name]: limit for name, limit in limits.items() if limit is not None
    }
    if not conditions:
        raise click.UsageError(
            f"give a condition: {', '.join(f'--{name}' for name in names.values())}"
        )
    judged = judge_run(run, conditions, variant)
    click.echo(json.dumps(judged, ensure_ascii=True, allow_nan=False))
    console = cli.open_console(stderr=True)
    sentences = [*judged["sentences"], _conclude(judged["verdict"])]
    for sentence in sentences:
        console.print(cli.plain(sentence), soft_wrap=True)
    return EXIT_CODES[judged["verdict"]]


def _conclude(verdict: Outcome) -> str:
    if verdict == "pass":
        return (
            "pass: not found. That does not show that there is nothing; see the power of"
            " each condition"
        )
    if verdict == "fail":
        return "fail: a condition does not hold"
    return "no pass: a number is withheld or absent"
