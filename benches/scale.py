"""Many workers: what kills cost, how two engines scale, and what scheduling costs with many.

Five measurements, each against a real Ray on this machine:

* ``kills``: an audit by the demo's model on a cluster of two nodes, of which actors, raylets and
  the driver are killed at random, held against the same audit without a cluster.
* ``tuned``: an audit with models that it tunes, by two workers (`benches.tuned_workers`).
* ``engines``: two engines, each pinned to a core, against one: tokens per second once ready.
* ``sleepers``: what scheduling costs with as many actors as fit (`benches.sleepers`).
* ``features``: those of recorded samples by one core of a cluster, and by two.

    python -m benches.scale [kills] [tuned] [engines] [features] [sleepers] [--actors N]
    [--kills N]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import polars as pl
from benches.features import SAMPLES, write_input
from benches.results import append_results, machine, versions
from benches.sleepers import projection, sleepers
from benches.tuned_workers import tuned

from mia_batch.extras import ray as pool_module
from mia_batch.extras.ray import EngineWorker, Start, WorkerReport
from mia_batch.observer import Observer
from mia_batch.pipeline.audits import run_audit
from mia_batch.settings import load_settings
from tests.cluster import Cluster, actors

DEMO = Path("demo")
COPIES = 6  # of the demo's 256 texts
PROBES = 8
MEASURED = ["kills", "tuned", "engines", "features", "sleepers"]
TABLES = (
    "targets",
    "rarity",
    "scores",
    "unscored",
    "verdicts",
    "rollup",
    "curves",
    "metrics",
)


def write_corpus(folder: Path, columns: tuple[str, ...] = ("text", "member")) -> Path:
    """Write the demo's texts several times over, each with words of its own before it."""
    texts = pl.read_parquet(DEMO / "corpus.parquet")
    many = [
        texts.with_columns(pl.concat_str(pl.lit(f"Copy {n}. "), "text").alias("text"))
        for n in range(COPIES)
    ]
    path = folder / "corpus.parquet"
    pl.concat(many).select(columns).write_parquet(path)
    return path


def command(corpus: Path, out: Path, *options: str) -> list[str]:
    asked = [
        sys.executable,
        "-m",
        "mia_batch",
        "--input",
        str(corpus),
        "--out",
        str(out),
    ]
    asked += [
        "--model",
        str(DEMO / "model"),
        "--engine",
        "transformers",
        "--dtype",
        "float32",
    ]
    return [*asked, "--probes", str(PROBES), "--no-report", *options]


def contents(out: Path) -> dict[str, bytes]:
    files = [out / f"{name}.parquet" for name in TABLES]
    files += [
        path
        for name in ("samples", "features")
        for path in (out / name).glob("*.parquet")
    ]
    return {
        str(path.relative_to(out)): path.read_bytes() for path in files if path.exists()
    }


def n_parts(out: Path) -> int:
    return len(list((out / "samples").glob("*.parquet")))


def kill(n_kills: int) -> dict[str, Any]:
    """Kill so often, at random moments, whatever chance names; compare with 1, 2 and 4 workers."""
    dice = random.Random(0)
    killed = {"actor": 0, "engine": 0, "raylet": 0, "driver": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = write_corpus(folder)
        log = (folder / "log").open("w")
        alone = folder / "alone"
        subprocess.run(command(corpus, alone), check=True, stdout=log, stderr=log)
        same: dict[int | str, bool] = {}
        for n in (1, 2, 4):
            out = folder / f"workers-{n}"
            asked = command(corpus, out, "--workers", str(n))
            subprocess.run(asked, check=True, stdout=log, stderr=log)
            same[n] = contents(out) == contents(alone)
        out = folder / "killed"
        with Cluster(1, 1) as cluster:
            asked = command(corpus, out, "--ray", cluster.address)
            process = subprocess.Popen(asked, stdout=log, stderr=log)
            while sum(killed.values()) < n_kills:
                if process.poll() is not None:
                    before = n_parts(out)
                    if process.returncode == 0:  # it ended: some of its parts are lost
                        for path in dice.sample(
                            sorted((out / "samples").glob("*")), before // 2
                        ):
                            path.unlink()
                    process = subprocess.Popen(asked, stdout=log, stderr=log)
                time.sleep(dice.uniform(1.0, 9.0))
                what = dice.choice(list(killed))
                at_work = [pid for node in cluster.nodes for pid in actors(node)]
                if what == "driver" and process.poll() is None:
                    process.kill()
                    process.wait()
                elif what in ("actor", "engine") and at_work:
                    pid = dice.choice(at_work)
                    if what == "engine":
                        own = (
                            Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                        )
                        pid = int(dice.choice(own)) if own else pid
                    os.kill(pid, signal.SIGKILL)
                elif what == "raylet":
                    cluster.kill_raylet(dice.choice(cluster.nodes))
                    cluster.add(1)
                else:
                    continue
                killed[what] += 1
            while process.wait() != 0:
                process = subprocess.Popen(asked, stdout=log, stderr=log)
            same["killed"] = contents(out) == contents(alone)
    return {"kills": killed, "blocks": COPIES * 256 // 64, "byte_equal": same}


class Rates(Observer):
    """Tokens and the time since every worker has been ready."""

    def __init__(self, n_workers: int) -> None:
        self._to_come = n_workers
        self._began: float | None = None
        self._tokens = 0
        self._ended = 0.0

    def stage(self, sentence: str) -> None:
        if " is ready on " in sentence:
            self._to_come -= 1

    def worked(self, _texts: int, tokens: int) -> None:
        if self._to_come <= 0 and self._began is None:
            self._began = time.perf_counter()
        elif self._began is not None:
            self._tokens += tokens
            self._ended = time.perf_counter()

    @property
    def rate(self) -> float:
        return self._tokens / (self._ended - (self._began or 0.0))


class Pinned(EngineWorker):
    """A worker whose engine has one core."""

    def start(self, start: Start) -> WorkerReport:
        os.sched_setaffinity(0, {int(self._name.split()[-1]) % (os.cpu_count() or 1)})
        return super().start(start)


def engines(rounds: int) -> dict[str, Any]:
    """Compare two engines, each on a core, with one, in turns."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for n, of_n in rates.items():
            with tempfile.TemporaryDirectory() as name:
                observer = Rates(n)
                values = {
                    "input": str(write_corpus(Path(name), ("text",))),
                    "model": str(DEMO / "model"),
                    "out": f"{name}/run",
                    "preset": "matched",
                    "samples": 1,
                    "engine": "transformers",
                    "workers": n,
                    "report": False,
                }
                with patch.object(pool_module, "EngineWorker", Pinned):
                    run_audit(load_settings(values, use_config=False), observer)
                of_n.append(round(observer.rate, 1))
    ratio = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    return {
        "tokens_per_second": rates,
        "two_to_one": [round(each, 3) for each in ratio],
    }


def features(n_targets: int) -> dict[str, Any]:
    """Make the features of recorded samples by one core of a cluster, and by two."""
    pairs = n_targets * SAMPLES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_input(folder, n_targets)
        asked = [
            sys.executable,
            "-m",
            "mia_batch",
            "--input",
            str(folder / "corpus.parquet"),
        ]
        asked += ["--samples-from", str(folder / "recording.parquet"), "--no-report"]
        asked += ["--attacks", "samia_matched_v1", "--out", str(folder / "run")]
        subprocess.run(
            asked, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        per_second = {}
        for cores in (1, 2):
            for part in (folder / "run" / "features").iterdir():
                part.unlink()
            with Cluster(cores) as cluster:
                again = [*asked, "--ray", cluster.address]
                done = subprocess.run(again, check=True, capture_output=True, text=True)
            per_second[cores] = round(pairs / seconds_of_features(done.stderr))
            print(
                cores,
                "of the cluster's cores:",
                per_second[cores],
                "pairs/s",
                flush=True,
            )
    twice = round(per_second[2] / per_second[1] / 2, 3)
    return {"pairs": pairs, "pairs_per_second": per_second, "two_to_twice_one": twice}


def seconds_of_features(said: str) -> float:
    """Find them in what the command said; a run that comes out the same records none."""
    (seconds,) = re.findall(
        r"^making the features of .*\n\s*took ([\d.]+) s$", said, re.MULTILINE
    )
    return float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", default=MEASURED)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--targets", type=int, default=1_000_000)
    parser.add_argument("--actors", type=int, default=200)
    given = parser.parse_args()
    print(machine())
    figures: dict[str, Any] = {}
    if "kills" in given.what:
        figures["kills"] = kill(given.kills)
        print(figures["kills"])
    if "tuned" in given.what:
        figures["tuned"] = tuned(2)
        print(figures["tuned"])
    if "engines" in given.what:
        figures["engines"] = engines(given.rounds)
        print(figures["engines"], "median", median(figures["engines"]["two_to_one"]))
    if "features" in given.what:
        figures["features"] = features(given.targets)
        print(figures["features"])
    if "sleepers" in given.what:
        figures["sleepers"] = sleepers(given.actors)
        print(figures["sleepers"])
        print(projection(figures["sleepers"]))
    figures["load"] = [round(each, 2) for each in os.getloadavg()]
    append_results(
        "scale", figures | {"versions": versions("mia-batch", "ray", "polars")}
    )


if __name__ == "__main__":
    main()
