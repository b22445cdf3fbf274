"""Run folders in an object store: an ordinary folder here, and a mirror of it there."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from filelock import FileLock, Timeout

from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError
from mia_batch.places import check_url, find_working_copy
from mia_batch.tables import followed

if TYPE_CHECKING:
    from datetime import datetime

    from obstore import ObjectMeta
    from obstore.store import ObjectStore


# Runs that lie in a store: each has a working copy here, an ordinary folder below the cache.
#
# What is written reaches the store before it is visible in the copy, so any machine can go on from
# the store. Only what is written in place, such as the journal of answers, may be ahead here.


_AT_ONCE = 32
_MARKS = 1 << 56
"""Times below, until 1972, are marks: such a file holds what the store called by that mark."""


@contextmanager
def mirrored(place: str) -> Iterator[Path]:
    with ExitStack() as closing:
        copy = _Copy.of(place)
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
            if isinstance(error, MiaBatchError) and str(copy.folder) in str(error):
                raise type(error)(
                    str(error).replace(str(copy.folder), place)
                ) from error
            raise
        mirror.finish()


def fetched(place: str) -> Path:
    copy = _Copy.of(place)
    with copy.lock("looking"), suppress(Timeout), copy.lock("writing", 0):
        copy.follow(holder(copy.store, copy.store.read(_NAME)))
    return copy.folder


@contextmanager
def settled(place: str) -> Iterator[None]:
    copy = _Copy.of(place)
    before = copy.store.read(_NAME)
    held = RunFolderError(
        f"{place} is held by a live run, so it has no root; wait for it"
    )
    if holder(copy.store, before) != copy.name and is_live(copy.store, before):
        raise held
    yield
    if copy.store.read(_NAME) != before:
        raise held


@dataclass(frozen=True, slots=True)
class _Copy:
    """A working copy: the run's folder, and next to it two locks and its name in the lease."""

    store: Store
    folder: Path

    @classmethod
    def of(cls, url: str) -> Self:
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
            return (self.folder.parent / ".name").read_text("utf-8")
        return None

    def lead(self, name: str) -> None:
        """Be the copy that may be ahead, as long as the lease has this name."""
        (self.folder.parent / ".name").write_text(name, "utf-8")

    def lock(self, what: str, seconds: float = -1) -> FileLock:
        """Return a lock: ``writing`` for a whole run, ``looking`` while the copy is looked at."""
        return FileLock(self.folder.parent / f".{what}", timeout=seconds)

    def follow(self, holder: str | None) -> None:
        """Become what the store holds, but for what the lease's last holder wrote in place here."""
        ahead = holder is not None and holder == self.name
        here = {
            path.relative_to(self.folder).as_posix(): path.stat().st_mtime_ns
            for path in self.folder.rglob("*")
            if path.is_file() and path.name != ".lock"
        }
        kept = {name for name, time in here.items() if ahead and time >= _MARKS}
        there = {
            name: tag for name, tag in self.store.names().items() if name not in kept
        }
        for name in here.keys() - there.keys() - kept:
            (self.folder / name).unlink()
        missing = [name for name, tag in there.items() if here.get(name) != _mark(tag)]
        for folder in {(self.folder / name).parent for name in missing}:
            folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            deque(pool.map(self._fetch, missing), maxlen=0)

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
        with self._allowed():
            _set_mark(content, self.copy.store.put(self._name(path), content))

    def put_copy(self, path: Path, content: Path) -> None:
        """Store what a file that is written in place has held at a moment."""
        path.touch()  # it is ahead of the store
        self.put(path, content)

    def remove(self, path: Path) -> None:
        with self._allowed():
            self.copy.store.remove(self._name(path))

    def finish(self) -> None:
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
        self.copy, self._store, self._session = copy, store, uuid.uuid4().hex
        self._version: dict[str, str] | None = None
        self._beats, self._written, self._lost = 0, 0.0, False
        self._ended = Event()
        self._thread = Thread(target=self._keep, daemon=True)

    @classmethod
    def take(cls, store: Store, own: str | None) -> Lease:
        """Hold the folder for the working copy ``own``; under a new name unless it wrote last."""
        found = store.read(_NAME)
        last = holder(store, found)
        lease = cls(
            store, last if last is not None and last == own else uuid.uuid4().hex
        )
        lease._version = found.version if found else None
        if (last != own and is_live(store, found)) or not lease._write(lease._session):
            raise RunFolderError(_HELD.format(store.url))
        lease._thread.start()
        return lease

    def check(self) -> None:
        """Raise `RunFolderError` if another run may have taken the folder over."""
        if self._lost or _now() - self._written > _SECONDS_OF_TRUST:
            raise RunFolderError(
                f"{self._store.url} may have been taken over by another run, as this"
                " one did not reach the store for too long"
            )

    def release(self) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(RunFolderError):  # then it runs out
            if not self._lost:
                self._write("")

    def _keep(self) -> None:
        while not self._lost and not self._ended.wait(_SECONDS_BETWEEN):
            try:
                self._lost = not self._write(self._session)
            except RunFolderError:
                continue  # `check` says when that has lasted too long

    def _write(self, session: str) -> bool:
        """Write the object where it is as this lease left it; tell whether it was."""
        self._beats += 1  # no two versions are the same
        about = {"copy": self.copy, "session": session, "beats": self._beats}
        content = json.dumps(about).encode()
        while (version := self._store.put_if(_NAME, content, self._version)) is None:
            found = self._store.read(_NAME)
            # The answer to a first attempt was lost
            if found and found.content == content:
                version = found.version
                break
            ours = found and _content(self._store, found)["session"] == self._session
            if found is None or not ours or found.version == self._version:
                return False
            self._version = found.version  # that to an earlier beat was lost
        self._version, self._written = version, _now()
        return True


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def holder(store: Store, found: StoredObject | None) -> str | None:
    return _content(store, found)["copy"] if found else None


def is_live(store: Store, found: StoredObject | None) -> bool:
    """Tell whether the run that wrote a lease still writes it, by the store's own clock."""
    if found is None or not _content(store, found)["session"]:
        return False
    name = f".clock-{uuid.uuid4().hex}"
    store.put_if(name, b"", None)
    now = store.read(name)
    store.remove(name)
    return now is not None and (now.written - found.written).total_seconds() < _SECONDS


def _content(store: Store, found: StoredObject) -> dict[str, str]:
    try:
        content = json.loads(found.content)
        return {"copy": content["copy"], "session": content["session"]}
    except (ValueError, TypeError, KeyError):
        raise RunFolderError(
            f"{store.url} holds an object {_NAME} that is not of a run; choose another"
            " --out"
        ) from None


# One folder of an object store: what the run needs of it, and a sentence where it
# refuses.


# Of small objects: a wrong endpoint is reported at once
_SOON: Any = {"max_retries": 2}
_NO_BUCKET = "NoSuchBucket|bucket does not exist|ContainerNotFound"
_REASONS = {
    "^(?:PermissionDenied|Unauthenticated)Error ": (
        "access is denied; check the credentials and what they allow"
    ),
    "^NotSupportedError ": "it cannot write on a condition, which keeps two runs apart",
    _NO_BUCKET: "there is no such bucket; make it, or name another",
    r"169\.254\.169\.254|metadata\.google|Account must be specified": (
        "there are no credentials for it in the environment"
    ),
    "(?s)builder error.*http://|http://.*builder error": (
        "its endpoint is http://; set AWS_ALLOW_HTTP=true if that is meant"
    ),
    r"<Code>(\w+)</Code>|status code: (\d+)": "it said {}",
    "": "it does not answer; check the network and the endpoint",
}
"""What a refusal means, by signs in the kind of the error and its text; the first counts."""


class StoredObject(NamedTuple):
    """An object's content, its version, and when the store wrote it by its own clock."""

    content: bytes
    version: dict[str, str]
    written: datetime


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
        if find_spec("obstore") is None:
            raise SettingsError(
                f"{url} needs the library obstore; install it: pip install"
                " 'mia-batch[s3]'"
            )
        from obstore.store import from_url

        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
            # The library would panic.
            if not re.match("https?://.", os.environ.get(name, "https://any")):
                raise SettingsError(
                    f"the environment variable {name} must begin with https:// or"
                    " http://"
                )
        with _explained(url):
            opened = partial(from_url, url, **_credentials(url))
            store = cls(url, opened(), opened(retry_config=_SOON))
        store.read(".lock")
        return store

    def names(self) -> dict[str, str]:
        """List all objects but hidden ones, each with what tells its contents from others."""
        with _explained(self.url):
            listed = (each for chunk in self.store.list() for each in chunk)
            return {
                each["path"]: _tag(each) for each in listed if each["path"][0] != "."
            }

    def fetch(self, name: str, path: Path) -> str:
        """Write an object to a file and return its tag; `FileNotFoundError` where it is gone."""
        with _explained(self.url), path.open("wb") as file:
            got = self.store.get(name)
            for chunk in got:
                file.write(chunk)
            return _tag(got.meta)

    def put(self, name: str, path: Path) -> str:
        with _explained(self.url):
            return str(self.store.put(name, path)["e_tag"])

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError), _explained(self.url):
            self.store.delete(name)

    def read(self, name: str) -> StoredObject | None:
        with suppress(FileNotFoundError), _explained(self.url):
            got = self.impatient.get(name)
            meta = got.meta
            version = {
                key: str(meta[key])
                for key in ("e_tag", "version")
                if meta[key] is not None
            }
            return StoredObject(bytes(got.bytes()), version, meta["last_modified"])
        return None

    def put_if(
        self, name: str, content: bytes, version: dict[str, str] | None
    ) -> dict[str, str] | None:
        """Store a small object where the one there is of this version, or where it is new."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _explained(self.url):
            mode: Any = version or "create"
            try:
                made = self.impatient.put(name, content, mode=mode)
            except (AlreadyExistsError, PreconditionError):
                return None
            return {key: str(value) for key, value in made.items() if value is not None}


def _tag(meta: ObjectMeta) -> str:
    return str(meta["e_tag"] or meta["last_modified"])


def _credentials(url: str) -> dict[str, Any]:
    """Have boto3 look in profiles, where keys are not in the environment."""
    if (
        not url.startswith("s3")
        or "AWS_ACCESS_KEY_ID" in os.environ
        or find_spec("boto3") is None
    ):
        return {}
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return {"credential_provider": Boto3CredentialProvider()}
    except ValueError:  # it has none, so obstore may look for the machine's role
        return {}
    except BotoCoreError as error:
        raise SettingsError(f"{url} cannot be used: {error}") from None


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Say what the store refused; only a missing object of a bucket is `FileNotFoundError`."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        said, kind = str(error), type(error).__name__
        if isinstance(error, FileNotFoundError) and not re.search(_NO_BUCKET, said):
            raise
        signs = (
            (re.search(each, f"{kind} {said}"), why) for each, why in _REASONS.items()
        )
        found, why = next((found, why) for found, why in signs if found)
        reason = why.format(*filter(None, found.groups()))
    else:
        return
    # Outside, so that not even the cause holds anything of a request.
    raise RunFolderError(f"{url} cannot be used: {reason}")
