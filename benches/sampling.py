"""Tokens per second: ours with parts on disk, bare vLLM, and transformers, on the same requests.

Each way gets a process of its own, in turns; the engine's start is not counted. Ours
ends when the last part is on disk; bare vLLM gets the whole list at once, and its time
ends when the same rows are decoded and written. `transformers.generate` knows no seed
of a single row, so it draws other tokens, for as many as it is given.

    python -m benches.sampling [--model FOLDER] [--corpus FILE] [--targets N] [--rounds
    N]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benches.results import append_results, machine

from mia_batch import tables
from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.extras.speed.ways import run_in_process
from mia_batch.schemas import Targets
from mia_batch.targets import Windowing, build_targets

WAYS = {
    "ours": "sample",
    "bare": "sample_by_vllm",
    "transformers": "sample_by_transformers",
}


def measured(
    way: str, folder: str, model: str, seconds: float | None = None
) -> dict[str, Any]:
    """Run one way in a process of its own; what it cannot do ends the bench."""
    more: dict[str, Any] = {} if seconds is None else {"seconds": seconds}
    found = run_in_process(WAYS[way], folder=folder, model=model, **more)
    if "reason" in found:
        raise SystemExit(f"{way}: {found['reason']}")
    return found


def main() -> None:
    """Take turns, print the ratios, store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo/model")
    parser.add_argument("--corpus", default="demo/corpus.parquet")
    parser.add_argument("--targets", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        documents = read_documents(
            given.corpus, ColumnNames(), reserved=frozenset()
        ).documents
        targets = build_targets(documents.head(given.targets), Windowing())
        tables.sink(targets, Path(folder, "targets.parquet"), Targets)
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "bare": []}
        for _ in range(given.rounds):
            for way, results in found.items():
                results.append(measured(way, folder, given.model))
        found["transformers"] = [
            measured("transformers", folder, given.model, seconds=15.0)
        ]
    speeds = {
        way: [each["tokens"] / each["seconds"] for each in results]
        for way, results in found.items()
    }
    ratios = [
        one / other for one, other in zip(speeds["ours"], speeds["bare"], strict=True)
    ]
    figures = {
        "model": given.model,
        "tokens": {way: results[0]["tokens"] for way, results in found.items()},
        "tokens_per_second": {
            way: [round(each) for each in each_way] for way, each_way in speeds.items()
        },
        "ours_to_bare": [round(ratio, 3) for ratio in ratios],
        "ours_to_bare_median": round(median(ratios), 3),
        "ours_to_transformers": round(
            median(speeds["ours"]) / speeds["transformers"][0], 1
        ),
    }
    append_results("sampling", figures)
    print(machine())
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
