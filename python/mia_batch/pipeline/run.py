"""A run is a folder: where its tables lie, how they are read, and ``run.json``, what made them."""

from __future__ import annotations

import json
import platform
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.evidence.parts import scan_parts
from mia_batch.rarity import Rarity
from mia_batch.schemas import (
    Blind,
    Features,
    Findings,
    LogProbs,
    Metrics,
    Prompts,
    Samples,
    Scores,
    Targets,
    Unscored,
    Verdicts,
)
from mia_batch.tables import remove_unfinished, scan, write_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import dataframely as dy
    import polars as pl

__all__ = ["PARTS", "TABLES", "Manifest", "Run"]

_FORMAT = 2
_PACKAGES = ("mia-batch", "polars", "numpy", "torch", "transformers", "tokenizers", "httpx")

TABLES: dict[str, type[dy.Schema]] = {
    "targets": Targets,
    "findings": Findings,
    "blind": Blind,
    "blind_metrics": Metrics,
    "rarity": Rarity,
    "scores": Scores,
    "unscored": Unscored,
    "metrics": Metrics,
    "verdicts": Verdicts,
}
"""Tables that are one file each."""

PARTS: dict[str, type[dy.Schema]] = {
    "prompts": Prompts,
    "samples": Samples,
    "features": Features,
    "logprobs": LogProbs,
}
"""Tables that are folders of parts."""


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
        return self.folder / (name if name in PARTS else f"{name}.parquet")

    def scan(self, name: str) -> pl.LazyFrame:
        """Open one of ``TABLES``, or all parts of one of ``PARTS`` in the order of their blocks."""
        if name in PARTS:
            return scan_parts(self.path(name), PARTS[name])
        return scan(self.path(name), TABLES[name])

    @property
    def engine_log(self) -> Path:
        """What the engines' libraries printed."""
        return self.folder / "engine.log"

    @property
    def manifest(self) -> Manifest:
        """What made the tables.

        Raises
        ------
        RunFolderError
            If there is no run here, or ``run.json`` cannot be read.
        """
        found = Manifest.of(self)
        if found is None:
            msg = (
                f"{self.folder} holds no run: there is no run.json in it; give the folder of a run"
            )
            raise RunFolderError(msg)
        return found

    @property
    def targets(self) -> pl.DataFrame:
        """The targets table."""
        return self.scan("targets").collect()

    @property
    def prompts(self) -> pl.DataFrame:
        """The prompts table."""
        return self.scan("prompts").collect()

    @property
    def samples(self) -> pl.DataFrame:
        """The samples table."""
        return self.scan("samples").collect()

    @property
    def features(self) -> pl.DataFrame:
        """The features table."""
        return self.scan("features").collect()

    @property
    def logprobs(self) -> pl.DataFrame:
        """The logprobs table."""
        return self.scan("logprobs").collect()

    @property
    def scores(self) -> pl.DataFrame:
        """The scores table: one row per target, one column per attack."""
        return self.scan("scores").collect()

    @property
    def unscored(self) -> pl.DataFrame:
        """The table of missing scores, with their reasons."""
        return self.scan("unscored").collect()

    @property
    def metrics(self) -> pl.DataFrame:
        """The metrics table; empty where the corpus has no labels."""
        return self.scan("metrics").collect()

    @property
    def verdicts(self) -> pl.DataFrame:
        """The verdicts table; empty where nothing is known to be outside the training data."""
        return self.scan("verdicts").collect()

    @property
    def findings(self) -> pl.DataFrame:
        """The findings table: what was checked, of the texts and of the run."""
        return self.scan("findings").collect()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder where it is missing, and hold it against other live runs.

        Temporary files of killed runs are removed. Raises `RunFolderError` if the folder cannot be
        made or written, or another live run holds it.
        """
        folders = (self.folder, *map(self.path, PARTS))
        lock = FileLock(self.folder / ".lock", timeout=0)
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            for folder in folders:
                remove_unfinished(folder)
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


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The contents of ``run.json``: what made a run's tables.

    Attributes
    ----------
    evidence
        What changes a sample, by name: settings as they resolved, and digests.
    engine_choice
        Why the engine was taken.
    models
        By name in the run: source, revision and digest of each model, its tokenizer's digest, and
        what gave its evidence.
    engines
        By kind of evidence and model, what the engine said of itself when it last started.
    settings
        All settings of the latest request.
    input
        Files and number of documents of the corpus.
    targets
        ``total``, and by reason how many targets cannot be sampled.
    passes
        Forward passes that gave log-probabilities, by model and view.
    plan
        What the run was to decide and how, with its SHA-256, as it was before the first score.
    made
        By stage, what its tables were made from.
    failed
        ``targets`` that lack evidence although they could be asked about, of how many (``of``), and
        their ``reasons`` with counts; empty until there is evidence.
    """

    format: int = _FORMAT
    evidence: dict[str, Any] = field(default_factory=dict)
    engine_choice: str = ""
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    engines: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    input: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> Manifest | None:
        """Read a run's manifest; None where the run has not begun."""
        path = run.folder / "run.json"
        try:
            stored = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or error
            msg = f"{path} cannot be read ({cause}); give another folder"
            raise RunFolderError(msg) from None
        known = [item.name for item in fields(cls)]
        if not isinstance(stored, dict) or "evidence" not in stored:
            msg = f"{path} is not a run's manifest; give another folder"
            raise RunFolderError(msg)
        if (made_by := stored.get("format", 1)) != _FORMAT:
            msg = (
                f"{run.folder} was made by another version of mia-batch (format {made_by} of its "
                f"tables, this version has {_FORMAT}); go on with that version, or choose another "
                "--out: a folder of its samples can be given as --samples-from"
            )
            raise RunFolderError(msg)
        return cls(**{name: stored[name] for name in known if name in stored})

    def write(self, run: Run) -> None:
        """Store the manifest in the run's folder."""
        text = json.dumps(asdict(self) | {"versions": _versions()}, indent=2, ensure_ascii=False)
        write_text(run.folder / "run.json", text + "\n")

    def agree(self, wanted: Mapping[str, Any], run: Run) -> None:
        """Record values that change evidence; `SettingsError` names all that differ from before."""
        _agree(self.evidence, wanted, run)

    def agree_model(self, name: str, wanted: Mapping[str, Any], run: Run) -> None:
        """Record what identifies a model, likewise."""
        model = self.models.setdefault(name, {})
        _agree(model, wanted, run, of=f" of model {name!r}")


def _agree(known: dict[str, Any], wanted: Mapping[str, Any], run: Run, of: str = "") -> None:
    differing = [
        f"{name!r}{of} was {known[name]!r}, is now {value!r}"
        for name, value in wanted.items()
        if name in known and not _same(known[name], value)
    ]
    if differing:
        msg = (
            f"{run.folder} holds evidence made with other settings: {'; '.join(differing)}; "
            "give the old values, or choose another --out"
        )
        raise SettingsError(msg)
    known |= wanted


def _same(old: object, new: object) -> bool:
    """Tell whether two values mean the same; of models, the digest counts where both have one."""
    if isinstance(old, dict) and isinstance(new, dict) and old.get("digest") and new.get("digest"):
        return bool(old["digest"] == new["digest"])
    return old == new


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions
