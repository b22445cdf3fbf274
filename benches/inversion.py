"""Inversion of the embeddings of small models, on sentences of English books.

A decoder from scratch learns from auxiliary sentences and attacks the others; passages of
consecutive sentences are on one side. Its micro F1 is set beside the auxiliary sentence of the
nearest embedding, with an interval of the paired difference, and the decoder that gets the
embedding of another sentence beside the one that gets none. The same with a model whose weights
are random: the mean of its states still tells which words there were.

    python -m benches.inversion [--sentences 12000] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
from benches.pairs import DATA
from benches.power import train_model
from benches.results import append_results, machine, versions

from mia_batch.demo.settings import DemoSettings
from mia_batch.demo.train import new_model, save, train_tokenizer
from mia_batch.inversion.inverting import FROM_SCRATCH, Inverted, invert
from mia_batch.observer import Observer

BOOKS = (
    *("alice_in_wonderland", "dracula", "frankenstein", "great_expectations", "jane_eyre"),
    *("moby_dick", "republic", "sherlock_holmes", "time_machine", "walden"),
)
WORDS = range(4, 17)  # of a sentence
PASSAGE = 20  # sentences of a group
SIZE = {"hidden": 128, "layers": 2, "vocabulary": 2000, "context": 128}


def sentences(n: int) -> pl.DataFrame:
    """Draw passages of consecutive sentences; a passage is a group."""
    passages = []
    for book in BOOKS:
        text = " ".join((DATA / "books" / f"{book}.txt").read_text("utf-8").split())
        found = [each for each in re.split(r"(?<=[.!?])\s+", text) if len(each.split()) in WORDS]
        starts = range(0, len(found) - PASSAGE + 1, PASSAGE)
        passages += [(f"{book} {start}", found[start : start + PASSAGE]) for start in starts]
    Random(0).shuffle(passages)
    return pl.DataFrame(passages[: n // PASSAGE], schema=["group", "text"], orient="row").explode(
        "text"
    )


def make_embedders(folder: Path, texts: list[str]) -> list[str]:
    """Train a model on the sentences, in one pass; and one that has seen nothing."""
    train_model(folder / "trained", texts, texts, SIZE)
    settings = replace(DemoSettings(), seed=1, **SIZE)
    tokenizer = train_tokenizer(texts, settings.vocabulary)
    model = new_model(tokenizer, settings, hidden=settings.hidden, layers=settings.layers)
    save(model, tokenizer, folder / "random")
    return ["trained", "random"]


def measured(inverted: Inverted, embedder: str, seconds: float) -> dict[str, Any]:
    """Rows of figures: micro F1 and exact matches of each method, and differences of F1."""
    rows = inverted.figures.filter(pl.col("metric").is_in(["f1", "precision", "recall", "exact"]))
    shown = rows.filter(unit="tokens").select("method", "versus", "metric", "value", "low", "high")
    with pl.Config(tbl_rows=40, float_precision=3):
        print(shown)
    print(f"{embedder}, {seconds:.0f} s: {inverted.sentence}", flush=True)
    kept = rows.select(
        *("method", "versus", "unit", "metric", "value", "low", "high", "n_texts", "n_clusters")
    )
    return {"embedder": embedder, "seconds": round(seconds), "figures": kept.to_dicts()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sentences", type=int, default=12_000)
    parser.add_argument("--epochs", type=int, default=FROM_SCRATCH.epochs)
    parser.add_argument("--keep", type=Path, help="folder for texts, models and results")
    parser.add_argument("embedders", nargs="*", default=["trained", "random"])
    given = parser.parse_args()
    if not DATA.is_dir():
        print("skipped: no real text in ../shared/data")
        return
    print(machine())
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        data = sentences(given.sentences)
        data.write_parquet(folder / "sentences.parquet")
        if not (folder / "random").exists():
            make_embedders(folder, data["text"].to_list())
        for name in given.embedders:
            began = time.monotonic()
            inverted = invert(
                data=folder / "sentences.parquet",
                embedder=str(folder / name),
                out=folder / f"inverted-{name}",
                recipe=replace(FROM_SCRATCH, epochs=given.epochs),
                observer=_Printer(),
            )
            rows.append(measured(inverted, name, time.monotonic() - began))
            rows_of_texts = inverted.texts.filter(method="inverter")
            print(*rows_of_texts.select("text", "recovered").head(8).iter_rows(), sep="\n")
    figures = {"sentences": given.sentences, "epochs": given.epochs, "rows": rows}
    append_results("inversion", figures | {"versions": versions("mia-batch", "torch")})


class _Printer(Observer):
    def stage(self, sentence: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {sentence}", flush=True)


if __name__ == "__main__":
    main()
