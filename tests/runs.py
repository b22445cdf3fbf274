"""Finished runs that all workers of pytest share: each is made once, then only read or copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from filelock import FileLock

import mia_batch
from tests.audits import audit_books, write_books

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import polars as pl


def made_once(folder: Path, name: str, make: Callable[[Path], object]) -> Path:
    """Let the first worker that asks make a folder; the others wait until it is whole."""
    made, done = folder / name, folder / f"{name}.done"
    with FileLock(folder / f"{name}.lock"):
        if not done.exists():
            made.mkdir()
            make(made)
            done.touch()
    return made


def recorded_books(folder: Path) -> None:
    """Two books, a recording of continuations of them, and its audit in ``run``."""
    write_books(folder)
    audit_books(folder / "run", folder)


def settings_of_texts(folder: Path, checkpoint: Path) -> dict[str, Any]:
    """Of an audit of labelled texts by a model on this machine."""
    return {
        "input": str(folder / "corpus.parquet"),
        "model": str(checkpoint),
        "engine": "transformers",
        "preset": "matched",
        "samples": 3,
        "out": str(folder / "run"),
    }


def audited_texts(folder: Path, checkpoint: Path, texts: pl.DataFrame) -> None:
    texts.write_parquet(folder / "corpus.parquet")
    mia_batch.audit(**settings_of_texts(folder, checkpoint))
