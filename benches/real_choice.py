"""Which windows come out of a model word for word, and which attack would have chosen them.

Every window of public texts, of the yardstick's most copied passages, or of the texts of
manuals-47m is read once and then continued, where an audit continues those of
the highest scores alone. So each attack can be asked how many of the windows that came
out are among the 16, 32 or 64 that it would have continued.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from benches.manuals import texts
from benches.pairs import DATA
from benches.real_texts import PUBLIC, PublicText, build_corpus
from numpy.typing import NDArray

import mia_batch
from mia_batch.attacks import ONE_PASS
from mia_batch.inference.memory import VERBATIM_WORDS, verbatim_runs
from mia_batch.settings import nested

__all__ = ["count_chosen", "measure_choice", "rank_by_document"]

CLASSICS = Path(mia_batch.__file__).parent / "corpus" / "yardstick.jsonl"
AT = (16, 32, 64)
"""How many windows are continued."""
LEAST_WORDS = (VERBATIM_WORDS, 8, 5)
"""Words in a row: what counts as having come out, and what only begins to."""
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


def find_longest_runs(run: mia_batch.Run) -> pl.DataFrame:
    """Return of each continued window the most words in a row that its continuation has."""
    runs = verbatim_runs(run.scan("targets"), run.scan("features"), 1, "folded")
    rows = runs.select("longest_words", target_id=run["targets"]["target_id"])
    return rows.drop_nulls()


def measure_attacks(
    scores: pl.DataFrame, longest_runs: pl.DataFrame
) -> list[dict[str, Any]]:
    """Return of each attack how many of the windows with long runs it would have continued."""
    rows = scores.join(longest_runs, on="target_id", maintain_order="left")
    rows = rows.drop_nulls("longest_words")
    documents = rows["document_id"].to_numpy()
    n_words = rows["longest_words"].to_numpy()
    counts = []
    for attack in ONE_PASS:
        if attack not in rows.columns or not rows[attack].count():
            continue
        values = rows[attack].fill_null(-np.inf).to_numpy()
        orders = {
            "as_continued": rank_by_document(values, documents),
            "by_score": np.argsort(-values, kind="stable"),
        }
        count: dict[str, Any] = {"attack": attack}
        for name, order in orders.items():
            count[name] = {
                str(least): [count_chosen(order, n_words >= least, at) for at in AT]
                for least in LEAST_WORDS
            }
        counts.append(count)
    return counts


def count_by_document(
    scores: pl.DataFrame, longest_runs: pl.DataFrame
) -> list[dict[str, Any]]:
    """Return of each document how many windows come out, and the longest run of words."""
    rows = scores.join(longest_runs, on="target_id")
    title = pl.col("document_id").str.replace(r", passage \d+$", " (classics)")
    counts = rows.group_by(document_id=title, maintain_order=True).agg(
        windows=pl.len(),
        come_out=(pl.col("longest_words") >= VERBATIM_WORDS).sum(),
        longest_words=pl.col("longest_words").max(),
        median_score=pl.col("min_k_plus_plus_20_v1").median().round(3),
    )
    keys = ["come_out", "longest_words", "document_id"]
    return counts.sort(keys, descending=[True, True, False]).to_dicts()


def write_classics(path: Path) -> None:
    """Write the passages that are copied most: a model gives these back before others."""
    passages = pl.read_ndjson(CLASSICS)
    most_copied = passages.filter(pl.col("level") == "most copied")
    most_copied.select("document_id", "text").write_parquet(path)


def continue_all(model: str, corpus: Path, out: Path, **settings: Any) -> mia_batch.Run:
    """Read every text of a corpus and continue all of them; a finished run is read."""
    return mia_batch.audit(
        **nested(
            {
                "input": str(corpus),
                "model": model,
                "out": str(out),
                "continue_strongest": 1_000_000,
                "yardstick": "none",
                "report": False,
                **settings,
            }
        )
    )


def measure_choice(
    model: str, folder: Path, n_windows: int, *, is_manuals: bool = False
) -> dict[str, Any]:
    """Read and continue every window; return what comes out, and who would have chosen it."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus.parquet"
    if is_manuals:
        texts("windows", _COPIES).drop("member").write_parquet(corpus)
        runs = [continue_all(model, corpus, folder / "run")]
    else:
        write_public_corpus(corpus)
        write_classics(folder / "classics.parquet")
        cut = {"window_words": 128, "max_windows_per_document": n_windows}
        runs = [
            continue_all(model, corpus, folder / "run", **cut),
            continue_all(model, folder / "classics.parquet", folder / "run-classics"),
        ]
    longest_runs = pl.concat(map(find_longest_runs, runs))
    columns = ("target_id", "document_id", *ONE_PASS)
    scores = pl.concat(
        run["scores"].select(name for name in columns if name in run["scores"].columns)
        for run in runs
    )
    longest = longest_runs["longest_words"]
    histogram = longest.value_counts().sort("longest_words")
    return {
        "windows": longest.len(),
        "with_runs_of": {
            str(least): int((longest >= least).sum()) for least in LEAST_WORDS
        },
        "windows_by_longest_run": {str(n): count for n, count in histogram.iter_rows()},
        "documents": [] if is_manuals else count_by_document(scores, longest_runs),
        "attacks": measure_attacks(scores, longest_runs),
    }
