"""Which windows come out of a model word for word, and which attack would have chosen them.

Every window of a set is read once and then continued, where an audit continues those of
the highest scores alone. So each attack can be asked how many of the windows that came
out are among the 16, 32 or 64 that it would have continued.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from benches.manuals import texts
from benches.pairs import DATA
from benches.real_texts import LATER, PUBLIC, PublicText, build_corpus
from numpy.typing import NDArray

import mia_batch
from mia_batch.attacks import ONE_PASS
from mia_batch.inference.memory import VERBATIM_WORDS, verbatim_runs
from mia_batch.settings import nested

__all__ = ["count_chosen", "measure_choice", "rank_by_document"]

AT = (16, 32, 64)
"""How many windows are continued."""
_COPIES = {0: 60, 8: 30, 16: 30, 32: 30, 64: 30}
_MORE_LICENCES = ("GPL-3", "LGPL-2.1", "GFDL-1.3", "Artistic", "CC0-1.0")


def write_public_corpus(path: Path, *, n_books: int = 12) -> None:
    """Write public texts, further licences, and books of ../shared/data where it is there."""
    licences = tuple(
        PublicText(name, "", 0, "base-files", name, "copies may be distributed")
        for name in _MORE_LICENCES
    )
    corpus = build_corpus(PUBLIC + licences).select("document_id", "text")
    books = sorted((DATA / "books").glob("*.txt"))[:n_books]
    rows = [
        {"document_id": book.stem, "text": book.read_text("utf-8")} for book in books
    ]
    pl.concat([corpus, pl.DataFrame(rows, corpus.schema)]).write_parquet(path)


def rank_by_document(
    scores: NDArray[np.float64], documents: NDArray[np.str_]
) -> NDArray[np.int64]:
    """Rank windows as an audit continues them: the best of each document, then the second."""
    rows = pl.DataFrame({"score": scores, "document": documents}).with_row_index("row")
    place = pl.col("score").rank("ordinal", descending=True).over("document")
    ordered = rows.with_columns(place=place).sort(
        "place", "score", descending=[False, True], maintain_order=True
    )
    return ordered["row"].to_numpy().astype(np.int64)


def count_chosen(order: NDArray[np.int64], came_out: NDArray[np.bool_], at: int) -> int:
    """Count the windows that came out among the first ones of an order."""
    return int(came_out[order[:at]].sum())


def find_what_came_out(run: mia_batch.Run) -> pl.DataFrame:
    """Return of each continued window its longest run of words, and whether it came out."""
    runs = verbatim_runs(run.scan("targets"), run.scan("features"), 1, "folded")
    n_words = pl.col("longest_words")
    return runs.select(
        n_words,
        came_out=n_words >= VERBATIM_WORDS,
        target_id=run["targets"]["target_id"],
    ).drop_nulls()


def measure_attacks(run: mia_batch.Run, came_out: pl.DataFrame) -> list[dict[str, Any]]:
    """Return of each attack how many windows that come out it would have continued."""
    scores = run["scores"].join(came_out, on="target_id", maintain_order="left")
    scores = scores.drop_nulls("came_out")
    documents = scores["document_id"].to_numpy()
    rows = []
    for attack in ONE_PASS:
        if attack not in scores.columns or not scores[attack].count():
            continue
        values = scores[attack].fill_null(-np.inf).to_numpy()
        orders = {
            "as_continued": rank_by_document(values, documents),
            "by_score": np.argsort(-values, kind="stable"),
        }
        row: dict[str, Any] = {"attack": attack}
        for name, order in orders.items():
            row[name] = {
                str(at): count_chosen(order, scores["came_out"].to_numpy(), at)
                for at in AT
            }
        rows.append(row)
    return rows


def count_by_document(
    run: mia_batch.Run, came_out: pl.DataFrame
) -> list[dict[str, Any]]:
    """Return of each document how many windows come out, and the longest run of words."""
    rows = run["scores"].join(came_out, on="target_id")
    counts = rows.group_by("role", "document_id", maintain_order=True).agg(
        windows=pl.len(),
        come_out=pl.col("came_out").sum(),
        longest_words=pl.col("longest_words").max(),
        median_score=pl.col("min_k_plus_plus_20_v1").median().round(3),
    )
    return counts.sort("come_out", "median_score", descending=True).to_dicts()


def measure_choice(
    model: str, folder: Path, n_windows: int, *, is_manuals: bool = False
) -> dict[str, Any]:
    """Read and continue every window; return what comes out, and who would have chosen it."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus.parquet"
    settings: dict[str, Any] = {}
    if is_manuals:
        texts("windows", _COPIES).drop("member").write_parquet(corpus)
    else:
        write_public_corpus(corpus)
        build_corpus(LATER).write_parquet(folder / "later.parquet")
        settings = {
            "window_words": 128,
            "max_windows_per_document": n_windows,
            "level": "group",
            "non_members": str(folder / "later.parquet"),
            "non_members_known": "published after the model",
            "anyway": True,
        }
    start = time.monotonic()
    run = mia_batch.audit(
        **nested(
            {
                "input": str(corpus),
                "model": model,
                "out": str(folder / "run"),
                "continue_strongest": 1_000_000,
                "report": False,
                **settings,
            }
        )
    )
    seconds = time.monotonic() - start
    came_out = find_what_came_out(run)
    return {
        "windows": came_out.height,
        "come_out": int(came_out["came_out"].sum()),
        "seconds": round(seconds),
        "documents": count_by_document(run, came_out),
        "attacks": measure_attacks(run, came_out),
    }
