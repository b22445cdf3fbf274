"""Inversion of the embeddings of small models, on texts of English books.

A decoder from scratch learns from auxiliary texts and attacks the others; passages of
consecutive texts are on one side. Its micro F1 is set beside the auxiliary text of the
nearest embedding, with an interval of the paired difference, and the decoder that gets
the embedding of another text beside the one that gets none. Embedders are a model that
was trained on the texts, and one of random weights: the mean of its states still tells
which words there were.

    python -m benches.inversion [fragments] [sentences] [--texts 4000] [--epochs 9]
    [--keep FOLDER]

``fragments`` are runs of the commonest words, which a decoder learns in minutes;
``sentences`` are whole, and take an hour.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
from benches.pairs import DATA
from benches.power import train_model
from benches.results import append_results, machine, versions

from mia_batch.extras.privacy.inversion.training import Inverted, invert
from mia_batch.extras.sets.demo import DemoSettings, new_model, save, train_tokenizer
from mia_batch.observer import Observer
from mia_batch.recipes import RECIPES

BOOKS = (
    *(
        "alice_in_wonderland",
        "dracula",
        "frankenstein",
        "great_expectations",
        "jane_eyre",
    ),
    *("moby_dick", "republic", "sherlock_holmes", "time_machine", "walden"),
)
N_COMMON = 120
WORDS = {"fragments": range(6, 10), "sentences": range(4, 17)}
PASSAGE = 20  # texts of a group
SHARE = 0.7  # a decoder that knows nothing needs more than the usual 0.4 of few texts
SIZE = {"hidden": 128, "layers": 2, "vocabulary": 500, "context": 64}


def fragments(text: str) -> list[str]:
    """Cut a book into runs of its commonest words."""
    words = re.findall(r"[a-z]+", text.lower())
    common = {word for word, _ in Counter(words).most_common(N_COMMON)}
    return [
        " ".join(run)
        for is_common, run in groupby(words, common.__contains__)
        if is_common
    ]


def sentences(text: str) -> list[str]:
    """Cut a book into sentences."""
    return re.split(r"(?<=[.!?])\s+", " ".join(text.split()))


CUTS = {"fragments": fragments, "sentences": sentences}


def read_books() -> dict[str, str]:
    return {book: (DATA / "books" / f"{book}.txt").read_text("utf-8") for book in BOOKS}


def texts_of_books(what: str, n: int, books: Mapping[str, str]) -> pl.DataFrame:
    """Draw passages of consecutive texts that differ; a passage is a group."""
    passages: list[tuple[str, list[str]]] = []
    known: set[str] = set()
    for book, text in books.items():
        cut = CUTS[what](text)
        found = [
            each for each in dict.fromkeys(cut) if len(each.split()) in WORDS[what]
        ]
        found = [each for each in found if each not in known]
        known.update(found)
        starts = range(0, len(found) - PASSAGE + 1, PASSAGE)
        passages += [
            (f"{book} {start}", found[start : start + PASSAGE]) for start in starts
        ]
    Random(0).shuffle(passages)
    drawn = passages[: n // PASSAGE]
    return pl.DataFrame(drawn, schema=["group", "text"], orient="row").explode("text")


def trained(folder: Path, texts: list[str]) -> None:
    """Train a model on the texts, in one pass."""
    train_model(folder, texts, texts, SIZE)


def random(folder: Path, texts: list[str]) -> None:
    """Make a model that has seen nothing."""
    settings = replace(DemoSettings(), seed=1, **SIZE)
    tokenizer = train_tokenizer(texts, settings.vocabulary)
    save(
        new_model(tokenizer, settings, hidden=settings.hidden, layers=1),
        tokenizer,
        folder,
    )


EMBEDDERS = {"trained": trained, "random": random}


def measured(inverted: Inverted, embedder: str, seconds: float) -> dict[str, Any]:
    """All figures of an inversion, and those of tokens printed."""
    rows = inverted.figures
    shown = rows.filter(unit="tokens").select(
        "method", "versus", "metric", "value", "low", "high"
    )
    with pl.Config(tbl_rows=40, float_precision=3):
        print(shown)
    print(f"{embedder}, {seconds:.0f} s: {inverted.sentence}", flush=True)
    kept = rows.select(
        *(
            "method",
            "versus",
            "unit",
            "metric",
            "value",
            "low",
            "high",
            "n_texts",
            "n_clusters",
        )
    )
    return {"embedder": embedder, "seconds": round(seconds), "figures": kept.to_dicts()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", default=["fragments"])
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--embedders", nargs="+", default=["random", "trained"])
    parser.add_argument(
        "--keep", type=Path, help="folder for texts, models and results"
    )
    given = parser.parse_args()
    if not DATA.is_dir():
        print("skipped: no real text in ../shared/data")
        return
    print(machine())
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for what in given.what:
            folder = (given.keep or Path(scratch)) / what
            folder.mkdir(parents=True, exist_ok=True)
            texts = texts_of_books(what, given.texts, read_books())
            texts.write_parquet(folder / "texts.parquet")
            for name in given.embedders:
                if not (folder / name).exists():
                    EMBEDDERS[name](folder / name, texts["text"].to_list())
                began = time.monotonic()
                inverted = invert(
                    data=folder / "texts.parquet",
                    embedder=str(folder / name),
                    out=folder / f"inverted-{name}",
                    recipe=replace(
                        RECIPES["inverter"], epochs=given.epochs, held_out=0.0
                    ),
                    share=SHARE,
                    observer=_Printer(),
                )
                seconds = time.monotonic() - began
                rows.append({"what": what} | measured(inverted, name, seconds))
    figures = {"texts": given.texts, "epochs": given.epochs, "rows": rows}
    append_results("inversion", figures | {"versions": versions("mia-batch", "torch")})


class _Printer(Observer):
    def stage(self, sentence: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {sentence}", flush=True)


if __name__ == "__main__":
    main()
