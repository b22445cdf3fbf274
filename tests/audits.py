"""Audits of the demo's model, and of two texts without a model."""

from __future__ import annotations

import polars as pl

import mia_batch
from tests.checkpoints import TEXTS


def audit_demo(demo, out, **settings):
    settings = {"input": str(demo.corpus), "out": str(out)} | settings
    return mia_batch.audit(config=demo.config, **settings)


def write_books(folder):
    """A folder of two texts, and a recording of continuations of them."""
    (folder / "books").mkdir(parents=True)
    rows = []
    for number, text in enumerate(TEXTS[:2]):
        words = text.split()[:40]
        (folder / "books" / f"{number}.txt").write_text(" ".join(words))
        rows += [(f"{number}.txt", " ".join(words[20 - skip :])) for skip in range(2)]
    recorded = pl.DataFrame(rows, schema=["document_id", "candidate"], orient="row")
    recorded.write_parquet(folder / "made.parquet")


def audit_books(folder, inputs, **settings):
    return mia_batch.audit(
        input=str(inputs / "books"),
        samples_from=str(inputs / "made.parquet"),
        out=folder,
        **settings,
    )
