"""Requests per second of our path: an engine that answers at once takes no time of its own.

Whole audits with an engine that is registered for this bench alone. Time counts while
the model is asked: the wall's, and processor time of this process and of the engine's,
each on one core.

    python -m benches.requests [--model FOLDER] [--texts N] [--profile] [WORK ...]
    python -m benches.requests --against REVISION [--rounds N] [WORK ...]

With ``--against`` the package of another commit does the same work in turns, and the
ratio of prompts a second of processor time is given with its interval. The bench fails
where that shows this commit slower by more than a twentieth. It is the bench's code of
now that measures both, so it imports little of the package.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from benches.pairs import Prose

from mia_batch.evidence.engines.registry import EngineType
from mia_batch.evidence.request import (
    Answer,
    Continuation,
    EngineInfo,
    EngineSpec,
    Request,
)
from mia_batch.observer import Observer
from mia_batch.pipeline.audits import run_audit
from mia_batch.settings import load_settings

WORK: dict[str, dict[str, Any]] = {
    "probes": {"attacks": ["probe_leading_rarity_v1"], "probes": 32},
    "matched": {"attacks": ["samia_matched_v1"]},
    "logprobs": {"attacks": ["loss_v1", "min_k_plus_plus_20_v1"]},
}
TEXTS = {"probes": 1024, "matched": 512, "logprobs": 4096}
WORDS = {"probes": 128, "matched": 160, "logprobs": 128}
SEQUENCES = 1024  # as vLLM has on a large card
LEAST_RATIO = 0.95  # to the commit that is compared with, by the interval's upper end


class Instant:
    """Gives each sample the tokens of as many words as it may have, each text the same numbers."""

    def __init__(self, spec: EngineSpec) -> None:
        self.info = EngineInfo(
            engine="instant",
            version="1",
            device="cpu",
            dtype="float32",
            max_model_len=4096,
            max_sequences=SEQUENCES,
        )
        vocabulary = json.loads(Path(spec.model, "tokenizer.json").read_text())[
            "model"
        ]["vocab"]
        words = [number for text, number in vocabulary.items() if text[:1] == "Ġ"]
        self._words = random.Random(0).sample(words, len(words)) * 8
        self._waiting: list[Request] = []

    def submit(self, request: Request) -> None:
        self._waiting.append(request)

    def step(self) -> list[Answer]:
        asked, self._waiting = self._waiting, []
        return [
            self._texts(each) if each.text_ids else self._samples(each)
            for each in asked
        ]

    def _samples(self, request: Request) -> Answer:
        starts = range(request.seed % 100, request.seed % 100 + request.n)
        cut = [self._words[start : start + request.max_tokens] for start in starts]
        given = [Continuation(token_ids=[*ids], finish_reason="length") for ids in cut]
        return Answer(request_id=request.request_id, continuations=given)

    def _texts(self, request: Request) -> Answer:
        n_tokens = len(request.text_ids or ())
        numbers = np.linspace(-9.0, -1.0, n_tokens, dtype=np.float32)
        of_columns = dict.fromkeys(request.columns, -numbers)
        return Answer(
            request_id=request.request_id, tokens={"logprob": numbers, **of_columns}
        )

    def close(self) -> None:
        pass


ENGINE_TYPE = EngineType(
    name="instant",
    start="benches.requests:Instant",
    kinds=frozenset({"samples", "logprobs"}),
    columns=frozenset({"vocabulary_mean", "vocabulary_variance"}),
    on_cpu=lambda: True,
)


class Clock(Observer):
    """Takes times while the model is asked, and counts what it gives."""

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self.spent = np.zeros(3)
        self.texts = self.tokens = 0
        self.peaks: list[int] = []
        self._profile = profile

    def working(self, what: str, **_: object) -> None:
        del what
        self.spent -= _now()
        if self._profile is not None:
            self._profile.enable()

    def worked(self, units: int, tokens: int) -> None:
        self.texts, self.tokens = self.texts + units, self.tokens + tokens

    def work_ended(self) -> None:
        if self._profile is not None:
            self._profile.disable()
        self.spent += _now()
        self.peaks = [_peak_mb(process) for process in ("self", *_children())]


def _children() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    return [
        child for task in tasks for child in (task / "children").read_text().split()
    ]


def _peak_mb(process: str) -> int:
    status = Path("/proc", process, "status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def _now() -> np.ndarray:
    """Seconds of the wall, of this process, and of the processes that it has started."""
    ticks = 0
    for child in _children():
        fields = Path("/proc", child, "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return np.array(
        [time.monotonic(), time.process_time(), ticks / os.sysconf("SC_CLK_TCK")]
    )


def measured(work: str, model: str, n_texts: int, *, profile: bool) -> dict[str, Any]:
    """Audit texts of real words, and give what was asked a second."""
    profiled = cProfile.Profile(time.process_time) if profile else None
    words, clock = Prose().words, Clock(profiled)
    places = random.Random(0).choices(range(len(words) - WORDS[work]), k=n_texts)
    texts = [" ".join(words[at : at + WORDS[work]]) for at in places]
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus.parquet")
        pl.DataFrame({"text": texts}).write_parquet(corpus)
        given = {
            "input": str(corpus),
            "model": model,
            "out": f"{folder}/run",
            "report": False,
        }
        run_audit(
            load_settings(given | {"engine": "instant"} | WORK[work], use_config=False),
            clock,
        )
    if profiled is not None:
        pstats.Stats(profiled).sort_stats("tottime").print_stats(45)
        pstats.Stats(profiled).sort_stats("cumulative").print_stats(45)
    counts = {"prompts": clock.texts, "tokens": clock.tokens}
    seconds = dict(zip(("wall", "ours", "engine"), clock.spent.tolist(), strict=True))
    return {
        "texts": n_texts,
        **counts,
        "peak_mb": clock.peaks,
        "seconds": {name: round(each, 2) for name, each in seconds.items()},
        **{
            f"{what}_per_second": {
                name: round(n / max(each, 0.01)) for name, each in seconds.items()
            }
            for what, n in counts.items()
        },
    }


@contextmanager
def built_package(revision: str) -> Iterator[Path]:
    """Check out a commit with its Rust extension, and remove it afterwards."""
    extension = Path("python/mia_batch/_native.abi3.so")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        run_git = ["git", "worktree"]
        subprocess.run([*run_git, "add", "--detach", tree, revision], check=True)
        try:
            sources = ["rust", "Cargo.toml", "Cargo.lock"]
            compared = ["git", "diff", "--quiet", revision, "--", *sources]
            built = extension
            if subprocess.run(compared, check=False).returncode:
                cargo = ["cargo", "build", "--release", "--locked"]
                subprocess.run([*cargo, "-p", "mia-python"], check=True, cwd=tree)
                built = tree / "target/release/lib_native.so"
            shutil.copy(built, tree / extension)
            yield tree / "python"
        finally:
            subprocess.run([*run_git, "remove", "--force", tree], check=True)


def run_once(package: Path, work: str, arguments: argparse.Namespace) -> float:
    """Do the work with a package, and return prompts a second of its processor time."""
    options = ["--once", "--model", arguments.model]
    options += ["--texts", str(arguments.texts or TEXTS[work])]
    environment = os.environ | {"PYTHONPATH": str(package.absolute())}
    process = subprocess.run(
        [sys.executable, "-m", "benches.requests", work, *options],
        check=True,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures = json.loads(process.stdout.splitlines()[-1])[work]
    return float(figures["prompts_per_second"]["ours"])


def compare(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measure this commit and another in turns."""
    from mia_batch.extras.speed.comparing import compare_rates

    figures = {}
    with built_package(arguments.against) as earlier:
        for work in arguments.work:
            now, before = list[float](), list[float]()
            for _ in range(arguments.rounds):
                before.append(run_once(earlier, work, arguments))
                now.append(run_once(Path("python"), work, arguments))
            ratio = compare_rates(now, before)
            figures[work] = {
                "prompts_per_second": now,
                "before": before,
                "ratio": ratio.value and round(ratio.value, 3),
                "low": ratio.low and round(ratio.low, 3),
                "high": ratio.high and round(ratio.high, 3),
                "reason": ratio.reason,
            }
    return figures


def measure_all(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Register the engine for this process and those that it starts, and do all work."""
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder, "instant-1.dist-info")
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: instant\nVersion: 1\n"
        )
        entry = "[mia_batch.engines]\ninstant = benches.requests:ENGINE_TYPE\n"
        (info / "entry_points.txt").write_text(entry)
        sys.path.insert(0, folder)  # what this process starts has the same path
        return {
            work: measured(
                work,
                arguments.model,
                arguments.texts or TEXTS[work],
                profile=arguments.profile,
            )
            for work in arguments.work
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", nargs="*", default=[*WORK])
    parser.add_argument("--model", default="demo/model")
    parser.add_argument("--texts", type=int)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--against", metavar="REVISION")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    figures = compare(arguments) if arguments.against else measure_all(arguments)
    if arguments.once:
        print(json.dumps(figures))
        return
    from benches.results import append_results, machine

    print(machine())
    print(json.dumps(figures, indent=2))
    against = {}
    if arguments.against:
        name = ["git", "rev-parse", "--short=12", arguments.against]
        against["against"] = subprocess.check_output(name, text=True).strip()
    if not arguments.profile:
        append_results("requests", {"model": arguments.model, **against, **figures})
    for work, row in figures.items() if arguments.against else ():
        if row["high"] is not None and row["high"] < LEAST_RATIO:
            raise SystemExit(f"{work}: slower than {arguments.against}")


if __name__ == "__main__":
    main()
