"""Tasks of GLUE by name (Wang et al. 2018, arXiv:1804.07461), as PrivLM-Bench takes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GLUE", "glue_rows", "joined"]

GLUE = "glue:"
"""What the name of a task begins with where a path may stand."""
_REPOSITORY = "nyu-mll/glue"
_BETWEEN = " [SEP] "
_TEXTS = {
    "cola": ("sentence",),
    "mnli": ("premise", "hypothesis"),
    "mrpc": ("sentence1", "sentence2"),
    "qnli": ("question", "sentence"),
    "qqp": ("question1", "question2"),
    "rte": ("sentence1", "sentence2"),
    "sst2": ("sentence",),
    "wnli": ("sentence1", "sentence2"),
}
"""Columns of the texts of each task that has classes; STS-B has none, AX no training texts."""


def glue_rows(name: str) -> pl.DataFrame:
    """Read the training texts of a task, such as ``glue:sst2``, as `joined` has them.

    They come from the hub, or from what was fetched before.

    Raises `CorpusError` if there is no such task, or it cannot be fetched.
    """
    from huggingface_hub import snapshot_download

    task = name.removeprefix(GLUE)
    if task not in _TEXTS:
        msg = f"GLUE has no task {task!r} with classes; give one of {', '.join(_TEXTS)}"
        raise CorpusError(msg)
    wanted = f"{task}/train-*.parquet"
    try:
        folder = snapshot_download(_REPOSITORY, repo_type="dataset", allow_patterns=wanted)
    except (OSError, ValueError) as error:  # offline, or nothing there
        raise CorpusError(_not_there(name)) from error
    files = sorted(Path(folder).glob(wanted))
    if not files:  # offline, where another task was fetched
        raise CorpusError(_not_there(name))
    return joined(pl.read_parquet(files), _TEXTS[task])


def _not_there(name: str) -> str:
    return (
        f"{name} was not fetched before, and cannot be now ({_REPOSITORY} on the hub); fetch it "
        "where there is a network, or give its texts as a file"
    )


def joined(rows: pl.DataFrame, texts: Sequence[str]) -> pl.DataFrame:
    """Put pairs of texts together with ``[SEP]`` between them, as column ``text``.

    Labels stay numbers, each of which is one token in most models.
    """
    return rows.with_columns(text=pl.concat_str(texts, separator=_BETWEEN))
