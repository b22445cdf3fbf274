"""A small corpus, audited once by a real model."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import mia_batch
from mia_batch.observer import Observer
from tests.checkpoints import TEXTS


class Listener(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def stage(self, sentence: str) -> None:
        self.sentences.append(sentence)


def documents(n: int = 8) -> pl.DataFrame:
    """Labelled texts of forty words; one is null, one too short."""
    texts = [" ".join(text.split()[:40]) for text in TEXTS[: n - 2]]
    return pl.DataFrame(
        {
            "document_id": [f"d{number}" for number in range(n)],
            "text": [*texts, None, "word"],
            "member": [number % 2 == 0 for number in range(n)],
            "shelf": list(range(n)),
        }
    )


@pytest.fixture(scope="session")
def small_audit(checkpoint, tmp_path_factory):
    """The settings of a finished audit, and its run."""
    folder = tmp_path_factory.mktemp("audit")
    documents().write_parquet(folder / "corpus.parquet")
    settings: dict[str, Any] = {
        "input": str(folder / "corpus.parquet"),
        "model": str(checkpoint),
        "engine": "transformers",
        "preset": "matched",
        "samples": 3,
        "out": str(folder / "run"),
    }
    return settings, mia_batch.audit(**settings)
