"""The folder of a set: there whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from mia_batch.building.summary import as_markdown
from mia_batch.errors import RunFolderError
from mia_batch.schemas import BuiltTests, BuiltTexts, ThrownAway
from mia_batch.tables import sink, write_text
from mia_batch.tables.files import sync_folder, temporary_path
from mia_batch.tables.system import system_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import polars as pl

    from mia_batch.building.one_length import OneLength

__all__ = ["look", "write"]

_SUMMARY = "summary.json"


def look(
    place: Path, request: dict[str, Any], documents: pl.DataFrame
) -> tuple[str, dict[str, Any] | None]:
    """Name a request by its SHA-256; return the summary as well where its sets are there."""
    content = sha256(json.dumps(request, sort_keys=True).encode())
    for row in documents.iter_rows():
        content.update(json.dumps(row, default=str).encode())
    key = content.hexdigest()
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return key, None
    try:
        summary = json.loads((place / _SUMMARY).read_text("utf-8"))
        known = summary["request"]
    except (OSError, ValueError, KeyError, TypeError):
        msg = f"{place} is there already and holds no set that was built here; choose another name"
        raise RunFolderError(msg) from None
    if known != key:
        msg = f"{place} holds sets of other documents or settings; delete it or choose another name"
        raise RunFolderError(msg)
    return key, summary


def write(
    place: Path,
    made: Sequence[OneLength],
    tests: pl.DataFrame,
    away: pl.DataFrame,
    summary: dict[str, Any],
) -> None:
    """Write everything beside the folder's name, then give it that name."""
    with system_errors(place), _alone(place):
        work = temporary_path(place)
        work.mkdir()
        try:
            for each in made:
                for built in each.built:
                    if built.texts.height:
                        name = f"{built.setting}-{each.length}.parquet"
                        sink(built.texts, work / name, BuiltTexts)
            sink(tests, work / "tests.parquet", BuiltTests)
            sink(away, work / "thrown-away.parquet", ThrownAway)
            write_text(work / "summary.md", as_markdown(summary))
            write_text(work / _SUMMARY, json.dumps(summary, indent=2) + "\n")
            work.replace(place)  # a folder that holds something is not replaced
            sync_folder(place.parent)
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Let no other process write here, and remove what a killed one left."""
    place.parent.mkdir(parents=True, exist_ok=True)
    parent = os.open(place.parent, os.O_RDONLY)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)
        for left in place.parent.glob(f".{place.name}.*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(parent)
