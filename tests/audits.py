"""Audits of the demo's model, and of two texts without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

import mia_batch
from mia_batch import pipeline
from mia_batch.pipeline import paraphrasing
from mia_batch.settings import nested
from tests.checkpoints import TEXTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mia_batch import Run


def audit(**settings: Any) -> Run:
    """Audit with settings by name, as the command takes them."""
    return mia_batch.audit(**nested(settings))


def rescore(folder: Path, **settings: Any) -> Run:
    return pipeline.rescore(folder, **nested(settings))


def paraphrase(**settings: Any) -> pl.DataFrame:
    return paraphrasing.paraphrase(**nested(settings))


def plan_paraphrasing(**settings: Any) -> Iterator[tuple[str, str]]:
    return paraphrasing.plan_paraphrasing(**nested(settings))


def audit_demo(demo, out, **settings):
    settings = {"input": str(demo.corpus), "out": str(out)} | settings
    return audit(config=demo.config, **settings)


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
    return audit(
        input=str(inputs / "books"),
        samples_from=str(inputs / "made.parquet"),
        out=folder,
        **settings,
    )
