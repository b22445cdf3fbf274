"""How much of passages that come out counts, where nobody could go on with them alone.

Each passage of a text is taken as if all of it had come out after the words before it. Nothing of
prose should be lost: what is lost here, a book that was really recited loses, too.

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

from mia_batch.inference.foresight import words_of_run
from mia_batch.inference.memory import VERBATIM_WORDS

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
        places += [(number, start) for start in range(0, len(each) - 2 * length, length)]
    drawn = []
    for number, start in sorted(dice.sample(places, min(n, len(places)))):
        middle, end = start + length, start + 2 * length
        halves = words[number][start:middle], words[number][middle:end]
        drawn.append((" ".join(halves[0]), " ".join(halves[1])))
    return drawn


def measure(texts: list[str], length: int, n: int) -> dict[str, Any]:
    """Count passages that keep all their words, and those of which 20 words or more count."""
    drawn = passages(texts, length, n)
    began, whole, claimed, foreseen = process_time(), 0, 0, 0
    for prefix, reference in drawn:
        n_words = len(reference.split())
        counted = words_of_run(prefix, reference, 0, n_words, "whitespace")
        whole += counted.n_left == n_words
        claimed += counted.n_left >= min(VERBATIM_WORDS, n_words)
        foreseen += counted.n_foreseen
    return {
        "words": length,
        "passages": len(drawn),
        "whole": whole,
        "claimed": claimed,
        "foreseen": foreseen,
        "ms_each": round(1000 * (process_time() - began) / max(len(drawn), 1), 1),
    }


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
    append_results("foresight", {"files": names, "rows": rows} | versions("polars", "numpy"))


if __name__ == "__main__":
    main()
