"""An object store with one writer at a time."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mia_batch.errors import RunFolderError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from obstore import ObjectMeta
    from obstore.store import ObjectStore


# One writer at a time: an object of the store that the run which holds it writes again and again.
#
# The object also says which working copy wrote last: only that one may be ahead of the store.


_NAME = ".lock"
_SECONDS = 90.0
"""After which a lease that was not written again is over."""
_SECONDS_OF_TRUST = 60.0
"""After which who holds it no longer writes to the store, a machine's sleep included."""
_SECONDS_BETWEEN = 15.0


class Lease:
    """Holds a folder of the store for a working copy, from `take` to `release`."""

    def __init__(self, store: Store, copy: str) -> None:
        self.copy = copy
        self._store = store
        self._session = uuid.uuid4().hex
        self._version: dict[str, str] | None = None
        self._beats = 0
        self._written = 0.0
        self._lost = False
        self._ended = Event()
        self._thread = Thread(target=self._keep, daemon=True)

    @classmethod
    def take(cls, store: Store, own: str | None) -> Lease:
        """Hold the folder for the working copy ``own``; under a new name unless it wrote last."""
        found = store.read(_NAME)
        last = holder(store, found)
        if last != own and is_live(store, found):
            raise RunFolderError(_held(store))
        lease = cls(store, last if last is not None and last == own else uuid.uuid4().hex)
        lease._version = found.version if found else None
        if not lease._write(lease._session):
            raise RunFolderError(_held(store))
        lease._thread.start()
        return lease

    def check(self) -> None:
        """Raise `RunFolderError` if another run may have taken the folder over."""
        if self._lost or _now() - self._written > _SECONDS_OF_TRUST:
            raise RunFolderError(
                f"{self._store.url} may have been taken over by another run, as this one did not "
                "reach the store for too long"
            )

    def release(self) -> None:
        """Let others have the folder."""
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
            if found and found.content == content:  # the answer to a first attempt was lost
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
    """Name the working copy that holds the folder, or held it last."""
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


def lease_of(store: Store) -> StoredObject | None:
    """Read the lease of a folder."""
    return store.read(_NAME)


def _content(store: Store, found: StoredObject) -> dict[str, str]:
    try:
        content = json.loads(found.content)
        return {"copy": content["copy"], "session": content["session"]}
    except (ValueError, TypeError, KeyError):
        raise RunFolderError(
            f"{store.url} holds an object {_NAME} that is not of a run; choose another --out"
        ) from None


def _held(store: Store) -> str:
    return f"{store.url} is held by another live run; wait for it, or choose another --out"


# One folder of an object store: what the run needs of it, and a sentence where it refuses.


_SOON: Any = {"max_retries": 2}  # of small objects: a wrong endpoint is reported at once
_NO_BUCKET = ("NoSuchBucket", "bucket does not exist", "ContainerNotFound")
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google", "Account must be specified")
_REASONS = {
    "PermissionDeniedError": "access is denied; check the credentials and what they allow",
    "UnauthenticatedError": "access is denied; check the credentials and what they allow",
    "NotSupportedError": "it cannot write on a condition, which keeps two runs apart",
}


class StoredObject(NamedTuple):
    """An object's content, its version, and when the store wrote it by its own clock."""

    content: bytes
    version: dict[str, str]
    written: datetime


@dataclass(frozen=True, slots=True)
class Store:
    """The objects below one address; ``impatient`` is for small ones.

    Every method raises `RunFolderError` where the store refuses. What a library says of it is
    never passed on, as it may hold parts of credentials.
    """

    url: str
    store: ObjectStore
    impatient: ObjectStore

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a folder whose bucket is there and may be read.

        Credentials come from the environment, or the machine's role; for S3 also from a profile,
        where boto3 is installed.
        """
        if find_spec("obstore") is None:
            raise SettingsError(
                f"{url} needs the library obstore; install it: pip install 'mia-batch[s3]'"
            )
        from obstore.store import from_url

        _check_endpoint()
        with _explained(url):
            opened = partial(from_url, url, **_credentials(url))
            store = cls(url, opened(), opened(retry_config=_SOON))
        store.read(".lock")
        return store

    def names(self) -> dict[str, str]:
        """List all objects but hidden ones, each with what tells its contents from others."""
        with _explained(self.url):
            listed = (each for chunk in self.store.list() for each in chunk)
            return {each["path"]: _tag(each) for each in listed if each["path"][0] != "."}

    def fetch(self, name: str, path: Path) -> str:
        """Write an object to a file and return its tag; `FileNotFoundError` where it is gone."""
        with _explained(self.url), path.open("wb") as file:
            got = self.store.get(name)
            for chunk in got:
                file.write(chunk)
            return _tag(got.meta)

    def put(self, name: str, path: Path) -> str:
        """Store a file whole, or not at all; return its tag."""
        with _explained(self.url):
            return str(self.store.put(name, path)["e_tag"])

    def remove(self, name: str) -> None:
        """Remove an object, where it is there."""
        with suppress(FileNotFoundError), _explained(self.url):
            self.store.delete(name)

    def read(self, name: str) -> StoredObject | None:
        """Read a small object; None where there is none."""
        with suppress(FileNotFoundError), _explained(self.url):
            got = self.impatient.get(name)
            meta = got.meta
            version = {key: str(meta[key]) for key in ("e_tag", "version") if meta[key] is not None}
            return StoredObject(bytes(got.bytes()), version, meta["last_modified"])
        return None

    def put_if(
        self, name: str, content: bytes, version: dict[str, str] | None
    ) -> dict[str, str] | None:
        """Store a small object where the one there is of this version, or where there is none.

        Returns the new version; None where there is another one by now.
        """
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


def _check_endpoint() -> None:
    """Refuse what the library would panic at."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if not re.match("https?://.", os.environ.get(name, "https://any")):
            raise SettingsError(
                f"the environment variable {name} must begin with https:// or http://"
            )


def _credentials(url: str) -> dict[str, Any]:
    """Have boto3 look in profiles, where keys are not in the environment."""
    if not url.startswith("s3") or "AWS_ACCESS_KEY_ID" in os.environ or find_spec("boto3") is None:
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
        missing = isinstance(error, FileNotFoundError)
        if missing and not any(sign in str(error) for sign in _NO_BUCKET):
            raise
        reason = _reason(error)
    else:
        return
    raise RunFolderError(f"{url} cannot be used: {reason}")


def _reason(error: Exception) -> str:
    """Say what the store refused, in words that hold nothing of a request."""
    said = str(error)
    if (reason := _REASONS.get(type(error).__name__)) is not None:
        return reason
    if any(sign in said for sign in _NO_BUCKET):
        return "there is no such bucket; make it, or name another"
    if any(sign in said for sign in _NO_CREDENTIALS):
        return "there are no credentials for it in the environment"
    if "builder error" in said and "http://" in said:
        return "its endpoint is http://; set AWS_ALLOW_HTTP=true if that is meant"
    if code := re.search(r"<Code>(\w+)</Code>|status code: (\d+)", said):
        return f"it said {code[1] or code[2]}"
    return "it does not answer; check the network and the endpoint"
