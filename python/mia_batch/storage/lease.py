"""One writer at a time: an object of the store that the run which holds it writes again and again.

The object also says which working copy wrote last: only that one may be ahead of the store.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING

from mia_batch.errors import RunFolderError

if TYPE_CHECKING:
    from mia_batch.storage.store import Found, Store

__all__ = ["Lease", "holder", "is_live", "lease_of"]

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
        """Hold the folder for the working copy ``own``; under a new name unless it wrote last.

        Raises `RunFolderError` if a live run of another working copy holds it.
        """
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
            msg = (
                f"{self._store.url} may have been taken over by another run, as this one did not "
                "reach the store for too long"
            )
            raise RunFolderError(msg)

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


def holder(store: Store, found: Found | None) -> str | None:
    """Name the working copy that holds the folder, or held it last."""
    return str(_content(store, found)["copy"]) if found else None


def is_live(store: Store, found: Found | None) -> bool:
    """Tell whether the run that wrote a lease still writes it, by the store's own clock."""
    if found is None or not _content(store, found)["session"]:
        return False
    name = f".clock-{uuid.uuid4().hex}"
    store.put_if(name, b"", None)
    now = store.read(name)
    store.remove(name)
    return now is not None and (now.written - found.written).total_seconds() < _SECONDS


def lease_of(store: Store) -> Found | None:
    """Read the lease of a folder."""
    return store.read(_NAME)


def _content(store: Store, found: Found) -> dict[str, str]:
    try:
        content = json.loads(found.content)
        return {"copy": content["copy"], "session": content["session"]}
    except (ValueError, TypeError, KeyError):
        msg = f"{store.url} holds an object {_NAME} that is not of a run; choose another --out"
        raise RunFolderError(msg) from None


def _held(store: Store) -> str:
    return f"{store.url} is held by another live run; wait for it, or choose another --out"
