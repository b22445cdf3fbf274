"""A run is a folder: its tables, ``run.json`` with what made them, and who may use it."""

from __future__ import annotations

import fcntl
import json
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NoReturn

import polars as pl
from filelock import FileLock, Timeout

from mia_batch import schemas
from mia_batch.errors import RequestError, RunFolderError, SettingsError
from mia_batch.evidence.endpoint import journal
from mia_batch.evidence.engines.registry import SourceKind, find_source_kind
from mia_batch.evidence.parts import Shard, scan_parts
from mia_batch.inference.findings import earlier_findings, lodged_findings
from mia_batch.kernels import Rarity
from mia_batch.places import fetched, is_url
from mia_batch.settings import Settings
from mia_batch.tables import has_too_many_values, remove_unfinished, scan, write_text

_PACKAGES = (
    "mia-batch",
    "polars",
    "numpy",
    "torch",
    "transformers",
    "tokenizers",
    "httpx",
)
_OTHER = "give another folder"
_MAX_MANIFEST_BYTES = 64 << 20  # a hash for each of half a million files


def read_bounded(path: Path) -> bytes:
    """Read ``run.json``, which may be a stranger's; `ValueError` where it would fill the memory."""
    if not path.is_file() and path.exists():
        raise ValueError("it is no regular file")
    with path.open("rb") as stream:
        content = stream.read(_MAX_MANIFEST_BYTES + 1)
    if len(content) > _MAX_MANIFEST_BYTES or has_too_many_values(content):
        raise ValueError("it is larger than that of any run")
    return content


def holds_answers(folder: Path, manifest: Manifest) -> bool:
    """Return whether a run may have an answer of a model, or a model that it has made."""
    if manifest.plan or manifest.custody:
        return True
    made = ("samples", "logprobs", "models")
    has_parts = any(any((folder / name).glob("*")) for name in made)
    return has_parts or journal.holds_answers(folder / "journal.sqlite")


def choose_place(settings: Settings) -> Settings:
    """Return settings with a longer name of the folder, where the usual one is another model's."""
    # Two models may have one last name: of two organisations, or a checkpoint and a
    # name at an endpoint.
    if settings.out is not None:
        return settings
    longer = settings.longer_folder
    if not (longer / "run.json").exists() and not _is_of_other_model(settings):
        return settings
    return settings.model_copy(update={"out": longer})


def _is_of_other_model(settings: Settings) -> bool:
    manifest = Manifest.load(settings.folder)
    if manifest is None or not holds_answers(settings.folder, manifest):
        return False
    name = str(manifest.models.get("target", {}).get("source", {}).get("name"))
    if manifest.source != settings.source:
        return "recording" not in (manifest.source, settings.source)
    names = (name, str(settings.model))
    # A folder may be the hub's model, and has a digest to tell
    has_digest = settings.source == "engine" and any(
        Path(each).exists() for each in names
    )
    return name != str(settings.model) and not has_digest


@dataclass(slots=True, kw_only=True)
class Manifest:
    """The contents of ``run.json``: what made a run's tables; docs/tables.md says it in full."""

    format: int = field(default_factory=lambda: find_format())  # noqa: PLW0108 - it stands below
    # Settings that change a sample
    evidence: dict[str, Any] = field(default_factory=dict)
    engine_choice: str = ""
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    # By kind of evidence and model
    engines: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # of the latest request
    input: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)  # by model and view
    # As it was before the first score
    plan: dict[str, Any] = field(default_factory=dict)
    # By stage, what its tables were made from
    made: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Any] = field(default_factory=dict)
    # SHA-256 by setting and file
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)
    # What servers said of texts at addresses, by setting and file
    addresses: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    # Empty while the run is not finished
    custody: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)
    controls: dict[str, Any] = field(default_factory=dict)
    # Texts of highest scores: how many, how many were not continued, what these cost
    continued: dict[str, Any] = field(default_factory=dict)
    # The plan that was given, what differs
    lodged: dict[str, Any] = field(default_factory=dict)
    # Answers taken away, and by what
    replaced: list[dict[str, Any]] = field(default_factory=list)
    # Of answers, and the rule against it
    dress: dict[str, Any] = field(default_factory=dict)
    # Other runs, by folder
    earlier: dict[str, dict[str, Any]] = field(default_factory=dict)
    unchanged: str = ""  # what a finished run is known by, see `custody.is_unchanged`
    # Its text on disk
    stored: str = field(default="", init=False, repr=False, compare=False)

    @classmethod
    def load(cls, folder: Path) -> Manifest | None:
        """Return the manifest of a folder; None where there is no ``run.json``."""
        path = folder / "run.json"
        try:
            text = read_bounded(path).decode()
            stored = json.loads(text)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as error:
            cause = getattr(error, "strerror", None) or error
            raise RunFolderError(
                f"{path} cannot be read ({cause}); give another folder"
            ) from None
        if not isinstance(stored, dict) or "evidence" not in stored:
            raise RunFolderError(f"{path} is not a run's manifest; give another folder")
        table_format = stored.get("format", 1)
        if table_format != find_format():
            raise RunFolderError(
                f"{folder} was made by another version of mia-batch (format {table_format}"
                f" of its tables, this version has {find_format()}); use that version for it,"
                " or audit into another folder, to which its samples can be given as"
                " --samples-from"
            )
        empty = cls()
        for name in _list_fields():
            expected_type = type(getattr(empty, name))
            value = stored.get(name, expected_type())
            if not isinstance(value, expected_type):
                raise RunFolderError(
                    f"{path} is not as mia-batch writes it ({name!r} is of type"
                    f" {type(value).__name__} instead of {expected_type.__name__});"
                    f" {_OTHER}"
                )
        manifest = cls(
            **{name: stored[name] for name in _list_fields() if name in stored}
        )
        manifest.stored = text
        return manifest

    def write(self, folder: Path) -> None:
        self.stored = self._text
        write_text(folder / "run.json", self.stored)

    @property
    def source(self) -> SourceKind:
        """Where answers about the target model come from."""
        return find_source_kind(str(self.evidence.get("engine")))

    @property
    def is_as_stored(self) -> bool:
        """Whether a finished run has come out as its ``run.json`` says, by the same programs."""
        return bool(self.custody) and self.stored == self._text

    @property
    def _text(self) -> str:
        content = {name: getattr(self, name) for name in _list_fields()}
        return signed_text(content | {"versions": versions()})


def _list_fields() -> list[str]:
    return [item.name for item in fields(Manifest) if item.init]


def signed_text(content: Mapping[str, Any]) -> str:
    """Return the one text that stands for these contents; it ends with the SHA-256 of the rest."""
    unsigned = {name: value for name, value in content.items() if name != "sha256"}
    text = json.dumps(unsigned, indent=2, ensure_ascii=False)
    digest = sha256(f"{text}\n".encode()).hexdigest()
    return f'{text[:-2]},\n  "sha256": "{digest}"\n}}\n'


def agree(
    recorded: dict[str, Any], values: Mapping[str, Any], folder: Path, subject: str = ""
) -> None:
    """Record what evidence or a model is made with; refuse all that differs from before."""
    differences = []
    for name, value in values.items():
        if name in recorded and not _is_same(recorded[name], value):
            key, old, new = _find_first_difference(recorded[name], value)
            differences.append(f"{name + key!r}{subject} was {old!r}, is now {new!r}")
    if differences:
        raise SettingsError(
            f"{folder} holds evidence made with other settings:"
            f" {'; '.join(differences)}; give the old values, or choose another --out"
        )
    recorded |= values


def _find_first_difference(old: Any, new: Any) -> tuple[str, Any, Any]:
    """Return the first key that differs and its values; a model's name needs no key."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *old]:
            if old.get(key) != new.get(key):
                return f" {key}".replace(" name", ""), old.get(key), new.get(key)
    return "", old, new


def _is_same(old: object, new: object) -> bool:
    """Return whether two values mean the same; of models, digests count where both have one."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return old == new
    old_digest, new_digest = old.get("digest"), new.get("digest")
    if old_digest and new_digest:
        return bool(old_digest == new_digest)
    return bool(old == new)


@cache  # they took most of the time of writing a small manifest
def versions() -> dict[str, str | None]:
    by_package: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        by_package[package] = None
        with suppress(metadata.PackageNotFoundError):
            by_package[package] = metadata.version(package)
    return by_package


# Who may use a run's folder: one run, readers, or the shards of a run.
#
# Locks are the system's own (flock), so they end with their process, however it ends. ``.lock`` is
# held by a run alone and shared by readers; shards hold it in turns, while they make or store what
# all of them share. ``.shard-I-of-N.lock`` is held by a shard as long as it lives, and taken only
# by who has ``.lock``: a run or a reader that has ``.lock`` and finds no live shard has the
# folder.

_LOCK, _SHARD_LOCKS = ".lock", ".shard-*.lock"
_LOCK_NAME = re.compile(r"\.lock|\.shard-(\d+)-of-(\d+)\.lock")
HELD = (
    "{} is held by another live run; wait for it, or choose another --out for another"
    " audit"
)
UNWRITABLE = "{} cannot be written ({}); choose another --out"
_LOCK_SECONDS = 1.0
"""Seconds to wait for a lock that is held while a manifest is stored or read."""
_MAX_SIMILAR = 1000  # run folders whose names are compared with a mistyped one


def is_lock(name: str) -> bool:
    return _LOCK_NAME.fullmatch(name) is not None


@contextmanager
def reading(
    folder: Path,
    refusal: str = "{} is held by a live run, so it has no root; wait for it",
) -> Iterator[None]:
    """Keep a folder as it is; raises `RunFolderError` if a live run or shard holds it."""
    with ExitStack() as closing:
        lock = folder / _LOCK
        with suppress(OSError):  # where there is no lock, nobody has held the folder
            if not lock.is_file():  # opening a pipe would wait for a writer
                raise FileNotFoundError(lock)
            stream = closing.enter_context(lock.open("rb"))
            if not _shares(stream) or list_live_shards(folder):
                raise RunFolderError(refusal.format(folder))
        yield


def list_live_shards(folder: Path, excluded: Shard | None = None) -> list[Shard]:
    """Return the shards that work in a folder, by their number."""
    live_shards = []
    for path in folder.glob(_SHARD_LOCKS):
        name = _LOCK_NAME.fullmatch(path.name)
        if name is None:
            continue
        shard = Shard(*map(int, name.groups()))
        if shard == excluded:
            continue
        with suppress(FileNotFoundError), path.open("rb") as stream:
            if not _shares(stream):
                live_shards.append(shard)
    return sorted(live_shards, key=lambda shard: (shard.of, shard.number))


def _shares(lock: IO[bytes]) -> bool:
    """Take a lock with others that only look; return whether it was free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for(turn: FileLock, folder: Path, say: Callable[[str], None]) -> None:
    """Wait for the lock that shards hold in turns, and say once who holds it."""
    is_announced = False
    while not turn.is_locked:
        try:
            turn.acquire(timeout=_LOCK_SECONDS)
        except Timeout:
            shards = list_live_shards(folder)
            if not shards:
                raise RunFolderError(HELD.format(folder)) from None
            if not is_announced:
                holder = _describe_shards(shards)
                if len(shards) > 1:
                    holder = f"one of {holder}"
                say(f"waiting for what all shards need, which {holder} makes")
            is_announced = True


def _describe_shards(shards: list[Shard]) -> str:
    noun = "shard" if len(shards) == 1 else "shards"
    return f"{noun} {', '.join(map(str, shards))}"


# The folder and its tables.

TABLES: dict[str, type[schemas.Table]] = {  # tables that are one file each
    "targets": schemas.Targets,
    "set_aside": schemas.SetAside,
    "findings": schemas.Findings,
    "blind": schemas.Blind,
    "blind_metrics": schemas.Metrics,
    "rarity": Rarity,
    "responses": schemas.Responses,
    "scores": schemas.Scores,
    "unscored": schemas.Unscored,
    "metrics": schemas.Metrics,
    "verdicts": schemas.Verdicts,
    "extraction": schemas.Extraction,
    "extracted_documents": schemas.ExtractedDocuments,
    "controls": schemas.Controls,
    "known": schemas.Known,
    "rollup": schemas.Rollup,
    "curves": schemas.Curves,
    "perplexities": schemas.Perplexities,
    "bounds": schemas.Bounds,
}

PARTS: dict[str, type[schemas.Table]] = {  # tables that are folders of parts
    "prompts": schemas.Prompts,
    "samples": schemas.Samples,
    "features": schemas.Features,
    "logprobs": schemas.LogProbs,
}

KEPT = frozenset(
    {
        *("targets", "set_aside", "prompts", "samples", "features", "logprobs"),
        *("responses", "extraction", "extracted_documents", "bounds"),
    }
)
"""Tables that a run goes on with or refuses; the others are made anew in a new version."""


def find_version(names: Iterable[str]) -> int:
    """Return one number of some tables, which grows with the version of each."""
    tables = TABLES | PARTS
    return schemas.combine_versions(tables[name] for name in names)


def find_format() -> int:
    """Return the number of the tables that a run goes on with."""
    return find_version(KEPT)


ORDER = "order"
"""The targets table in the order of asking, while a run goes on."""


@dataclass(frozen=True, slots=True, init=False)
class RunFolder:
    """A run's folder and its tables, each read from disk when it is asked for."""

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

        Raises `RequestError` for any other name, `RunFolderError` if the table cannot
        be read.
        """
        if name in PARTS:
            return scan_parts(self.path(name), PARTS[name])
        if name in TABLES:
            return scan(self.path(name), TABLES[name])
        names = ", ".join([*TABLES, *PARTS])
        raise RequestError(f"a run has no table {name!r}; its tables are {names}")

    @property
    def manifest(self) -> Manifest:
        """What made the tables.

        Raises `RunFolderError` if there is no run here, or ``run.json`` cannot be read.
        """
        manifest = Manifest.load(self.folder)
        if manifest is None:
            raise RunFolderError(explain_missing_run(self.folder))
        return manifest

    def __getitem__(self, name: str) -> pl.DataFrame:
        """Read a table whole, such as ``run["scores"]``."""
        # The findings end with those about earlier runs and the lodged plan, which
        # stand in ``run.json``: what lies next to a run changes none of its tables.
        # ``set_aside`` is empty where all files were read.
        if name == "set_aside" and not self.path(name).exists():
            return schemas.SetAside.create_empty()
        table = self.scan(name).collect()
        if name == "findings":
            manifest = self.manifest
            earlier = earlier_findings(manifest.earlier, manifest.custody.get("root"))
            return pl.concat([table, earlier, lodged_findings(manifest.lodged)])
        return table


class AuditFolder(RunFolder):
    """The folder of a run that is being made, or changed: who holds it, what engines printed."""

    __slots__ = ()

    @property
    def order(self) -> Path:
        """File of the targets in the order of asking; of a recording, that of the corpus."""
        drawn = self.path(ORDER)
        return drawn if drawn.exists() else self.path("targets")

    @property
    def engine_log(self) -> Path:
        """What the engines' libraries printed."""
        return self.folder / "engine.log"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder where it is missing, and hold it against other live runs.

        Temporary files of killed runs are removed. Raises `RunFolderError` if the
        folder cannot be made or written, or another live run or shard holds it.
        """
        with ExitStack() as closing:
            with self._make_folders():
                self._lock(FileLock(self.folder / _LOCK, timeout=0), closing)
                if list_live_shards(self.folder):
                    raise RunFolderError(HELD.format(self.folder))
                for path in self.folder.glob(_SHARD_LOCKS):  # of shards that have ended
                    path.unlink()
                for folder in self._folders:
                    remove_unfinished(folder)
            yield

    @contextmanager
    def shared(self, shard: Shard, say: Callable[[str], None]) -> Iterator[FileLock]:
        """Make the folder where it is missing, and hold it as one of its shards.

        Yields the lock that they hold in turns, held: it waits for its turn, and says
        so. Raises `RunFolderError` if this shard, shards of another number or an
        ordinary run hold the folder.
        """
        turn = FileLock(self.folder / _LOCK)
        shard_lock = self.folder / f".shard-{shard.number}-of-{shard.of}.lock"
        with ExitStack() as closing:
            with self._make_folders():
                closing.callback(turn.release, force=True)
                _wait_for(turn, self.folder, say)
                self._lock(FileLock(shard_lock, timeout=_LOCK_SECONDS), closing)
                others = list_live_shards(self.folder, excluded=shard)
                if any(other.of != shard.of for other in others):
                    raise RunFolderError(
                        f"{self.folder} is held by {_describe_shards(others)}, and shard {shard}"
                        " would ask what they ask; wait for them, or go on with shards"
                        " of their number"
                    )
            yield turn

    def _lock(self, lock: FileLock, closing: ExitStack) -> None:
        try:
            lock.acquire()
        except Timeout:
            raise RunFolderError(HELD.format(self.folder)) from None
        closing.callback(lock.release)

    @property
    def _folders(self) -> list[Path]:
        return [self.folder, *map(self.path, PARTS)]

    @contextmanager
    def _make_folders(self) -> Iterator[None]:
        try:
            for folder in self._folders:
                folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise RunFolderError(
                UNWRITABLE.format(self.folder, error.strerror)
            ) from None


def explain_missing_run(folder: Path) -> str:
    """Return that no run is here, and the run in the folder or in ``runs`` most like it."""
    manifests = chain(*(each.glob("*/run.json") for each in (folder, Path("runs"))))
    names = {str(path.parent) for path in islice(manifests, _MAX_SIMILAR)}
    similar = get_close_matches(str(folder), sorted(names), 1, 0)
    fault = "holds no run: there is no run.json in it"
    if not folder.is_dir():
        fault = "is a file, no run" if folder.exists() else "does not exist"
    hint = f", such as {similar[0]}" if similar else ""
    return f"{folder} {fault}; give the folder of a run{hint}"


def refuse_unfinished(folder: Path, fault: str) -> NoReturn:
    """Say what is wrong with a run that is not finished, and whether it is alive."""
    busy = f"{{}} {fault}, for a live run works in it; wait for its end"
    with reading(folder, busy):
        raise RunFolderError(
            f"{folder} {fault}; give the audit's command again, which goes on"
        )
