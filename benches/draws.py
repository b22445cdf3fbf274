"""How often the share of a drawn corpus is covered, and what drawing costs.

Coverage: documents are drawn of a corpus of 4 million, of one source or of four with
unequal shares; scores of members overlap those of others (normal, shifted by 1 or 2, or
Student's t of 4 degrees). In some cases a tenth cannot be asked about, or comparison
documents are in groups of 5 that share a third of their variance. Memory and time: 5
million documents in Parquet and in JSON Lines, each read in a process of its own.

    python -m benches.draws [--simulations N] [--documents N]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from benches.results import append_results
from numpy.typing import NDArray

from mia_batch.inference.findings import DecisionRule
from mia_batch.inference.known_share import draw_findings, known_share_findings
from mia_batch.schemas import Role

SHARES = (0.0, 0.001, 0.01, 0.1, 0.5)
RULE = DecisionRule(primary="score", level="target", null_set="simulated")
POPULATION = 4_000_000
SIZES = {1: (1.0,), 4: (0.6, 0.25, 0.1, 0.05)}
"""Shares of the corpus that its sources have, by their number."""
FACTORS = {1: (1.0,), 4: (0.5, 1.5, 2.0, 2.0)}
"""How far the share of members of a source is from that of all."""
LEAST_COVERAGE = 0.93
LIMIT_MB = 500
BOUND_EVERY = 4  # simulations in which the bound is computed, too
GROUP = 5
WITHIN = 1 / 3
N_FILES = 20
BASE_TEXTS = 3_000

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How a corpus is drawn from and compared.

    Attributes
    ----------
    n_drawn
        Documents drawn of each source.
    n_sources
        Sources, a key of `SIZES`.
    shift
        By how much members score higher, in standard deviations of others.
    tails
        Distribution of the scores.
    n_null
        Comparison documents.
    n_calibration
        Calibration documents of each class.
    unasked
        Share of documents that cannot be asked about.
    grouped
        Whether comparison and calibration documents are in groups that are alike.
    """

    n_drawn: int
    n_sources: int = 1
    shift: float = 2.0
    tails: Literal["normal", "t"] = "normal"
    n_null: int
    n_calibration: int
    unasked: float = 0.0
    grouped: bool = False


CASES = (
    Case(n_drawn=5_000, n_null=1_000, n_calibration=1_000),
    Case(n_drawn=5_000, n_null=5_000, n_calibration=5_000),
    Case(n_drawn=500, shift=1.0, n_null=500, n_calibration=250),
    Case(n_drawn=500, tails="t", n_null=500, n_calibration=250),
    Case(n_drawn=100, n_null=200, n_calibration=100),
    Case(n_drawn=500, n_sources=4, n_null=1_000, n_calibration=500),
    Case(n_drawn=500, n_sources=4, unasked=0.1, n_null=1_000, n_calibration=500),
    Case(n_drawn=500, n_null=500, n_calibration=500, grouped=True),
)


def draw_noise(case: Case, n: int, rng: np.random.Generator) -> Scores:
    if case.tails == "t":
        return rng.standard_t(4, n)
    return rng.standard_normal(n)


def build_outside(
    case: Case, role: str, n: int, shift: float, rng: np.random.Generator
) -> pl.DataFrame:
    """Build comparison or calibration documents, in groups where the case has them."""
    noise = draw_noise(case, n, rng)
    groups = np.arange(n) // GROUP
    if case.grouped:
        shared = rng.standard_normal(groups[-1] + 1)[groups]
        noise = WITHIN**0.5 * shared + (1 - WITHIN) ** 0.5 * noise
    names = [f"{role} {shift} {group}" for group in groups]
    return pl.DataFrame(
        {
            "role": role,
            "member": shift > 0 if role == "calibration" else None,
            "group": names if case.grouped else None,
            "score": noise + shift,
        }
    )


def simulate(
    case: Case, share: float, rng: np.random.Generator
) -> tuple[float, pl.DataFrame, pl.DataFrame]:
    """Return the true share, what was drawn, and the table of texts with their scores."""
    tables = []
    sources = []
    n_members_of_all = 0
    parts = zip(SIZES[case.n_sources], FACTORS[case.n_sources], strict=True)
    mean = np.dot(SIZES[case.n_sources], FACTORS[case.n_sources])
    for number, (size, factor) in enumerate(parts):
        n = round(size * POPULATION)
        n_members = round(min(1.0, share * factor / mean) * n)
        n_members_of_all += n_members
        n_known = int(rng.hypergeometric(n_members, n - n_members, case.n_drawn))
        scores = draw_noise(case, case.n_drawn, rng)
        scores[:n_known] += case.shift
        is_unasked = rng.random(case.n_drawn) < case.unasked
        sources.append([f"s{number}", n, case.n_drawn])
        tables.append(
            pl.DataFrame(
                {
                    "role": "target",
                    "source": f"s{number}",
                    "score": scores,
                    "reason": pl.select(
                        pl.when(pl.Series(is_unasked)).then(pl.lit("too short"))
                    ).to_series(),
                }
            )
        )
    tables.append(build_outside(case, "non_member", case.n_null, 0.0, rng))
    for shift in (0.0, case.shift):
        n = case.n_calibration
        tables.append(build_outside(case, "calibration", n, shift, rng))
    draw = draw_findings(
        {
            "n_documents": POPULATION,
            "n_drawn": case.n_drawn * case.n_sources,
            "column": "source",
            "sources": sources,
        }
    )
    table = pl.concat(tables, how="diagonal_relaxed").with_row_index("number")
    name = pl.format("d{}", "number")
    texts = table.with_columns(
        target_id=name,
        document_id=name,
        role=pl.col("role").cast(Role),
        member=pl.col("member").cast(pl.Boolean),
        group=pl.col("group").cast(pl.String),
        window_index=pl.lit(0, pl.UInt32),
        n_words=pl.lit(100, pl.UInt32),
    )
    return n_members_of_all / POPULATION, draw, texts


def find_share(texts: pl.DataFrame, draw: pl.DataFrame) -> dict[str, Any]:
    found = known_share_findings(
        texts.lazy(), texts.lazy(), RULE, draw, blind_warns=False
    )
    return found.filter(statistic="share").row(0, named=True)


def measure_coverage(case: Case, share: float, n: int) -> dict[str, Any]:
    """Simulate so many draws; of the interval, and of the bound without calibration data."""
    rng = np.random.default_rng([CASES.index(case), round(share * 1000)])
    widths = []
    lows = []
    n_covered = n_held = 0
    for number in range(n):
        truth, draw, texts = simulate(case, share, rng)
        row = find_share(texts, draw)
        if row["verdict"] == "fieller":
            n_covered += row["low"] <= truth <= row["high"]
            widths.append(row["high"] - row["low"])
        if number % BOUND_EVERY:
            continue
        alone = texts.filter(pl.col("role").cast(pl.String) != "calibration")
        bound = find_share(alone, draw)
        n_held += bound["low"] <= truth
        lows.append(bound["low"])
    return {
        **asdict(case),
        "share": share,
        "n": n,
        "coverage": round(n_covered / max(len(widths), 1), 4),
        "mean_width": round(float(np.mean(widths)), 5) if widths else None,
        "withheld": round(1 - len(widths) / n, 4),
        "bound_holds": round(n_held / len(lows), 4),
        "mean_bound": round(float(np.mean(lows)), 5),
    }


def write_corpus(folder: Path, kind: str, n: int) -> None:
    """Write a corpus of short texts in several files, with a column of sources."""
    rng = np.random.default_rng(0)
    words = np.array([f"{rng.integers(36**5):x}" for _ in range(5_000)])
    base = pl.DataFrame(
        {"text": [" ".join(rng.choice(words, 50)) for _ in range(BASE_TEXTS)]}
    )
    for number in range(N_FILES):
        texts = base.sample(n // N_FILES, with_replacement=True, seed=number)
        index = pl.int_range(pl.len()) + number * (n // N_FILES)
        table = texts.with_columns(
            text=pl.format("{} {}", "text", index),
            source=pl.format("s{}", index % 7),
        )
        path = folder / f"{number:02}.{kind}"
        if kind == "parquet":
            table.write_parquet(path)
        else:
            table.write_ndjson(path)


_READ = r"""
import json, re, sys, time
from pathlib import Path
from mia_batch.corpus import DrawRequest, read_documents
began = time.perf_counter()
by = sys.argv[2] or None
corpus = read_documents(sys.argv[1], draw=DrawRequest(5_000, 0, by))
n = sum(frame.height for frame in corpus.documents.collect_batches())
# What a process took before it became this one does not count, as it does in ru_maxrss
status = Path("/proc/self/status").read_text()
peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10
print(json.dumps([corpus.draw.n_documents, n, time.perf_counter() - began, peak]))
"""


def measure_reading(n_documents: int) -> list[dict[str, Any]]:
    """Draw of a large corpus, in processes of their own."""
    rows = []
    for kind in ("parquet", "jsonl"):
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(Path(folder), kind, n_documents)
            for by in ("", "source"):
                command = [sys.executable, "-c", _READ, folder, by]
                text = subprocess.run(
                    command, check=True, capture_output=True, text=True
                ).stdout
                total, drawn, seconds, peak = json.loads(text)
                rows.append(
                    {
                        "kind": kind,
                        "by_source": bool(by),
                        "documents": total,
                        "drawn": drawn,
                        "seconds": round(seconds, 1),
                        "peak_mb": peak,
                    }
                )
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=300)
    parser.add_argument("--documents", type=int, default=5_000_000)
    arguments = parser.parse_args()
    began = time.perf_counter()
    reading = measure_reading(arguments.documents) if arguments.documents else []
    cases = []
    for case in CASES:
        for share in SHARES:
            cases.append(measure_coverage(case, share, arguments.simulations))
            print(cases[-1], flush=True)
    record = {
        "simulations": arguments.simulations,
        "seconds": round(time.perf_counter() - began),
        "reading": reading,
        "cases": cases,
    }
    append_results("draws", record)
    too_low = [
        row
        for row in cases
        for name in ("coverage", "bound_holds")
        if row[name] + 2 * ((1 - row[name]) * row[name] / row["n"]) ** 0.5
        < LEAST_COVERAGE
    ]
    too_large = [row for row in reading if row["peak_mb"] > LIMIT_MB]
    if too_low or too_large:
        raise SystemExit(f"not as promised: {too_low + too_large}")


if __name__ == "__main__":
    main()
