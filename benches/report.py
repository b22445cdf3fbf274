"""Time, peak memory and size of a report of many books, from tables that are made up.

A run's folder is written with as many books and windows as asked for, all windows with
samples, scores and verdicts; its report is rendered in a process of its own.

    python -m benches.report [BOOKS WINDOWS]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from benches.memory import texts, write
from benches.results import append_results, machine

from mia_batch.extras.speed.ways import read_peak_mb
from mia_batch.schemas import (
    Curves,
    Findings,
    Metrics,
    Rollup,
    Samples,
    Scores,
    Targets,
    Unscored,
    Verdicts,
)

if TYPE_CHECKING:
    import dataframely as dy

BOOKS, WINDOWS = 1_000, 1_000_000
WORDS = 60
STRETCHES = 60
ATTACK = "samia_matched_v1"
LIMIT_S, LIMIT_MB, LIMIT_BYTES = 60, 1536, 5_000_000

RNG = np.random.default_rng(0)


def filled(schema: type[dy.Schema], **columns: Any) -> pl.DataFrame:
    """Rows with these columns, and null in those that are left out."""
    types = schema.create_empty().schema
    frame = pl.DataFrame(columns)
    return frame.select(
        (pl.col(name) if name in columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in types.items()
    )


def write_windows(folder: Path, books: int, windows: int) -> None:
    """Write targets, scores, verdicts and samples of all windows."""
    each = windows // books
    (folder / "samples").mkdir(parents=True)

    def rows(start: int, end: int) -> dict[str, Any]:
        number = pl.Series(range(start, end))
        return {
            "target_id": number.map_elements(lambda n: f"{n:032x}", pl.String),
            "document_id": (number // each).cast(pl.String),
            "window_index": number % each,
            "role": ["target"] * len(number),
        }

    def targets(start: int, end: int) -> pl.DataFrame:
        prefix, reference = texts(end - start, WORDS), texts(end - start, WORDS)
        of = rows(start, end) | {"prefix": prefix, "reference": reference}
        starts = of["window_index"] * WORDS * 10
        target = prefix + " " + reference
        return filled(Targets, **of, n_windows=each, start=starts, target=target)

    def scores(start: int, end: int) -> pl.DataFrame:
        score = pl.Series(ATTACK, RNG.random(end - start))
        return filled(Scores, **rows(start, end), n_samples=1, n_short=0).with_columns(
            score
        )

    def verdicts(start: int, end: int) -> pl.DataFrame:
        key = rows(start, end)["target_id"]
        of = {
            "attack": ATTACK,
            "level": "target",
            "versus": "non_members",
            "planned": True,
        }
        return filled(
            Verdicts, key=key, **of, p_value=RNG.random(end - start), n_null=windows
        )

    def samples(start: int, end: int) -> pl.DataFrame:
        of = {
            "model": "target",
            "view": "continuation",
            "view_index": 0,
            "sample_index": 0,
        }
        key = rows(start, end)["target_id"]
        return filled(Samples, target_id=key, **of, candidate=texts(end - start, WORDS))

    for name, part in {
        "targets": targets,
        "scores": scores,
        "verdicts": verdicts,
    }.items():
        write(folder / f"{name}.parquet", windows, part)
    write(
        folder / "samples" / "block-0.target-continuation-0.parquet", windows, samples
    )


def write_summaries(folder: Path, books: int, windows: int) -> None:
    """Write roll-up, strips and the small tables."""
    each = windows // books
    numbers = pl.Series(range(books))
    shares = {
        name: RNG.random(books)
        for name in (
            "mean",
            "mean_low",
            "mean_high",
            "p_value",
            "q_value",
            "contamination",
        )
    }
    rollup = filled(
        Rollup,
        key=numbers.cast(pl.String),
        level="document",
        attack=ATTACK,
        n_windows=each,
        n_asked=each,
        n_scored=each,
        longest_words=RNG.integers(3, 200, books),
        longest_target_id=(numbers * each).map_elements(
            lambda n: f"{n:032x}", pl.String
        ),
        longest_sample_index=0,
        share_verbatim=RNG.random(books),
        verdict="known_better",
        **shares,
    ).with_columns(title=texts(books, 5), author=texts(books, 2), isbn=texts(books, 1))
    strips = filled(
        Curves,
        curve="strip",
        attack=ATTACK,
        subject=np.repeat(numbers.cast(pl.String).to_numpy(), STRETCHES),
        x=np.tile(np.arange(STRETCHES) / STRETCHES, books),
        y=RNG.random(books * STRETCHES),
        n=each // STRETCHES,
    )
    axis = np.linspace(0.001, 1, 200)
    roc = filled(Curves, curve="roc", attack=ATTACK, x=axis, y=axis**0.5, n=windows)
    roles = {"n_unknown": windows, "n_nulls": windows, "n_canaries": 0}
    facts: list[Any] = [("roles", name, value, None) for name, value in roles.items()]
    facts += [
        ("duplicates", "n_copies", 0, "few"),
        ("duplicates", "n_texts", windows, None),
    ]
    names = ("check", "statistic", "value", "verdict")
    findings: dict[str, Any] = dict(
        zip(names, map(list, zip(*facts, strict=True)), strict=True)
    )
    findings["subject"] = [
        None if check == "roles" else "texts" for check in findings["check"]
    ]
    for name, frame in {
        "rollup": rollup,
        "curves": pl.concat([roc, strips]),
        "findings": filled(Findings, **findings),
        "metrics": Metrics.create_empty(),
        "unscored": Unscored.create_empty(),
    }.items():
        frame.write_parquet(folder / f"{name}.parquet")


def write_manifest(folder: Path) -> None:
    made = {
        "scores": {"attacks": [ATTACK], "samples": {"continuation": 1}},
        "verdicts": {},
    }
    settings: dict[str, Any] = {
        "input": "books",
        "model": "model",
        "non_members_known": "made up",
    }
    settings |= {"non_members": "others", "attacks": [ATTACK], "level": "group"}
    manifest = {
        "format": 3,
        "evidence": {"seed": 0},
        "settings": settings,
        "made": made,
        "custody": {},
    }
    (folder / "run.json").write_text(json.dumps(manifest))


def render(folder: Path) -> None:
    """Render in this process, and print what it took."""
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.results import write_report

    began = time.perf_counter()
    size = write_report(Run(folder)).stat().st_size
    seconds = round(time.perf_counter() - began, 1)
    print(
        json.dumps(
            {"seconds": seconds, "peak_mb": round(read_peak_mb()), "bytes": size}
        )
    )


def main(books: int, windows: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_windows(folder, books, windows)
        write_summaries(folder, books, windows)
        write_manifest(folder)
        command = [sys.executable, "-m", "benches.report", "--in", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{books:,} books, {windows:,} windows: {found['seconds']} s (limit {LIMIT_S}),"
        f" peak {found['peak_mb']:,} MB (limit {LIMIT_MB:,}), {found['bytes']:,} bytes"
        f" (limit {LIMIT_BYTES:,}); {machine()}"
    )
    append_results("report", {"books": books, "windows": windows} | found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in"]:
        render(Path(sys.argv[2]))
    else:
        main(*(map(int, sys.argv[1:3]) if len(sys.argv) == 3 else (BOOKS, WINDOWS)))
