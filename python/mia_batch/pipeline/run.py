"""A run is a folder: where its tables lie and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import dataframely as dy
import polars as pl
from filelock import FileLock

from mia_batch import schemas
from mia_batch.errors import RequestError, RunFolderError
from mia_batch.evidence.parts import Shard, scan_parts
from mia_batch.inference.findings import earlier_findings
from mia_batch.kernels import Rarity
from mia_batch.pipeline.manifest import Manifest, alone, as_shard
from mia_batch.places import fetched, is_url
from mia_batch.tables import remove_unfinished, scan

TABLES: dict[str, type[dy.Schema]] = {
    "targets": schemas.Targets,
    "set_aside": schemas.SetAside,
    "findings": schemas.Findings,
    "blind": schemas.Blind,
    "blind_metrics": schemas.Metrics,
    "rarity": Rarity,
    "scores": schemas.Scores,
    "unscored": schemas.Unscored,
    "metrics": schemas.Metrics,
    "verdicts": schemas.Verdicts,
    "extraction": schemas.Extraction,
    "extracted_documents": schemas.ExtractedDocuments,
    "controls": schemas.Controls,
    "rollup": schemas.Rollup,
    "curves": schemas.Curves,
    "perplexities": schemas.Perplexities,
}
"""Tables that are one file each."""

PARTS: dict[str, type[dy.Schema]] = {
    "prompts": schemas.Prompts,
    "samples": schemas.Samples,
    "features": schemas.Features,
    "logprobs": schemas.LogProbs,
}
"""Tables that are folders of parts."""


@dataclass(frozen=True, slots=True, init=False)
class Run:
    """A run's folder and its tables, each read from disk when it is asked for.

    Parameters
    ----------
    folder
        A folder, or an address such as ``s3://bucket/run``, whose files are fetched then.

    Attributes
    ----------
    folder
        Where everything lies.
    """

    folder: Path

    def __init__(self, folder: Path | str) -> None:
        object.__setattr__(self, "folder", fetched(folder))
        if is_url(folder):
            for name in PARTS:  # a store has no empty folders
                self.path(name).mkdir(exist_ok=True)

    def path(self, name: str) -> Path:
        """File of a table, or folder of its parts."""
        return self.folder / (name if name in PARTS else f"{name}.parquet")

    def scan(self, name: str) -> pl.LazyFrame:
        """Open one of ``TABLES``, or all parts of one of ``PARTS`` in the order of their blocks.

        Raises `RequestError` for any other name, `RunFolderError` if the table cannot be read.
        """
        if name not in {*TABLES, *PARTS}:
            raise RequestError(
                f"a run has no table {name!r}; its tables are {', '.join([*TABLES, *PARTS])}"
            )
        if name in PARTS:
            return scan_parts(self.path(name), PARTS[name])
        return scan(self.path(name), TABLES[name])

    @property
    def engine_log(self) -> Path:
        """What the engines' libraries printed."""
        return self.folder / "engine.log"

    @property
    def manifest(self) -> Manifest:
        """What made the tables; see `check`."""
        return self.check()

    def check(self) -> Manifest:
        """Return what made the tables.

        Raises `RunFolderError` if there is no run here, or ``run.json`` cannot be read.
        """
        found = Manifest.of(self.folder)
        if found is None:
            raise RunFolderError(
                f"{self.folder} holds no run: there is no run.json in it; give the folder of a run"
            )
        return found

    def __getitem__(self, name: str) -> pl.DataFrame:
        """Read a table whole, such as ``run["scores"]``.

        The findings end with those about earlier runs, which stand in ``run.json``: what lies
        beside a run changes none of its tables. ``set_aside`` is empty where all files were read.
        """
        if name == "set_aside" and not self.path(name).exists():
            return schemas.SetAside.create_empty()
        table = self.scan(name).collect()
        if name == "findings":
            return pl.concat([table, earlier_findings(self.manifest.earlier)])
        return table

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder where it is missing, and hold it against other live runs.

        Temporary files of killed runs are removed. Raises `RunFolderError` if the folder cannot be
        made or written, or another live run or shard holds it.
        """
        with ExitStack() as closing:
            with self._made():
                closing.enter_context(alone(self.folder))
                for folder in self._folders:
                    remove_unfinished(folder)
            yield

    @contextmanager
    def shared(self, shard: Shard, say: Callable[[str], None]) -> Iterator[FileLock]:
        """Make the folder where it is missing, and hold it as one of its shards; see `as_shard`."""
        with ExitStack() as closing:
            with self._made():
                turn = closing.enter_context(as_shard(self.folder, shard, say))
            yield turn

    @property
    def _folders(self) -> list[Path]:
        return [self.folder, *map(self.path, PARTS)]

    @contextmanager
    def _made(self) -> Iterator[None]:
        try:
            for folder in self._folders:
                folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise RunFolderError(
                f"{self.folder} cannot be written ({error.strerror}); choose another --out"
            ) from None
