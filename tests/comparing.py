"""Recordings of one corpus by models that repeat more of it, or less."""

from pathlib import Path
from random import Random
from typing import Any

import polars as pl

from tests.runs import audit

_WORDS = [f"w{number:02d}" for number in range(40)]


def write_corpus(
    folder: Path, *, n: int = 40, windows: int = 1, labelled: bool = True
) -> None:
    """A corpus of texts of 20 words times ``windows``, every second a member."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "document_id": f"text {number}",
            "text": " ".join(Random(number).choices(_WORDS, k=20 * windows)),
            "member": number % 2 == 0 if labelled else None,
        }
        for number in range(n)
    ]
    schema = {"document_id": pl.String, "text": pl.String, "member": pl.Boolean}
    pl.DataFrame(rows, schema=schema).write_parquet(folder / "corpus.parquet")


def audit_recorded(
    folder: Path, name: str, repeated: float, *, windows: int = 1, **settings
):
    """Audit a recording in which members' references are repeated with this probability a word."""
    asked: dict[str, Any] = {
        "input": str(folder / "corpus.parquet"),
        "out": folder / name,
        "report": False,
    } | settings
    asked["samples_from"] = str(record(folder, name, repeated, windows))
    asked["window_words"] = 20 if windows > 1 else None
    return audit(**asked)


def record(folder: Path, name: str, repeated: float, windows: int) -> Path:
    rows = []
    for row in pl.read_parquet(folder / "corpus.parquet").iter_rows(named=True):
        words = row["text"].split()
        for start in range(0, 20 * windows, 20):
            prefix, true = words[start : start + 10], words[start + 10 : start + 20]
            share = 0.1 if row["member"] is False else repeated
            draw = Random(f"{name} {row['document_id']} {start}")
            said = [
                word if draw.random() < share else draw.choice(_WORDS) for word in true
            ]
            rows.append({"prefix": " ".join(prefix), "candidate": " ".join(said)})
    path = folder / f"{name}.made.parquet"
    pl.DataFrame(rows).write_parquet(path)
    return path
