"""Audit what a language model was trained on.

``mia_batch.audit(input="corpus.parquet", model="MODEL")`` does what the command does
and returns a run whose tables are Polars frames. The stages can be imported one by one:
`mia_batch.corpus`, `mia_batch.targets`, `mia_batch.prompts`, `mia_batch.evidence`,
`mia_batch.features`, `mia_batch.attacks`, `mia_batch.metrics`, `mia_batch.inference`;
the compiled functions are in `mia_batch.kernels`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia_batch.errors import (
        CorpusError,
        EngineError,
        MiaBatchError,
        RequestError,
        RunFolderError,
        SettingsError,
    )
    from mia_batch.observer import Observer
    from mia_batch.pipeline import Run, audit, compare

__all__ = [
    "CorpusError",
    "EngineError",
    "MiaBatchError",
    "Observer",
    "RequestError",
    "Run",
    "RunFolderError",
    "SettingsError",
    "audit",
    "compare",
]


def __getattr__(name: str) -> object:
    """Import public names at use, so that ``import mia_batch`` costs next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = (
        "errors"
        if name.endswith("Error")
        else "observer"
        if name == "Observer"
        else "pipeline"
    )
    return getattr(import_module(f"mia_batch.{home}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
