"""Samples in Parquet to features in Parquet by the command line, beside the kernels alone.

Pairs are stretches of real books of 64 words, ten candidates a reference. They are
recorded, and audited once; then the features are moved away and ``mia-batch`` makes
them again, in turns with the kernels on pairs that lie in memory, both on all cores.
Where other programs want the cores, too, more threads get more of them: there only the
times of the processor can be compared.

    python -m benches.features [--targets N] [--rounds N]     (1,000,000: 10,000,000 pairs)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import polars as pl
from benches.memory import write
from benches.pairs import DATA
from benches.results import append_results, commit, machine, versions

from mia_batch import tables
from mia_batch.cli import main as mia_batch
from mia_batch.extras.speed.ways import read_peak_mb
from mia_batch.kernels import pair_features
from mia_batch.pipeline.stages.features import FeaturesStage
from mia_batch.schemas import Samples, Targets

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = 10
WORDS = 64
PAIRS_IN_MEMORY = 200_000
WANTED = 0.85
LIMIT_MB = 1024


def write_input(folder: Path, n_targets: int) -> None:
    """Write a corpus and its recording; every row depends on its number alone."""
    books = sorted((DATA / "books").glob("*.txt"))
    words = pl.Series(
        [word for book in books for word in book.read_text("utf-8").split()]
    )

    def texts(seed: int, start: int, end: int, n_words: int) -> pl.Series:
        draw = np.random.default_rng([seed, start])
        places = draw.integers(len(words) - n_words, size=(end - start, 1)) + np.arange(
            n_words
        )
        found = words[places.ravel()].reshape(places.shape)
        return found.cast(pl.List(pl.String)).list.join(" ")

    def document(start: int, end: int) -> pl.DataFrame:
        names = pl.int_range(start, end, eager=True).cast(pl.String)
        text = texts(0, start, end, 2 * WORDS)
        return pl.DataFrame({"document_id": names, "text": text})

    def sample(start: int, end: int) -> pl.DataFrame:
        places = pl.int_range(start, end, eager=True)
        return pl.DataFrame(
            {
                "document_id": (places // SAMPLES).cast(pl.String),
                "sample_index": places % SAMPLES,
                "candidate": texts(1, start, end, WORDS),
            }
        )

    write(folder / "corpus.parquet", n_targets, document)
    write(folder / "recording.parquet", n_targets * SAMPLES, sample)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    began, used = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - used


def audit(folder: Path) -> dict[str, Any]:
    """Run the command; return its peak memory and how long its features took."""
    command = [sys.executable, "-m", "benches.features", "--in", str(folder)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_command(folder: Path) -> None:
    """Be the command, and print what `audit` returns."""
    options = {
        "--input": folder / "corpus.parquet",
        "--samples-from": folder / "recording.parquet",
        "--attacks": "samia_matched_v1,samia_matched_zlib_v1",
        "--out": folder / "run",
    }
    sys.argv = [
        "mia-batch",
        *(str(word) for option in options.items() for word in option),
    ]
    run = FeaturesStage.run
    took = []

    def timed_run(stage: FeaturesStage) -> None:
        took.append(timed(lambda: run(stage)))

    # Only inside the command can the processor time of this one stage be told; the
    # stage is real.
    with patch.object(FeaturesStage, "run", timed_run):
        try:
            mia_batch()
        finally:
            print(json.dumps({"peak_mb": round(read_peak_mb()), "took": took}))


def kernel_pairs(run: Path) -> pl.DataFrame:
    """First candidates of a run with their references."""
    references = tables.scan(run / "targets.parquet", Targets).select(
        "target_id", "reference"
    )
    samples = tables.scan(run / "samples", Samples).select("target_id", "candidate")
    pairs = samples.head(PAIRS_IN_MEMORY).join(
        references.head(PAIRS_IN_MEMORY // SAMPLES),
        on="target_id",
        how="left",
        maintain_order="left",
    )
    return pairs.drop("target_id").collect()


def measure(folder: Path, n_targets: int, rounds: int) -> dict[str, Any]:
    write_input(folder, n_targets)
    began = time.perf_counter()
    found: dict[str, Any] = {
        "pairs": n_targets * SAMPLES,
        "peak_mb": audit(folder)["peak_mb"],
        "recording_to_scores_s": round(time.perf_counter() - began, 1),
    }
    pairs = kernel_pairs(folder / "run")

    # The longer the command takes, the more often they run: what a core does in a short
    # time it does not do for long.
    n_times = min(max(found["pairs"] // (4 * pairs.height), 1), 10)

    def kernels_alone() -> tuple[float, float]:
        def all_times() -> None:
            for _ in range(n_times):
                pairs.select(pair_features("candidate", "reference"))

        elapsed, used = timed(all_times)
        return elapsed / n_times, used / n_times

    kernels_alone()
    peaks, kernels, features = [], [], []
    for number in range(rounds):
        before = kernels_alone()
        # Not deleted: for minutes, ext4 passes over files just deleted where it makes
        # others.
        (folder / "run" / "features").rename(folder / f"features-{number}")
        again = audit(folder)
        kernels.append(np.add(before, kernels_alone()) / 2 / pairs.height)
        features.append(np.array(again["took"][0]) / found["pairs"])
        peaks.append(again["peak_mb"])
    ratios, ratios_of_cpu = np.divide(kernels, features).T
    kernels_s, kernels_cpu_s = np.median(kernels, axis=0)
    features_s, features_cpu_s = np.median(features, axis=0)
    return found | {
        "again_peak_mb": max(peaks),
        "kernels_alone_pairs": n_times * pairs.height,
        "kernels_pairs_per_s": round(1 / kernels_s),
        "features_pairs_per_s": round(1 / features_s),
        "ratio": round(median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "kernels_cpu_us": round(1e6 * kernels_cpu_s, 2),
        "features_cpu_us": round(1e6 * features_cpu_s, 2),
        "ratio_of_cpu": round(median(ratios_of_cpu), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        run_command(given.folder)
        return
    if not DATA.is_dir():
        print("skipped: no real text in ../shared/data")
        return
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), given.targets, given.rounds)
    packages = versions("polars")
    print(
        f"{machine()}; commit {commit()};", ", ".join(map(" ".join, packages.items()))
    )
    for name, value in row.items():
        print(f"{name:>22} {value:>14,}")
    print(f"wanted: ratio {WANTED}, peak {LIMIT_MB:,} MB")
    append_results("features", {"versions": packages} | row)


if __name__ == "__main__":
    main()
