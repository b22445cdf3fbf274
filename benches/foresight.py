"""How much of passages that come out counts, where nobody could go on with them alone.

Each passage of a text is taken as if all of it had come out after the words before it.
Nothing of prose should be lost: what is lost here, a book that was really recited
loses, too.

    python -m benches.foresight FILE ... [--passages N]

Files are texts, or JSON lines with a column ``text``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import polars as pl
from benches.results import append_results, versions

from mia_batch.inference.memory import VERBATIM_WORDS, count_run_words
from mia_batch.kernels import count_words

_LENGTHS = (32, 64, 128)  # words before a passage, and of it


def texts_of(path: Path) -> list[str]:
    """Read the texts of a file."""
    if path.suffix == ".jsonl":
        return pl.read_ndjson(path)["text"].to_list()
    return [path.read_text("utf-8")]


def passages(texts: list[str], length: int, n: int) -> list[tuple[str, str]]:
    """Draw ``n`` passages with what stands before them, by the words of the texts."""
    dice, places = Random(length), []
    words = [text.split(" ") for text in texts]
    for number, each in enumerate(words):
        places += [
            (number, start) for start in range(0, len(each) - 2 * length, length)
        ]
    drawn = []
    for number, start in sorted(dice.sample(places, min(n, len(places)))):
        middle, end = start + length, start + 2 * length
        halves = words[number][start:middle], words[number][middle:end]
        drawn.append((" ".join(halves[0]), " ".join(halves[1])))
    return drawn


def measure(texts: list[str], length: int, n: int) -> dict[str, Any]:
    """Count passages that keep all their words, and those of which 20 words or more count."""
    drawn = pl.DataFrame(
        passages(texts, length, n), schema=["prefix", "passage"], orient="row"
    )
    began = process_time()
    n_words = count_words("passage")
    counted = count_run_words(
        pl.col("prefix"), pl.col("passage"), n_words, "whitespace"
    )
    runs = drawn.select(counted.alias("run"), n_words=n_words).unnest("run")
    ms_each = 1000 * (process_time() - began) / max(runs.height, 1)
    is_claimed = pl.col("n_left") >= pl.min_horizontal("n_words", VERBATIM_WORDS)
    totals = runs.select(
        whole=(pl.col("n_left") == pl.col("n_words")).sum(),
        claimed=is_claimed.sum(),
        foreseen=pl.col("n_foreseen").sum(),
    )
    of_all = {"words": length, "passages": runs.height, "ms_each": round(ms_each, 3)}
    return of_all | totals.row(0, named=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--passages", type=int, default=1000, help="of each length")
    arguments = parser.parse_args()
    texts: list[str] = []
    for path in arguments.files:
        texts += texts_of(path)
    rows = []
    for length in _LENGTHS:
        rows.append(measure(texts, length, arguments.passages))
        print(rows[-1], flush=True)
    names = [path.name for path in arguments.files]
    append_results(
        "foresight", {"files": names, "rows": rows} | versions("polars", "numpy")
    )


if __name__ == "__main__":
    main()
