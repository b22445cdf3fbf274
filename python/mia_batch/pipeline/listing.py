"""The runs of a folder, each with its answer or how far it has come."""

from datetime import UTC, datetime
from heapq import nlargest
from pathlib import Path
from typing import NamedTuple

import polars as pl

from mia_batch.errors import MiaBatchError, RunFolderError, describe_error
from mia_batch.pipeline.folder import PARTS, Manifest, RunFolder, reading
from mia_batch.pipeline.results import build_answer

_MOST_RUNS = 200
_ANSWERS = tuple(name for name in PARTS if name in ("samples", "logprobs"))


class ListedRun(NamedTuple):
    """A run of a folder, when it was last written, and its answer or why there is none."""

    folder: Path
    written: datetime  # of run.json, UTC
    answer: str
    is_live: bool


def list_runs(folder: Path) -> list[ListedRun]:
    """List the runs right below a folder, those last written first, at most 200."""
    files = [path for path in folder.glob("*/run.json") if path.is_file()]
    newest = nlargest(_MOST_RUNS, files, key=lambda path: path.stat().st_mtime)
    return [_describe(path) for path in newest]


def _describe(file: Path) -> ListedRun:
    run = RunFolder(file.parent)
    written = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    is_live = False
    try:
        Manifest.load(run.folder)  # says what is wrong with it
        answer = _read_answer(run)
        if answer is None:
            is_live = _is_live(run)
            answer = _describe_progress(run, is_live=is_live)
    except MiaBatchError as error:
        answer = str(error)
    except Exception as error:  # one damaged run hides no other
        answer = (
            f"cannot be read ({describe_error(error)}); `mia-batch verify` says why"
        )
    return ListedRun(run.folder, written, answer, is_live)


def _read_answer(run: RunFolder) -> str | None:
    """Return the answer; None of a run that is not finished."""
    try:
        return build_answer(run)
    except RunFolderError:
        return None


def _is_live(run: RunFolder) -> bool:
    try:
        with reading(run.folder):
            return False
    except RunFolderError:
        return True


def _describe_progress(run: RunFolder, *, is_live: bool) -> str:
    state = "running" if is_live else "stopped; its command goes on"
    n_answers = sum(_count_rows(run.path(name)) for name in _ANSWERS)
    return f"{state}; {n_answers:,} answers are stored"


def _count_rows(folder: Path) -> int:
    if next(folder.glob("*.parquet"), None) is None:
        return 0
    count = pl.scan_parquet(folder / "*.parquet").select(pl.len())
    return int(count.collect(engine="streaming").item())
