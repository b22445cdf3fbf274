"""A whole audit with models that the run tunes, by two workers: its tables, and its bytes.

The same command runs on one engine, with ``--workers 2``, with ``--ray`` on a cluster
of two nodes, and with ``--workers 2`` killed at random moments; tables and models are
compared byte for byte.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

from tests.cluster import Cluster

DEMO = Path("demo")
N_WORDS = 32  # of a text; the demo's are cut into three
ATTACKS = "lira_online_fixed_v1,candidate_difference_v1"
TUNING = (
    "--shadows",
    "2",
    "--tuning-epochs",
    "2",
    "--tuning-rate",
    "1e-3",
    "--tuning-rank",
    "8",
)


def tuned(n_kills: int) -> dict[str, Any]:
    """Compare all ways with the run on one engine."""
    dice = random.Random(0)
    with tempfile.TemporaryDirectory() as name, Cluster(1, 1) as cluster:
        folder = Path(name)
        command = _command(folder)
        ways = {
            "alone": (),
            "workers": ("--workers", "2"),
            "ray": ("--ray", cluster.address),
            "killed": ("--workers", "2"),
        }
        seconds: dict[str, float] = {}
        killed_in: list[str] = []
        # Another number may change last digits
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        with (folder / "log").open("w") as log:
            for way, options in ways.items():
                asked = [*command, "--out", str(folder / way), *options]
                began = time.perf_counter()
                for _ in range(n_kills if way == "killed" else 0):
                    with subprocess.Popen(
                        asked, stdout=log, stderr=log, env=one_thread
                    ) as process:
                        time.sleep(
                            dice.uniform(0.2, 0.8) * seconds["workers"] / n_kills
                        )
                        process.kill()
                    killed_in.append(_where(folder / way))
                subprocess.run(
                    asked, check=True, stdout=log, stderr=log, env=one_thread
                )
                seconds[way] = round(time.perf_counter() - began, 1)
                print(way, seconds[way], "s", *killed_in, flush=True)
        expected = contents(folder / "alone")
        found = {way: contents(folder / way) for way in ways if way != "alone"}
        other = {
            way: sorted(
                name
                for name in expected.keys() | of_way.keys()
                if expected.get(name) != of_way.get(name)
            )
            for way, of_way in found.items()
        }
    return {
        "files": len(expected),
        "seconds": seconds,
        "killed_in": killed_in,
        "other": other,
    }


def contents(out: Path) -> dict[str, bytes]:
    """Tables and models of a run; a report of times is neither."""
    kinds = ("*.parquet", "*.safetensors")
    paths = (path for kind in kinds for path in out.rglob(kind))
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


def _command(folder: Path) -> list[str]:
    texts = pl.read_parquet(DEMO / "corpus.parquet").with_columns(
        words=pl.col("text").str.split(" ")
    )
    for start, name in enumerate(("corpus", "more", "candidate")):
        cut = pl.col("words").list.slice(N_WORDS * start, N_WORDS).list.join(" ")
        texts.select("member", text=cut).write_parquet(folder / f"{name}.parquet")
    both = [pl.read_parquet(folder / f"{name}.parquet") for name in ("corpus", "more")]
    pl.concat(both).write_parquet(folder / "corpus.parquet")
    given = {
        "--input": folder / "corpus.parquet",
        "--candidate-from": folder / "candidate.parquet",
        "--model": DEMO / "model",
        "--reference-model": DEMO / "model",
        "--attacks": ATTACKS,
    }
    words = [str(word) for pair in given.items() for word in pair]
    fixed = (
        "--engine",
        "transformers",
        "--dtype",
        "float32",
        "--engine-arg",
        "batch_size=1",
    )
    return [sys.executable, "-m", "mia_batch", *words, *TUNING, *fixed, "--no-report"]


def _where(out: Path) -> str:
    """Say how far a killed run had come."""
    made = len([path for path in out.glob("models/*") if not path.name.startswith(".")])
    parts = [
        len(list((out / kind).glob("*.parquet"))) for kind in ("samples", "logprobs")
    ]
    return f"{made} models, {parts[0]} and {parts[1]} parts"
