"""Changes of a folder, put into the store in the order in which they became visible.

Each change is a file of the queue before it is visible: a link to the new content under a name
that says what is to be done. So what a killed run did not send is sent by the next, nothing else is
remembered, and the store is as the folder was at some moment.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from shutil import copy2
from threading import Condition, Thread
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, unquote

from mia_batch.errors import RunFolderError
from mia_batch.tables.files import sync_folder

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.storage.lease import Lease
    from mia_batch.storage.store import Store
    from mia_batch.storage.working_copy import WorkingCopy

__all__ = ["Mirror"]

_AT_ONCE = 16
_ALIKE = {"features": "samples"}
"""Parts of these folders may be missing in any mixture, which the next run mends."""


@dataclass(frozen=True, slots=True)
class _Change:
    """One file of the queue: ``put`` a file, ``remove`` it, or put a ``copy`` of one in use."""

    queued: Path
    kind: str
    name: str

    @classmethod
    def of(cls, queued: Path) -> Self:
        _, kind, name = queued.name.split(".", 2)
        return cls(queued, kind, unquote(name))

    @property
    def group(self) -> str:
        """What may be sent side by side with others of the same; "" for what goes alone."""
        folder, slash, _ = self.name.partition("/")
        return _ALIKE.get(folder, folder) if slash and self.kind == "put" else ""


class Mirror:
    """Learns of changes to a working copy, and brings them to the store from a thread."""

    def __init__(self, store: Store, copy: WorkingCopy, lease: Lease) -> None:
        self._store, self._copy, self._lease = store, copy, lease
        self._changed = Condition()
        self._waiting = deque(_Change.of(path) for path in sorted(copy.queue.iterdir()))
        self._number = int(self._waiting[-1].queued.name.partition(".")[0]) if self._waiting else 0
        self._ended = False
        self._failure: RunFolderError | None = None
        self._thread = Thread(target=self._work, daemon=True)
        self._redo()
        self._thread.start()

    def put(self, path: Path, content: Path) -> None:
        """Learn that ``path`` is about to have this content, which is not written again."""
        self._add("put", path, content)

    def put_copy(self, path: Path, content: Path) -> None:
        """Learn what a file that is written in place has held at a moment."""
        self._add("copy", path, content)

    def remove(self, path: Path) -> None:
        """Learn that ``path`` is about to go."""
        self._add("remove", path, None)

    def left(self) -> int:
        """Count the changes that the store has not seen."""
        with self._changed:
            return len(self._waiting)

    def finish(self) -> None:
        """Wait until the store has seen all, then bring it what was written in place.

        Raises `RunFolderError` where it refuses; what it lacks stays in the queue.
        """
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()
        self._check()
        self._lease.check()
        for path in self._copy.in_place():
            self._send(_Change(path, "copy", path.name))

    def _add(self, kind: str, path: Path, content: Path | None) -> None:
        name = path.relative_to(self._copy.folder).as_posix()
        with self._changed:
            self._number += 1
            queued = self._copy.queue / f"{self._number:012d}.{kind}.{quote(name, safe='')}"
            change = _Change.of(queued)
            try:
                if content is None:
                    queued.touch()
                else:
                    _link(content, queued)
                sync_folder(self._copy.queue)
                self._waiting.append(change)
            except BaseException:  # interrupted, it must not be sent after what comes later
                if change not in self._waiting:
                    queued.unlink(missing_ok=True)
                raise
            self._changed.notify()
        self._check()  # the queue keeps what it has

    def _check(self) -> None:
        if self._failure is not None:
            msg = f"{self._failure}; the same command goes on"
            raise RunFolderError(msg)

    def _redo(self) -> None:
        """Make visible what a killed run had queued and no more."""
        last = {change.name: change for change in self._waiting if change.kind != "copy"}
        for name, change in last.items():
            path = self._copy.folder / name
            if change.kind == "remove":
                path.unlink(missing_ok=True)
            elif not path.exists() or not path.samefile(change.queued):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                _link(change.queued, path)

    def _work(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                while changes := self._next():
                    self._lease.check()
                    for change in pool.map(self._send, changes):
                        change.queued.unlink()
                        with self._changed:
                            self._waiting.popleft()
            except RunFolderError as error:
                self._failure = error
            except BaseException as error:  # a panic, say: nobody else would learn of it
                self._failure = RunFolderError(
                    f"{self._copy.queue} cannot be sent ({type(error).__name__})"
                )

    def _next(self) -> list[_Change]:
        """Wait for changes, and choose those that may be sent now; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            chosen: list[_Change] = []
            for change in self._waiting:
                if chosen and (not change.group or change.group != chosen[0].group):
                    break
                if len(chosen) == _AT_ONCE or change.name in {other.name for other in chosen}:
                    break
                chosen.append(change)
            return chosen

    def _send(self, change: _Change) -> _Change:
        if change.kind == "remove":
            self._store.remove(change.name)
        else:
            self._copy.record(
                change.name, self._store.put(change.name, change.queued), change.queued
            )
        return change


def _link(content: Path, path: Path) -> None:
    """Give content a second name; where the disk cannot, copy it."""
    try:
        os.link(content, path)
    except OSError:
        with suppress(FileNotFoundError):
            path.unlink()
        copy2(content, path)
