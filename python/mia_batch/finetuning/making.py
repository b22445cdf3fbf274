"""Makes a model once: what it is made of names it, and a killed making goes on."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl
from filelock import FileLock, Timeout

from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.finetuning import process
from mia_batch.finetuning.base import check_base
from mia_batch.models.identity import identify_model
from mia_batch.tables import digest
from mia_batch.tables.files import put_copy, sync_folder
from mia_batch.tables.system import system_errors

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from mia_batch.finetuning.recipe import Recipe

__all__ = ["TRAINING_LOCK", "Made", "Making", "made_of"]

TRAINING_LOCK = ".training.lock"
"""File of the work folder that a training holds, which may live on for a moment."""
_RECORD = "training.json"
_SECONDS_FOR_OTHERS = 5.0
_SECONDS_TO_END = 10.0  # of the training of a killed process


@dataclass(frozen=True, kw_only=True)  # without slots: digests are kept
class Making:
    """What a model is made of, and the function that trains it.

    ``trainer`` is called in a process of its own with the folder in which `write` has left what is
    learnt, base, revision and recipe. It leaves the model in the folder's ``made``, and returns
    what `mia_batch.finetuning.training.fit` does.
    """

    trainer: ClassVar = "mia_batch.finetuning.training:train"
    base: str
    revision: str | None
    texts: Sequence[str]
    recipe: Recipe
    targets: Sequence[str | None] = ()
    """What is said of each text, such as its label; None, and none at all: the text is learnt."""

    @cached_property
    def made_from(self) -> dict[str, Any]:
        """Digest of the base, SHA-256 of the texts, and the recipe; equal: the same model."""
        texts = sha256()
        for text in chain(self.texts, self.targets if any(self.targets) else ()):
            content = b"" if text is None else text.encode()
            texts.update(len(content).to_bytes(8, "little") + content)
        return {
            "base": identify_model(self.base, self.revision, "any").digest,
            "texts": texts.hexdigest(),
            "recipe": self.recipe.described(),
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that, in hexadecimal."""
        return sha256(json.dumps(self.made_from, sort_keys=True).encode()).hexdigest()

    def write(self, work: Path) -> None:
        """Write what is learnt."""
        targets = pl.Series(self.targets or [None] * len(self.texts), dtype=pl.String)
        learnt = pl.DataFrame({"text": self.texts}).with_columns(target=targets)
        learnt.write_parquet(work / "texts.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A model that was made.

    Attributes
    ----------
    path
        Its folder.
    losses
        A row an epoch: ``epoch``, ``loss`` (nats a token), and ``held_out_loss`` where texts were
        held out.
    privacy
        What a training with differential privacy comes to: ``epsilon``, ``delta``,
        ``noise_multiplier``, ``clip``, ``sampling_rate`` and ``steps``; else None.
    is_new
        Whether it was trained just now.
    """

    path: Path
    losses: list[dict[str, float]]
    privacy: dict[str, Any] | None
    is_new: bool


def made_of(
    making: Making,
    path: Path,
    say: Callable[[str], None],
    start: Callable[[Path, Path], subprocess.Popen[str]] | None = None,
) -> Made:
    """Return the model at ``path``, trained first where it is not there.

    Training goes on from the last epoch of a making that was killed; ``say`` is told of each epoch.
    ``start`` starts the process, by work folder and log; by default it has the whole machine.
    Raises `SettingsError` if there are too few texts, or the base cannot be found or tuned,
    `RunFolderError` if something else is at ``path``, the model has changed since it was made, the
    disk cannot be written, or another process makes it, `EngineError` if training fails.
    """
    if path.exists() or path.is_symlink():
        made = _recorded(making, path)
        if _work_of(path).is_dir():  # of a command that was killed once the model had its name
            with suppress(RunFolderError), _work_folder(path):
                pass
        return made
    if len(making.texts) < 2:
        msg = f"there are {len(making.texts)} texts to tune a model on; give at least 2"
        raise SettingsError(msg)
    _ = making.digest
    check_base(making.base, making.revision, making.recipe)
    with _work_folder(path) as work:
        if path.exists():  # made meanwhile
            return _recorded(making, path)
        with _alone(work, path):
            _prepare(making, work)
        done = process.train(work, say, start or process.spawn)
        return _place(making, work / "made", path, done)


def _recorded(making: Making, path: Path) -> Made:
    """Return a model that is there, if it is the one that is wanted, to the byte."""
    try:
        record = json.loads((path / _RECORD).read_text("utf-8"))
        known, files, signature = record["digest"], record["files"], record.pop("sha256")
    except (AttributeError, OSError, ValueError, KeyError, TypeError):
        msg = f"{path} is there already and holds no model that was made here; choose another name"
        raise RunFolderError(msg) from None
    if signature != _signature(record):
        raise RunFolderError(_changed(path / _RECORD, "was changed after it was made"))
    if known != making.digest:
        differing = [
            name for name, value in making.made_from.items() if record["made_from"][name] != value
        ]
        msg = (
            f"{path} holds a model made of another {' and '.join(differing)}; choose another name, "
            "or delete it"
        )
        raise RunFolderError(msg)
    for name, wanted in files.items():
        file = path / name
        if not file.is_file() or digest(file) != wanted:
            what = "was changed after it was made" if file.exists() else "is missing"
            raise RunFolderError(_changed(file, what))
    _follow(path)  # a run that was killed may not have come to it
    return _made(path, record, is_new=False)


def _changed(file: Path, what: str) -> str:
    return f"{file} {what}; delete {file.parent}, and the same command makes it anew"


def _signature(record: dict[str, Any]) -> str:
    return sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _work_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.work")


@contextmanager
def _work_folder(path: Path) -> Iterator[Path]:
    """Hold the folder in which a model is made, and remove it once the model is there."""
    work = _work_of(path)
    with system_errors(path):
        work.mkdir(parents=True, exist_ok=True)
        lock = FileLock(work / ".lock", timeout=_SECONDS_FOR_OTHERS)
        try:
            lock.acquire()
        except Timeout:
            msg = f"{path} is being made by another process; wait for it, or choose another name"
            raise RunFolderError(msg) from None
        try:
            yield work
            if path.exists():
                shutil.rmtree(work, ignore_errors=True)
        finally:
            lock.release()


@contextmanager
def _alone(work: Path, path: Path) -> Iterator[None]:
    """Wait until the training of a command that was killed has ended, too."""
    lock = FileLock(work / TRAINING_LOCK, timeout=_SECONDS_TO_END)
    try:
        lock.acquire()
    except Timeout:
        msg = (
            f"{path} is still being made by the training of a command that was killed; give the "
            "command again when that has ended"
        )
        raise RunFolderError(msg) from None
    try:
        yield
    finally:
        lock.release()


def _prepare(making: Making, work: Path) -> None:
    """Write what is to be done; what is left of another making goes."""
    job = work / "job.json"
    wanted = {
        "digest": making.digest,
        "trainer": making.trainer,
        "base": making.base,
        "revision": making.revision,
        "recipe": making.recipe.described(),
    }
    shutil.rmtree(work / "made", ignore_errors=True)
    if not _holds(job, wanted):
        shutil.rmtree(work / "checkpoints", ignore_errors=True)
        job.write_text(json.dumps(wanted), "utf-8")  # which no store is to follow
    making.write(work)


def _holds(job: Path, wanted: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(job.read_text("utf-8")) == wanted)
    except (OSError, ValueError):
        return False


def _place(making: Making, made: Path, path: Path, done: dict[str, Any]) -> Made:
    """Record what was made, and give it its name."""
    files = {file.name: digest(file) for file in sorted(made.iterdir()) if file.is_file()}
    record = {
        "digest": making.digest,
        "made_from": making.made_from,
        "base": making.base,
        "revision": making.revision,
        "n_texts": len(making.texts),
        **done,
        "files": files,
    }
    signed = record | {"sha256": _signature(record)}
    (made / _RECORD).write_text(json.dumps(signed, indent=2), "utf-8")
    for file in made.iterdir():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    made.replace(path)
    sync_folder(path.parent)
    _follow(path)
    return _made(path, done, is_new=True)


def _made(path: Path, record: dict[str, Any], *, is_new: bool) -> Made:
    return Made(path=path, losses=record["losses"], privacy=record["privacy"], is_new=is_new)


def _follow(path: Path) -> None:
    """Let a store that follows the run's folder have the model."""
    for file in sorted(path.iterdir()):
        put_copy(file, file)
