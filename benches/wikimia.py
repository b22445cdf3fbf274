"""WikiMIA without a model: before and after a repair, by whom its classes are distinguished.

python -m benches.wikimia [--seeds N]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benches.results import append_results, versions

from mia_batch.corpus import ColumnNames
from mia_batch.errors import CorpusError
from mia_batch.extras.sets import build_set

__all__ = ["measure"]

_DATA = Path(__file__).parents[2] / "shared" / "data" / "wikimia"
_CASES = (("", 16), ("", 32), ("64.jsonl", 64), ("128.jsonl", 128))
"""A file, or both, and the words of the texts."""


def measure(documents: Path, length: int, seed: int) -> dict[str, Any]:
    """Build one set; say how well it is distinguished, or why there is none."""
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        try:
            built = build_set(
                documents=documents,
                out=Path(folder) / "sets",
                lengths=(length,),
                columns=ColumnNames(text="input"),
                seed=seed,
            )
            (found,) = built.summary["sets"]
        except CorpusError as error:
            found = {"refused": str(error)}
    figures: dict[str, Any] = {"seed": seed, "length": length, **found}
    return figures | {"seconds": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    n_seeds = parser.parse_args().seeds
    if not _DATA.is_dir():
        print("skipped: no real text in ../shared/data")
        return
    rows = []
    for name, length in _CASES:
        for seed in range(n_seeds):
            rows.append({"file": name or "both"} | measure(_DATA / name, length, seed))
            print(rows[-1], flush=True)
    append_results("wikimia", {"cases": rows} | versions("scikit-learn", "numpy"))


if __name__ == "__main__":
    main()
