"""Peak memory and time of whole audits of recorded continuations, from Parquet to scores.

Each size runs in a process of its own. Texts are random words: only their amount
matters here. All texts are labelled; what the metrics of so many labels add is shown
apart.

    python -m benches.memory [--probes] [NUMBER OF TARGETS ...]

With ``--probes`` the recording has one word at each of 16 points of a text, which
attacks weigh.
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
from benches.results import append_results, machine
from polars.io.plugins import register_io_source

from mia_batch.extras.speed.ways import read_peak_mb
from mia_batch.observer import Observer
from mia_batch.settings import nested

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (10_000, 100_000, 1_000_000)
SAMPLES = 10
POINTS, EVERY = 16, 3
WORDS_OF_A_TEXT = 60
ROWS_AT_ONCE = 20_000
LIMIT_MB = 1024
GROWTH_LIMIT = 0.2

RNG = np.random.default_rng(0)
VOCABULARY = pl.Series([f"{RNG.integers(36**5):x}"[: 2 + n % 7] for n in range(5000)])


class Clock(Observer):
    """Notes the time of each stage and the peak memory by its end, where the next begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, int] = {}
        self._stage, self._began = "corpus", time.perf_counter()

    def _begin(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[self._stage] = (
            self.seconds.get(self._stage, 0.0) + now - self._began
        )
        self.peaks[self._stage] = round(read_peak_mb())
        self._stage, self._began = name, now

    def stage(self, sentence: str) -> None:
        if sentence.endswith("documents"):
            self._begin("targets")
        elif sentence.startswith("recorded"):
            self._begin("recording")
        elif sentence.startswith("counting"):
            self._begin("rarity")
        elif sentence.startswith("making the features"):
            self._begin("features")
        elif sentence.startswith("scoring"):
            self._begin("scores")
        elif sentence.startswith("measuring"):
            self._begin("metrics")

    def working(self, what: str, **_: object) -> None:
        del what
        self._begin("samples and features")

    def ended(self) -> None:
        self._begin("")


def texts(n: int, n_words: int) -> pl.Series:
    words = VOCABULARY[RNG.integers(len(VOCABULARY), size=n * n_words)]
    return words.reshape((n, n_words)).cast(pl.List(pl.String)).list.join(" ")


def write_corpus(path: Path, n: int) -> None:
    def part(start: int, end: int) -> pl.DataFrame:
        numbers = pl.int_range(start, end, eager=True)
        return pl.DataFrame(
            {
                "document_id": numbers.cast(pl.String),
                "text": texts(end - start, WORDS_OF_A_TEXT),
                "member": numbers % 2 == 0,
            }
        )

    write(path, n, part)


def write_recording(path: Path, n: int) -> None:
    """All samples in an order that jumps from target to target."""
    total = n * SAMPLES
    step = 7_368_787  # a prime: every row comes once

    def part(start: int, end: int) -> pl.DataFrame:
        place = pl.Series(np.arange(start, end) * step % total)
        return pl.DataFrame(
            {
                "document_id": (place // SAMPLES).cast(pl.String),
                "sample_index": place % SAMPLES,
                "candidate": texts(end - start, WORDS_OF_A_TEXT // 2),
                "finish_reason": ["length"] * (end - start),
            }
        )

    write(path, total, part)


def write_probes(path: Path, n: int) -> None:
    """One word at each point, in an order that jumps from target to target."""
    total = n * POINTS
    step = 7_368_787

    def part(start: int, end: int) -> pl.DataFrame:
        place = pl.Series(np.arange(start, end) * step % total)
        return pl.DataFrame(
            {
                "document_id": (place // POINTS).cast(pl.String),
                "point": place % POINTS,
                "sample_index": [0] * (end - start),
                "candidate": texts(end - start, 2),
                "finish_reason": ["length"] * (end - start),
            }
        )

    write(path, total, part)


def write(path: Path, n: int, part: Callable[[int, int], pl.DataFrame]) -> None:
    parts = (part(at, min(at + ROWS_AT_ONCE, n)) for at in range(0, n, ROWS_AT_ONCE))
    first = part(0, 1)
    source = register_io_source(lambda *_: parts, schema=first.schema)
    source.sink_parquet(path, row_group_size=ROWS_AT_ONCE)


def run(folder: Path, *, probes: bool) -> None:
    """Audit in this process, and print what it took."""
    import mia_batch

    clock = Clock()
    how: dict[str, Any] = {"samples": SAMPLES}
    if probes:
        how = {"probes": POINTS, "probe_every": EVERY}
    mia_batch.audit(
        **nested(
            dict(
                input=str(folder / "corpus.parquet"),
                engine="replay",
                samples_from=str(folder / "recording.parquet"),
                **how,
                out=folder / "run",
                observer=clock,
            )
        )
    )
    clock.ended()
    print(json.dumps({"peaks_mb": clock.peaks, "seconds": clock.seconds}))


def measure(n: int, *, probes: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "corpus.parquet", n)
        (write_probes if probes else write_recording)(folder / "recording.parquet", n)
        command = [sys.executable, "-m", "benches.memory", "--in", str(folder)]
        command += ["--probes"] * probes
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = {stage: round(value, 1) for stage, value in found["seconds"].items()}
    peaks = found["peaks_mb"]
    return {
        "targets": n,
        "peak_mb": max(peaks.values()),
        "peaks_mb": peaks,
        "seconds": seconds,
    }


def main(sizes: list[int], *, probes: bool) -> None:
    rows = []
    print(f"{'targets':>9} {'peak MB':>8}  seconds")
    for n in sizes:
        row = measure(n, probes=probes)
        rows.append(row)
        stages = ", ".join(
            f"{name} {value} (by then {row['peaks_mb'][name]} MB)"
            for name, value in row["seconds"].items()
        )
        print(f"{n:>9,} {row['peak_mb']:>8,}  {stages}", flush=True)
    for what, peaks in {
        "scores": [row["peaks_mb"]["scores"] for row in rows],
        "metrics": [row["peak_mb"] for row in rows],
    }.items():
        print(
            f"to {what}: growth {peaks[-1] / peaks[0] - 1:+.0%} (limit"
            f" {GROWTH_LIMIT:+.0%}), peak {peaks[-1]:,} MB (limit {LIMIT_MB:,})"
        )
    print(machine())
    asked: dict[str, Any] = {"points": POINTS} if probes else {"samples": SAMPLES}
    append_results("memory", asked | {"words": WORDS_OF_A_TEXT, "runs": rows})


if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if each != "--probes"]
    with_probes = len(given) < len(sys.argv) - 1
    if given[:1] == ["--in"]:
        run(Path(given[1]), probes=with_probes)
    else:
        main([int(size) for size in given] or list(SIZES), probes=with_probes)
