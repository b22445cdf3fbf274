"""A small corpus, audited once by a real model."""

from __future__ import annotations

import polars as pl
import pytest

from mia_batch.observer import Observer
from mia_batch.pipeline import Run
from tests.checkpoints import TEXTS
from tests.runs import audited_texts, made_once, settings_of_texts


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
def small_audit(checkpoint, shared_folder):
    """The settings of a finished audit, and its run, which is only read."""
    folder = made_once(
        shared_folder, "audited texts", lambda at: audited_texts(at, checkpoint, documents())
    )
    return settings_of_texts(folder, checkpoint), Run(folder / "run")
