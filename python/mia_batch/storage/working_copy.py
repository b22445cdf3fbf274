"""The working copy of a run that lies in a store: an ordinary folder, and what is known of it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from filelock import FileLock

from mia_batch.errors import RunFolderError
from mia_batch.storage.urls import copy_of

if TYPE_CHECKING:
    from pathlib import Path

    from mia_batch.storage.store import Store

__all__ = ["WorkingCopy"]

_AT_ONCE = 32


@dataclass(slots=True)
class WorkingCopy:
    """A folder below the user's cache: the run's own, a queue, an index, and two locks.

    ``name`` is what the store calls this copy while it may be ahead of the store. The index says of
    each file what the store called its contents, and how it looked here.
    """

    url: str
    folder: Path
    index: dict[str, list[object]] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str) -> WorkingCopy:
        """Find or make the working copy of an address."""
        copy = cls(url, copy_of(url))
        try:
            copy.folder.mkdir(parents=True, exist_ok=True)
            copy.queue.mkdir(exist_ok=True)
            with (
                suppress(FileNotFoundError),
                (copy._beside("index")).open(encoding="utf-8") as file,
            ):
                for line in file:
                    with suppress(ValueError):  # cut short by a crash
                        name, *about = json.loads(line)
                        copy.index[name] = about
        except OSError as error:
            msg = (
                f"{error.filename or copy.folder}, the working copy of {url}, cannot be used "
                f"({error.strerror}); set XDG_CACHE_HOME to a folder that can be written"
            )
            raise RunFolderError(msg) from None
        return copy

    @property
    def queue(self) -> Path:
        """Changes that the store has not seen."""
        return self._beside("queue")

    @property
    def name(self) -> str | None:
        """What the store calls this copy; None where it cannot be ahead."""
        try:
            return self._beside("name").read_text("utf-8")
        except FileNotFoundError:
            return None

    def lock(self, what: str, seconds: float = -1) -> FileLock:
        """Return a lock: ``writing`` for a whole run, ``looking`` while the copy is looked at."""
        return FileLock(self._beside(what), timeout=seconds)

    def record(self, name: str, tag: str, content: Path) -> None:
        """Note what the store calls the contents of a file."""
        self.index[name] = [tag, *_looks(content)]
        with self._beside("index").open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, *self.index[name]]) + "\n")

    def in_place(self) -> list[Path]:
        """List files beside the tables that are not as the store has them."""
        files = [path for path in self.folder.iterdir() if path.is_file()]
        return [
            path
            for path in sorted(files)
            if not path.name.startswith(".")
            and not path.name.endswith(("-wal", "-shm"))
            and self.index.get(path.name, [None])[1:] != _looks(path)
        ]

    def follow(self, store: Store) -> None:
        """Become what the store holds: fetch what differs, and remove what it does not have."""
        self._beside("name").unlink(missing_ok=True)
        for queued in self.queue.iterdir():
            queued.unlink()
        there = store.names()
        for path in [path for path in self.folder.rglob("*") if path.is_file()]:
            name = path.relative_to(self.folder).as_posix()
            if name not in there and name != ".lock":
                path.unlink()
        lacking = [name for name, tag in there.items() if not self._has(name, tag)]
        for folder in {(self.folder / name).parent for name in lacking}:
            folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for name in filter(None, pool.map(partial(self._fetch, store), lacking)):
                self.record(name, there[name], self.folder / name)

    def lead(self, name: str) -> None:
        """From here on this copy is ahead of the store."""
        self._beside("name").write_text(name, "utf-8")

    def _has(self, name: str, tag: str) -> bool:
        try:
            return self.index.get(name) == [tag, *_looks(self.folder / name)]
        except FileNotFoundError:
            return False

    def _fetch(self, store: Store, name: str) -> str | None:
        """Fetch a file, and return its name; None where it went after it was listed."""
        path = self.folder / name
        unfinished = path.with_name(f".{path.name}.fetched")
        try:
            store.fetch(name, unfinished)
        except FileNotFoundError:
            unfinished.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            return None
        unfinished.replace(path)
        return name

    def _beside(self, what: str) -> Path:
        return self.folder.parent / f".{what}"


def _looks(path: Path) -> list[object]:
    seen = path.stat()
    return [seen.st_mtime_ns, seen.st_size]
