"""Run folders in an object store: an ordinary folder here, and a mirror of it there."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from filelock import FileLock, Timeout

from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError
from mia_batch.extras.store.access import (
    check_environment,
    explained,
    find_credentials,
)
from mia_batch.extras.store.inputs import find_objects
from mia_batch.places import check_url, find_working_copy
from mia_batch.tables import followed

__all__ = ["fetched", "find_objects", "mirrored", "settled"]

if TYPE_CHECKING:
    from datetime import datetime

    from obstore import ObjectMeta
    from obstore.store import ObjectStore


# Runs that lie in a store: each has a working copy here, an ordinary folder below the cache.
#
# What is written reaches the store before it is visible in the copy, so any machine can go on from
# the store. Only what is written in place, such as the journal of answers, may be ahead here.


_N_FETCHERS = 32
_FIRST_WRITTEN = 1 << 56
"""A file that the store has as it is here hides the object's tag (its ETag) in its time of change.

Such times lie below this one, in 1972; writing to the file in place puts a real time there, which
says that the file may be ahead of the store.
"""


@contextmanager
def mirrored(place: str) -> Iterator[Path]:
    with ExitStack() as closing:
        copy = _Copy.open(place)
        with copy.lock("looking"):
            try:
                closing.enter_context(copy.lock("writing", 0))
            except Timeout:
                raise RunFolderError(_HELD.format(place)) from None
            lease = Lease.take(copy.store, copy.name)
            closing.callback(lease.release)
            copy.follow(lease.copy)
            copy.lead(lease.copy)
        mirror = _Mirror(copy, lease)
        try:
            with followed(copy.folder, mirror):
                yield copy.folder
        except BaseException as error:
            with suppress(RunFolderError):  # then answers wait here for the next run
                mirror.finish()
            folder = str(copy.folder)
            if isinstance(error, MiaBatchError) and folder in str(error):
                raise type(error)(str(error).replace(folder, place)) from error
            raise
        mirror.finish()


def fetched(place: str) -> Path:
    copy = _Copy.open(place)
    with copy.lock("looking"), suppress(Timeout), copy.lock("writing", 0):
        lease = copy.store.read(_NAME)
        copy.follow(holder(copy.store, lease))
    return copy.folder


@contextmanager
def settled(place: str) -> Iterator[None]:
    copy = _Copy.open(place)
    store = copy.store
    lease = store.read(_NAME)
    refusal = RunFolderError(
        f"{place} is held by a live run, so it has no root; wait for it"
    )
    if holder(store, lease) != copy.name and is_live(store, lease):
        raise refusal
    yield
    if store.read(_NAME) != lease:
        raise refusal


@dataclass(frozen=True, slots=True)
class _Copy:
    """A working copy: the run's folder, and next to it two locks and its name in the lease."""

    store: Store
    folder: Path

    @classmethod
    def open(cls, url: str) -> Self:
        try:
            check_url(url)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        copy = cls(Store.open(url), find_working_copy(url))
        try:
            copy.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{error.filename or copy.folder}, the working copy of {url}, cannot be"
                f" used ({error.strerror}); set XDG_CACHE_HOME to a folder that can be"
                " written"
            ) from None
        return copy

    @property
    def name(self) -> str | None:
        """What the lease calls this copy; None where it cannot be ahead of the store."""
        with suppress(FileNotFoundError):
            return self._name_file.read_text("utf-8")
        return None

    def lead(self, name: str) -> None:
        """Be the copy that may be ahead, as long as the lease has this name."""
        self._name_file.write_text(name, "utf-8")

    @property
    def _name_file(self) -> Path:
        return self.folder.parent / ".name"

    def lock(self, purpose: str, seconds: float = -1) -> FileLock:
        """Return a lock: ``writing`` for a whole run, ``looking`` while the copy is looked at."""
        return FileLock(self.folder.parent / f".{purpose}", timeout=seconds)

    def follow(self, holder: str | None) -> None:
        """Become what the store holds, but for what the lease's last holder wrote in place here."""
        may_be_ahead = holder is not None and holder == self.name
        local_times = {
            path.relative_to(self.folder).as_posix(): path.stat().st_mtime_ns
            for path in self.folder.rglob("*")
            if path.is_file() and path.name != ".lock"
        }
        ahead = {
            name
            for name, time in local_times.items()
            if may_be_ahead and time >= _FIRST_WRITTEN
        }
        tags = self.store.names()
        outdated = []
        for name, tag in tags.items():
            if name not in ahead and local_times.get(name) != _encode_tag(tag):
                outdated.append(name)
        for name in local_times.keys() - tags.keys() - ahead:
            (self.folder / name).unlink()
        for folder in {(self.folder / name).parent for name in outdated}:
            folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_N_FETCHERS) as pool:
            list(pool.map(self._fetch, outdated))

    def _fetch(self, name: str) -> None:
        path = self.folder / name
        download = path.with_name(f".{path.name}.fetched")
        try:
            _hide_tag(download, self.store.fetch(name, download))
        except FileNotFoundError:  # it went after it was listed
            download.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        else:
            download.replace(path)


@dataclass(frozen=True, slots=True)
class _Mirror:
    """Brings each change of a working copy to the store; one that it refuses is not made."""

    copy: _Copy
    lease: Lease

    def put(self, path: Path, content: Path) -> None:
        with self._allowed():
            tag = self.copy.store.put(self._name(path), content)
            _hide_tag(content, tag)

    def put_copy(self, path: Path, content: Path) -> None:
        """Store what a file that is written in place has held at a moment."""
        path.touch()  # it is ahead of the store
        self.put(path, content)

    def remove(self, path: Path) -> None:
        with self._allowed():
            self.copy.store.remove(self._name(path))

    def finish(self) -> None:
        with self._allowed():
            tags = self.copy.store.names()
        for path in sorted(self.copy.folder.iterdir()):
            is_hidden = path.name.startswith(".") or path.name.endswith(
                ("-wal", "-shm")
            )
            if is_hidden or not path.is_file():
                continue
            tag = tags.get(path.name)
            if tag is None or path.stat().st_mtime_ns != _encode_tag(tag):
                self.put(path, path)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.copy.folder).as_posix()

    @contextmanager
    def _allowed(self) -> Iterator[None]:
        try:
            self.lease.check()
            yield
        except RunFolderError as error:
            raise RunFolderError(f"{error}; the same command goes on") from error


def _encode_tag(tag: str) -> int:
    """Encode an object's tag as a time of change that no file written here has."""
    return int.from_bytes(sha256(tag.encode()).digest()[:7])


def _hide_tag(path: Path, tag: str) -> None:
    """Hide the tag of an object with a file's contents in the file's time of change."""
    os.utime(path, ns=(path.stat().st_atime_ns, _encode_tag(tag)))


# One writer at a time: an object of the store that the run which holds it writes again and again.
#
# The object also says which working copy wrote last: only that one may be ahead of the store.


_HELD = (
    "{} is held by another live run; wait for it, or choose another --out for another"
    " audit"
)
_NAME = ".lock"
_SECONDS = 90.0  # after which a lease that was not written again is over
_SECONDS_OF_TRUST = 60.0
"""After which who holds it no longer writes to the store, a machine's sleep included."""
_SECONDS_BETWEEN = 15.0


class Lease:
    """Holds a folder of the store for a working copy, from `take` to `release`."""

    def __init__(self, store: Store, copy: str) -> None:
        self.copy = copy
        self._store = store
        self._session = uuid.uuid4().hex
        self._version: dict[str, str] | None = None  # of the object, as last written
        self._n_beats = 0
        self._last_beat = 0.0
        self._is_lost = False
        self._ended = Event()
        self._thread = Thread(target=self._keep, daemon=True)

    @classmethod
    def take(cls, store: Store, copy: str | None) -> Lease:
        """Hold the folder for a working copy; under a new name unless it wrote last."""
        lease_object = store.read(_NAME)
        last_copy = holder(store, lease_object)
        wrote_last = last_copy == copy
        name = uuid.uuid4().hex if last_copy is None or not wrote_last else last_copy
        lease = cls(store, name)
        lease._version = lease_object.version if lease_object else None
        is_busy = not wrote_last and is_live(store, lease_object)
        if is_busy or not lease._write(lease._session):
            raise RunFolderError(_HELD.format(store.url))
        lease._thread.start()
        return lease

    def check(self) -> None:
        """Raise `RunFolderError` if another run may have taken the folder over."""
        if self._is_lost or _now() - self._last_beat > _SECONDS_OF_TRUST:
            raise RunFolderError(
                f"{self._store.url} may have been taken over by another run, as this"
                " one did not reach the store for too long"
            )

    def release(self) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(RunFolderError):  # then it runs out
            if not self._is_lost:
                self._write("")

    def _keep(self) -> None:
        while not self._is_lost and not self._ended.wait(_SECONDS_BETWEEN):
            try:
                self._is_lost = not self._write(self._session)
            except RunFolderError:
                continue  # `check` says when that has lasted too long

    def _write(self, session: str) -> bool:
        """Write the object if it is as this lease left it; return whether it was."""
        self._n_beats += 1  # no two versions are the same
        beat = {"copy": self.copy, "session": session, "beats": self._n_beats}
        content = json.dumps(beat).encode()
        while True:
            version = self._store.put_if(_NAME, content, self._version)
            if version is not None:
                break
            lease_object = self._store.read(_NAME)
            if lease_object is None:
                return False
            # The answer to a first attempt was lost
            if lease_object.content == content:
                version = lease_object.version
                break
            is_ours = _parse_beat(self._store, lease_object)["session"] == self._session
            if not is_ours or lease_object.version == self._version:
                return False
            self._version = (
                lease_object.version
            )  # the answer to an earlier beat was lost
        self._version = version
        self._last_beat = _now()
        return True


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def holder(store: Store, lease_object: StoredObject | None) -> str | None:
    """Return the working copy that wrote a lease last."""
    return _parse_beat(store, lease_object)["copy"] if lease_object else None


def is_live(store: Store, lease_object: StoredObject | None) -> bool:
    """Check by the store's own clock that the run that wrote a lease still writes it."""
    if lease_object is None or not _parse_beat(store, lease_object)["session"]:
        return False
    name = f".clock-{uuid.uuid4().hex}"
    store.put_if(name, b"", None)
    clock = store.read(name)
    store.remove(name)
    if clock is None:
        return False
    age = clock.modified - lease_object.modified
    return age.total_seconds() < _SECONDS


def _parse_beat(store: Store, lease_object: StoredObject) -> dict[str, str]:
    try:
        beat = json.loads(lease_object.content)
        return {"copy": beat["copy"], "session": beat["session"]}
    except (ValueError, TypeError, KeyError):
        raise RunFolderError(
            f"{store.url} holds an object {_NAME} that is not of a run; choose another"
            " --out"
        ) from None


# One folder of an object store: what the run needs of it, and a sentence where it
# refuses.


# Of small objects: a wrong endpoint is reported at once
_IMPATIENT: Any = {"max_retries": 2}


class StoredObject(NamedTuple):
    """An object's content, its version, and when the store wrote it by its own clock."""

    content: bytes
    version: dict[str, str]
    modified: datetime


@dataclass(frozen=True, slots=True)
class Store:
    """The objects below one address; ``impatient`` is for small ones."""

    # What a library says of a refusal is never passed on: it may hold parts of
    # credentials.

    url: str
    store: ObjectStore
    impatient: ObjectStore

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a folder, with credentials of the environment, the machine's role, or a profile."""
        check_environment(url)
        from obstore.store import from_url

        with explained(url):
            connect = partial(from_url, url, **find_credentials(url))
            store = cls(url, connect(), connect(retry_config=_IMPATIENT))
        store.read(".lock")
        return store

    def names(self) -> dict[str, str]:
        """List all objects but hidden ones, each with its tag."""
        tags = {}
        with explained(self.url):
            for meta in chain.from_iterable(self.store.list()):
                if meta["path"][0] != ".":
                    tags[meta["path"]] = _read_tag(meta)
        return tags

    def fetch(self, name: str, path: Path) -> str:
        """Write an object to a file and return its tag; `FileNotFoundError` where it is gone."""
        with explained(self.url), path.open("wb") as file:
            answer = self.store.get(name)
            for chunk in answer:
                file.write(chunk)
            return _read_tag(answer.meta)

    def put(self, name: str, path: Path) -> str:
        with explained(self.url):
            return str(self.store.put(name, path)["e_tag"])

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError), explained(self.url):
            self.store.delete(name)

    def read(self, name: str) -> StoredObject | None:
        with suppress(FileNotFoundError), explained(self.url):
            answer = self.impatient.get(name)
            meta = answer.meta
            version = {
                key: str(meta[key])
                for key in ("e_tag", "version")
                if meta[key] is not None
            }
            return StoredObject(bytes(answer.bytes()), version, meta["last_modified"])
        return None

    def put_if(
        self, name: str, content: bytes, version: dict[str, str] | None
    ) -> dict[str, str] | None:
        """Store a small object where the one there is of this version, or where it is new."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with explained(self.url):
            mode: Any = version or "create"
            try:
                result = self.impatient.put(name, content, mode=mode)
            except (AlreadyExistsError, PreconditionError):
                return None
            return {
                key: str(value) for key, value in result.items() if value is not None
            }


def _read_tag(meta: ObjectMeta) -> str:
    """Return what tells an object's contents from others."""
    return str(meta["e_tag"] or meta["last_modified"])
