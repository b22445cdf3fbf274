"""A run is a folder: where its tables lie, and how they are read."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from mia_batch import tables
from mia_batch.errors import RunFolderError
from mia_batch.evidence.parts import scan_features, scan_logprobs, scan_samples
from mia_batch.schemas import Blind, Findings, Metrics, Scores, Targets, Unscored, Verdicts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import polars as pl

__all__ = ["Run"]

_PARTS = {"samples": scan_samples, "features": scan_features, "logprobs": scan_logprobs}
_TABLES = {
    "targets": Targets,
    "blind": Blind,
    "blind_metrics": Metrics,
    "findings": Findings,
    "scores": Scores,
    "unscored": Unscored,
    "metrics": Metrics,
    "verdicts": Verdicts,
}


@dataclass(frozen=True, slots=True)
class Run:
    """A run's folder and its tables, each read from disk when it is asked for.

    Attributes
    ----------
    folder
        Where everything lies.
    """

    folder: Path

    def path(self, name: str) -> Path:
        """File of a table, or folder of its parts."""
        return self.folder / (name if name in _PARTS else f"{name}.parquet")

    def scan(self, name: str) -> pl.LazyFrame:
        """Open a table."""
        if name in _PARTS:
            return _PARTS[name](self.path(name))
        return tables.scan(self.path(name), _TABLES[name])

    @property
    def targets_path(self) -> Path:
        """The targets table."""
        return self.folder / "targets.parquet"

    @property
    def samples_folder(self) -> Path:
        """Parts of the samples table."""
        return self.folder / "samples"

    @property
    def features_folder(self) -> Path:
        """Parts of the features table, named as the parts of samples they were made from."""
        return self.folder / "features"

    @property
    def logprobs_folder(self) -> Path:
        """Parts of the logprobs table."""
        return self.folder / "logprobs"

    @property
    def scores_path(self) -> Path:
        """The scores table."""
        return self.folder / "scores.parquet"

    @property
    def unscored_path(self) -> Path:
        """The table of missing scores."""
        return self.folder / "unscored.parquet"

    @property
    def metrics_path(self) -> Path:
        """The metrics table."""
        return self.folder / "metrics.parquet"

    @property
    def verdicts_path(self) -> Path:
        """The verdicts table."""
        return self.folder / "verdicts.parquet"

    @property
    def manifest_path(self) -> Path:
        """What made the tables: settings, versions, model, input."""
        return self.folder / "run.json"

    @property
    def frequencies_path(self) -> Path:
        """How frequent tokens are in the reference corpus."""
        return self.folder / "frequencies.parquet"

    @property
    def journal_path(self) -> Path:
        """Answers of an endpoint as they came."""
        return self.folder / "journal.sqlite"

    @property
    def engine_log(self) -> Path:
        """What the engine's libraries printed."""
        return self.folder / "engine.log"

    @property
    def manifest(self) -> dict[str, Any]:
        """What made the tables; empty where the run has not begun.

        Raises
        ------
        RunFolderError
            If ``run.json`` is there but cannot be read.
        """
        try:
            manifest = json.loads(self.manifest_path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or error
            msg = f"{self.manifest_path} cannot be read ({cause}); choose another --out"
            raise RunFolderError(msg) from None
        if not isinstance(manifest, dict):
            msg = f"{self.manifest_path} is not a run's manifest; choose another --out"
            raise RunFolderError(msg)
        return manifest

    @property
    def targets(self) -> pl.DataFrame:
        """The targets table."""
        return tables.scan(self.targets_path, Targets).collect()

    @property
    def samples(self) -> pl.DataFrame:
        """The samples table, all parts, in the order of their blocks."""
        return scan_samples(self.samples_folder).collect()

    @property
    def features(self) -> pl.DataFrame:
        """The features table, all parts, in the order of their blocks."""
        return scan_features(self.features_folder).collect()

    @property
    def logprobs(self) -> pl.DataFrame:
        """The logprobs table, all parts, in the order of their blocks."""
        return scan_logprobs(self.logprobs_folder).collect()

    @property
    def scores(self) -> pl.DataFrame:
        """The scores table: one row per target, one column per attack."""
        return tables.scan(self.scores_path, Scores).collect()

    @property
    def unscored(self) -> pl.DataFrame:
        """The table of missing scores, with their reasons."""
        return tables.scan(self.unscored_path, Unscored).collect()

    @property
    def metrics(self) -> pl.DataFrame:
        """The metrics table; empty where the corpus has no labels."""
        return tables.scan(self.metrics_path, Metrics).collect()

    @property
    def verdicts(self) -> pl.DataFrame:
        """The verdicts table; empty where nothing is known to be outside the training data."""
        return tables.scan(self.verdicts_path, Verdicts).collect()

    @property
    def findings(self) -> pl.DataFrame:
        """The findings table: one row per check of the texts or of the run."""
        return self.scan("findings").collect()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder where it is missing, and hold it against other live runs.

        Temporary files of killed runs are removed.

        Yields
        ------
        None
            While this run holds the folder.

        Raises
        ------
        RunFolderError
            If the folder cannot be made or written, or another live run holds it.
        """
        folders = (
            self.folder,
            self.samples_folder,
            self.features_folder,
            self.logprobs_folder,
        )
        lock = FileLock(self.folder / ".lock", timeout=0)
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            for folder in folders:
                tables.remove_unfinished(folder)
        except Timeout:
            msg = f"{self.folder} is held by another live run; wait for it, or choose another --out"
            raise RunFolderError(msg) from None
        except OSError as error:
            msg = f"{self.folder} cannot be written ({error.strerror}); choose another --out"
            raise RunFolderError(msg) from None
        try:
            yield
        finally:
            lock.release()
