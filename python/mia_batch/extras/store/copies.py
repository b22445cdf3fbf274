"""Working copies of run folders that lie in an object store."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Self

from filelock import FileLock, Timeout

from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError
from mia_batch.extras.store.objects import Lease, Store, holder, is_live, lease_of
from mia_batch.places import check_url, copy_of
from mia_batch.tables import followed

if TYPE_CHECKING:
    from collections.abc import Iterator


# Runs that lie in a store: each has a working copy here, an ordinary folder below the cache.
#
# What is written reaches the store before it is visible in the copy, so any machine can go on from
# the store. Only what is written in place, such as the journal of answers, may be ahead here.


_AT_ONCE = 32
_MARKS = 1 << 56
"""Times below, until 1972, are marks: such a file holds what the store called by that mark."""


@contextmanager
def mirrored(place: str) -> Iterator[Path]:
    """As `mia_batch.places.mirrored`."""
    with ExitStack() as closing:
        copy = _Copy.of(place)
        with copy.lock("looking"):
            try:
                closing.enter_context(copy.lock("writing", 0))
            except Timeout:
                raise RunFolderError(
                    f"{place} is held by another live run; wait for it, or choose another --out"
                ) from None
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
            if isinstance(error, MiaBatchError) and str(copy.folder) in str(error):
                raise type(error)(str(error).replace(str(copy.folder), place)) from error
            raise
        mirror.finish()


def fetched(place: str) -> Path:
    """As `mia_batch.places.fetched`."""
    copy = _Copy.of(place)
    with copy.lock("looking"), suppress(Timeout), copy.lock("writing", 0):
        copy.follow(holder(copy.store, lease_of(copy.store)))
    return copy.folder


@contextmanager
def settled(place: str) -> Iterator[None]:
    """As `mia_batch.places.settled`."""
    copy = _Copy.of(place)
    before = lease_of(copy.store)
    held = RunFolderError(f"{place} is held by a live run, so it has no root; wait for it")
    if holder(copy.store, before) != copy.name and is_live(copy.store, before):
        raise held
    yield
    if lease_of(copy.store) != before:
        raise held


@dataclass(frozen=True, slots=True)
class _Copy:
    """A working copy: the run's folder, and next to it two locks and its name in the lease."""

    store: Store
    folder: Path

    @classmethod
    def of(cls, url: str) -> Self:
        """Find or make the working copy of an address."""
        try:
            check_url(url)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        copy = cls(Store.open(url), copy_of(url))
        try:
            copy.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{error.filename or copy.folder}, the working copy of {url}, cannot be used "
                f"({error.strerror}); set XDG_CACHE_HOME to a folder that can be written"
            ) from None
        return copy

    @property
    def name(self) -> str | None:
        """What the lease calls this copy; None where it cannot be ahead of the store."""
        with suppress(FileNotFoundError):
            return (self.folder.parent / ".name").read_text("utf-8")
        return None

    def lead(self, name: str) -> None:
        """Be the copy that may be ahead, as long as the lease has this name."""
        (self.folder.parent / ".name").write_text(name, "utf-8")

    def lock(self, what: str, seconds: float = -1) -> FileLock:
        """Return a lock: ``writing`` for a whole run, ``looking`` while the copy is looked at."""
        return FileLock(self.folder.parent / f".{what}", timeout=seconds)

    def follow(self, holder: str | None) -> None:
        """Become what the store holds.

        If this copy is the lease's last holder, files that were written in place here stay.
        """
        ahead = holder is not None and holder == self.name
        here = {
            path.relative_to(self.folder).as_posix(): path.stat().st_mtime_ns
            for path in self.folder.rglob("*")
            if path.is_file() and path.name != ".lock"
        }
        kept = {name for name, time in here.items() if ahead and time >= _MARKS}
        there = self.store.names()
        for name in here.keys() - there.keys() - kept:
            (self.folder / name).unlink()
        missing = {
            name for name, tag in there.items() if name not in kept and here.get(name) != _mark(tag)
        }
        for folder in {(self.folder / name).parent for name in missing}:
            folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(self._fetch, missing):
                pass

    def _fetch(self, name: str) -> None:
        path = self.folder / name
        unfinished = path.with_name(f".{path.name}.fetched")
        try:
            _set_mark(unfinished, self.store.fetch(name, unfinished))
        except FileNotFoundError:  # it went after it was listed
            unfinished.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        else:
            unfinished.replace(path)


@dataclass(frozen=True, slots=True)
class _Mirror:
    """Brings each change of a working copy to the store; one that it refuses is not made."""

    copy: _Copy
    lease: Lease

    def put(self, path: Path, content: Path) -> None:
        """Store what ``path`` is about to hold."""
        with self._allowed():
            _set_mark(content, self.copy.store.put(self._name(path), content))

    def put_copy(self, path: Path, content: Path) -> None:
        """Store what a file that is written in place has held at a moment."""
        path.touch()  # it is ahead of the store
        self.put(path, content)

    def remove(self, path: Path) -> None:
        """Remove a file from the store that is about to go."""
        with self._allowed():
            self.copy.store.remove(self._name(path))

    def finish(self) -> None:
        """Store what was written in place."""
        with self._allowed():
            there = self.copy.store.names()
        for path in sorted(self.copy.folder.iterdir()):
            hidden = path.name.startswith(".") or path.name.endswith(("-wal", "-shm"))
            if path.is_file() and not hidden:
                tag = there.get(path.name)
                if tag is None or path.stat().st_mtime_ns != _mark(tag):
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


def _mark(tag: str) -> int:
    return int.from_bytes(sha256(tag.encode()).digest()[:7])


def _set_mark(path: Path, tag: str) -> None:
    """Note in a file's time of change what the store calls its contents: a write ends that."""
    os.utime(path, ns=(path.stat().st_atime_ns, _mark(tag)))
